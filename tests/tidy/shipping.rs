//! Rules for what a release holds: licences, the metadata of each crate, the changelog.

use crate::no_complaints;
use crate::source::{file, root};

/// The two texts of `license = "MIT OR Apache-2.0"`, with the line that each begins with.
const LICENCES: [(&str, &str); 2] = [
    ("LICENSE-MIT", "MIT License"),
    ("LICENSE-APACHE", "Apache License"),
];

/// What all crates have in common, and take from the workspace.
const INHERITED: [&str; 7] = [
    "version",
    "authors",
    "edition",
    "rust-version",
    "license",
    "readme",
    "publish",
];

/// What each crate says of itself.
const OWN: [&str; 4] = ["description", "keywords", "categories", "include"];

/// Areas of the changelog.
const AREAS: [&str; 10] = [
    "Stream",
    "Training",
    "Transports",
    "Reliable path",
    "GPU",
    "Tools",
    "Library",
    "Project",
    "Fixes",
    "Security",
];

/// Lines of an entry of the changelog.
const ENTRY_LINES_MAX: usize = 3;

#[test]
fn the_documents_of_a_release_are_there() {
    const DOCUMENTS: [&str; 4] = ["SECURITY.md", "RELEASING.md", "CHANGELOG.md", "deny.toml"];
    let missing = DOCUMENTS.iter().filter(|path| file(path).is_none());
    no_complaints(
        missing
            .map(|path| format!("{path}: is missing: write it"))
            .collect(),
    );
}

/// The folders of the workspace's crates.
fn members() -> Vec<String> {
    let manifest = file("Cargo.toml").expect("Cargo.toml").text;
    let list = manifest
        .lines()
        .find_map(|line| line.strip_prefix("members = "))
        .expect("members of the workspace");
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// The table `name` of a manifest.
fn table<'t>(manifest: &'t str, name: &str) -> &'t str {
    let header = format!("[{name}]\n");
    let (_, behind) = manifest.split_once(&header).unwrap_or_default();
    behind.split("\n[").next().unwrap_or(behind)
}

#[test]
fn every_crate_has_its_licences_and_its_metadata() {
    let mut complaints = Vec::new();
    for member in members() {
        let folder = root().join(&member);
        for (name, first_line) in LICENCES {
            let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            if !text.trim_start().starts_with(first_line) {
                complaints.push(format!(
                    "{member}/{name}: is missing or is not the {first_line}: link it to ../{name}"
                ));
            }
        }
        let path = format!("{member}/Cargo.toml");
        let manifest = file(&path).expect("a manifest").text;
        complaints.extend(missing_metadata(&manifest).map(|wrong| format!("{path}: {wrong}")));
    }
    no_complaints(complaints);
}

/// What the `[package]` of a manifest lacks.
fn missing_metadata(manifest: &str) -> impl Iterator<Item = String> {
    let package = table(manifest, "package");
    let has = |start: String| package.lines().any(|line| line.starts_with(&start));
    let inherited = INHERITED
        .into_iter()
        .filter(|key| !has(format!("{key}.workspace = true")))
        .map(|key| format!("`{key}.workspace = true` is missing in [package]: add it"));
    let own = OWN
        .into_iter()
        .filter(|key| !has(format!("{key} = ")))
        .map(|key| format!("[package] has no `{key}`: add it"));
    inherited.chain(own).collect::<Vec<_>>().into_iter()
}

#[test]
fn the_changelog_is_in_form() {
    let manifest = file("Cargo.toml").expect("Cargo.toml").text;
    let version = table(&manifest, "workspace.package")
        .lines()
        .find_map(|line| line.strip_prefix("version = "))
        .expect("the version of the workspace")
        .trim_matches('"')
        .to_owned();
    let changelog = file("CHANGELOG.md").expect("CHANGELOG.md").text;
    let complaints = changelog_faults(&changelog, &version);
    no_complaints(
        complaints
            .into_iter()
            .map(|complaint| format!("CHANGELOG.md:{complaint}"))
            .collect(),
    );
}

/// What is wrong with a changelog of `version`, with its lines.
fn changelog_faults(changelog: &str, version: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut releases = Vec::new();
    let mut entry_lines = 0;
    for (number, line) in (1..).zip(changelog.lines()) {
        if let Some(release) = line.strip_prefix("## ") {
            if !is_release(release, releases.is_empty()) {
                faults.push(format!(
                    "{number}: `{line}`: write `## [Unreleased]`, then `## [X.Y.Z] - YYYY-MM-DD`"
                ));
            }
            releases.push(release.to_owned());
        } else if let Some(area) = line.strip_prefix("### ")
            && !AREAS.contains(&area)
        {
            let areas = AREAS.join(", ");
            faults.push(format!(
                "{number}: `{area}` is not one of the areas: {areas}"
            ));
        }
        let goes_on = entry_lines > 0 && line.starts_with("  ");
        entry_lines = match line.starts_with("- ") {
            true => 1,
            false if goes_on => entry_lines + 1,
            false => 0,
        };
        if entry_lines == ENTRY_LINES_MAX + 1 {
            faults.push(format!(
                "{number}: an entry of more than {ENTRY_LINES_MAX} lines: shorten or divide it"
            ));
        }
    }
    let newest = releases.get(1).map(String::as_str).unwrap_or_default();
    if !newest.starts_with(&format!("[{version}] ")) {
        faults.push(format!(
            "1: Cargo.toml has version {version}, the newest release here is `{newest}`: they are \
             raised together (RELEASING.md)"
        ));
    }
    faults
}

/// True if `heading` is that of a release, or of what comes next if it is the first.
fn is_release(heading: &str, first: bool) -> bool {
    if first {
        return heading == "[Unreleased]";
    }
    let Some((version, date)) = heading.split_once(" - ") else {
        return false;
    };
    let numbers = |text: &str, separator: char, lengths: &[usize]| {
        let parts: Vec<_> = text.split(separator).collect();
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        parts.len() == 3
            && parts.iter().all(|part| digits(part))
            && parts
                .iter()
                .zip(lengths)
                .all(|(part, len)| part.len() == *len)
    };
    version
        .strip_prefix('[')
        .and_then(|version| version.strip_suffix(']'))
        .is_some_and(|version| numbers(version, '.', &[]))
        && numbers(date, '-', &[4, 2, 2])
}

#[test]
fn faults_of_manifests_and_changelogs_are_seen() {
    let manifest = "[package]\nname = \"a\"\nversion.workspace = true\nkeywords = []\n\n[lib]\n\
                    license.workspace = true\n";
    let missing: Vec<_> = missing_metadata(manifest).collect();
    let named = |key: &str| {
        missing
            .iter()
            .any(|wrong| wrong.contains(&format!("`{key}")))
    };
    assert!(named("license.") && named("description") && named("publish"));
    assert!(!named("version") && !named("keywords"));
    assert_eq!(missing.len(), INHERITED.len() + OWN.len() - 2);

    const GOOD: &str = "# Changelog\n\n## [Unreleased]\n\n### Stream\n\n- a\n  b\n  c\n\n## [0.1.0] - \
                        2026-11-22\n\n### Fixes\n\n- d\n";
    assert_eq!(changelog_faults(GOOD, "0.1.0"), [""; 0]);
    let fault = |wrong: &str, version: &str| match changelog_faults(wrong, version).as_slice() {
        [fault] => fault.clone(),
        faults => panic!("one fault: {faults:#?}"),
    };
    assert!(fault(GOOD, "0.2.0").contains("raised together"));
    assert!(fault(&GOOD.replace("### Fixes", "### Mixed"), "0.1.0").starts_with("13: `Mixed`"));
    assert!(fault(&GOOD.replace("  c", "  c\n  d"), "0.1.0").starts_with("10: an entry"));
    assert!(fault(&GOOD.replace("2026-11-22", "soon"), "0.1.0").contains("YYYY-MM-DD"));
    assert!(fault(&GOOD.replace("[Unreleased]", "Next"), "0.1.0").starts_with("3: "));
}
