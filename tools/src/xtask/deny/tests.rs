//! `deny.toml` against made-up dependencies, each with one fault, and against those of the tree.

use super::*;

const CONFIG: &str = r#"
[graph]
targets = ["x86_64-unknown-linux-gnu"]
[licenses]
allow = ["MIT", "Zlib"]
exceptions = [{ crate = "fuzzer", allow = ["NCSA"] }]
[bans]
multiple-versions = "deny"
wildcards = "deny"
deny = [{ crate = "cc", reason = "compiles C" }]
skip = [{ crate = "old:^0.9", reason = "somewhere" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
allow-registry = ["https://crates.example/index"]
allow-git = ["https://git.example/ours"]
"#;

/// A package of the registry.
fn package(name: &str, version: &str, license: &str) -> serde_json::Value {
    serde_json::json!({
        "name": name, "version": version, "license": license,
        "source": "registry+https://crates.example/index",
    })
}

/// What is said of `found`, which comes in addition to packages that are as they should be.
fn complaints(found: &[serde_json::Value]) -> Vec<String> {
    let mut packages = vec![
        package("old", "0.9.3", "MIT"),
        package("old", "1.0.0", "MIT/Apache-2.0"),
        package("zip", "2.0.0", "(Zlib OR GPL-3.0-only) AND MIT"),
    ];
    packages.extend_from_slice(found);
    let read = |packages: Vec<serde_json::Value>| -> Metadata {
        serde_json::from_value(serde_json::json!({ "packages": packages })).expect("metadata")
    };
    let fuzz = vec![
        package("fuzzer", "0.4.0", "MIT AND NCSA"),
        package("cc", "1.0.0", "MIT"),
    ];
    let config = Config::parse(CONFIG).expect("a configuration");
    config.complaints(&read(packages), &read(fuzz))
}

/// The only complaint about `found` has all of `parts`.
#[track_caller]
fn refused(found: &[serde_json::Value], parts: &[&str]) {
    let complaints = complaints(found);
    let [complaint] = complaints.as_slice() else {
        panic!("one complaint: {complaints:#?}");
    };
    for part in parts {
        assert!(complaint.contains(part), "{complaint} lacks {part}");
    }
}

#[test]
fn what_is_as_it_should_be_passes() {
    assert_eq!(complaints(&[]), [""; 0]);
    let mut git = package("ours", "0.1.0", "MIT");
    git["source"] = "git+https://git.example/ours?branch=main#0123".into();
    let mut own = package("dogwild", "0.1.0", "MIT");
    own["source"] = serde_json::Value::Null;
    own["dependencies"] = serde_json::json!([
        { "name": "old", "req": "^1" }, { "name": "lab", "req": "*", "path": "/tree/lab" }
    ]);
    assert_eq!(complaints(&[git, own]), [""; 0]);
}

#[test]
fn a_licence_that_is_not_allowed_is_refused() {
    for licence in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "NCSA",
        "MIT WITH Nothing",
    ] {
        refused(
            &[package("copyleft", "1.2.3", licence)],
            &["copyleft 1.2.3", licence, "licenses.allow"],
        );
    }
    refused(
        &[package("odd", "1.0.0", "MIT OR")],
        &["odd 1.0.0", "missing"],
    );
    let mut silent = package("silent", "1.0.0", "");
    silent["license"] = serde_json::Value::Null;
    refused(&[silent], &["silent 1.0.0", "no licence"]);
}

#[test]
fn another_source_is_refused() {
    for source in [
        "registry+https://elsewhere.example/index",
        "git+https://git.example/theirs#0123",
        "git+https://git.example/ours-not#0123",
    ] {
        let mut package = package("moved", "1.0.0", "MIT");
        package["source"] = source.into();
        refused(&[package], &["moved 1.0.0", source]);
    }
}

#[test]
fn duplicates_bans_and_wildcards_are_refused() {
    refused(
        &[package("zip", "1.9.0", "MIT")],
        &["zip", "2.0.0, 1.9.0", "bans.skip"],
    );
    refused(&[package("old", "0.8.0", "MIT")], &["old", "1.0.0, 0.8.0"]);
    // Among fuzz targets the same crate passes.
    refused(
        &[package("cc", "1.0.0", "MIT")],
        &["cc 1.0.0", "compiles C"],
    );
    let mut own = package("dogwild", "0.1.0", "MIT");
    own["source"] = serde_json::Value::Null;
    own["dependencies"] = serde_json::json!([{ "name": "old", "req": "*" }]);
    refused(&[own], &["dogwild", "any version of old"]);
}

#[test]
fn lines_that_allow_nothing_any_more_are_named() {
    let config = CONFIG
        .replace("\"Zlib\"", "\"Zlib\", \"ISC\"")
        .replace("old:^0.9", "old@0.9.4");
    let config = Config::parse(&config).expect("a configuration");
    let packages = [
        package("a", "1.0.0", "MIT OR Zlib"),
        package("old", "0.9.3", "MIT"),
    ];
    let metadata = serde_json::json!({ "packages": packages });
    let metadata: Metadata = serde_json::from_value(metadata).expect("metadata");
    let complaints = config.complaints(&metadata, &metadata);
    let [skip, licence] = complaints.as_slice() else {
        panic!("two complaints: {complaints:#?}");
    };
    assert!(skip.contains("`old@0.9.4` (somewhere)"), "{skip}");
    assert!(licence.contains("no crate has `ISC`"), "{licence}");
}

#[test]
fn weaker_levels_are_refused() {
    for key in [
        "multiple-versions",
        "wildcards",
        "unknown-registry",
        "unknown-git",
    ] {
        let deny = format!("{key} = \"deny\"");
        assert!(CONFIG.contains(&deny));
        let weaker = CONFIG.replace(&deny, &format!("{key} = \"warn\""));
        let error = Config::parse(&weaker).err().expect(key).to_string();
        assert!(error.contains("warn") && error.contains("deny"), "{error}");
        let without = CONFIG.replace(&deny, "");
        let error = Config::parse(&without).err().expect(key).to_string();
        assert!(error.contains(key), "{error}");
    }
}

/// The workspace passes, and does so because of what `deny.toml` allows. Fuzz targets are left to
/// `cargo xtask deny`: who only runs tests has not downloaded their crates.
#[test]
fn this_workspace_is_as_its_file_asks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("deny.toml")).expect("deny.toml");
    let config = Config::parse(&text).expect("a configuration");
    let [target] = &config.graph.targets;
    let workspace = match Metadata::of_all(&root.join("Cargo.toml"), target) {
        Ok(workspace) => workspace,
        Err(error) => {
            return dogwild_lab::skip::skip(&format!("dependencies of all features: {error}"));
        }
    };
    assert_eq!(config.complaints(&workspace, &workspace), [""; 0]);
    let stricter = Config::parse(&text.replace("\"BSL-1.0\",", "")).expect("a configuration");
    let complaints = stricter.complaints(&workspace, &workspace);
    let [complaint] = complaints.as_slice() else {
        panic!("one complaint: {complaints:#?}");
    };
    for part in ["xxhash-rust", "BSL-1.0", "not allowed"] {
        assert!(complaint.contains(part), "{complaint}");
    }
}
