//! Checks dependencies against `deny.toml`, offline: licences, bans, sources.
//!
//! Reads `deny.toml` and what `cargo metadata` says of the workspace and of the fuzz targets. It
//! stands in for cargo-deny where that is not installed: the file is cargo-deny's, and whatever of
//! it is used here means the same there. Levels weaker than `deny` are refused, so that the file
//! cannot ask for less than this checks. Advisories need a database and are left to cargo-deny.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::licence;
use crate::metadata::{self, Metadata, Package};

/// What of `deny.toml` is used here.
#[derive(Deserialize)]
struct Config {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    /// One triple: of several, crates would have to be there that are not built here.
    targets: [String; 1],
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licences that one crate may have in addition.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    spec: Spec,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Bans {
    #[serde(rename = "multiple-versions")]
    _multiple_versions: Level,
    #[serde(rename = "wildcards")]
    _wildcards: Level,
    #[serde(default)]
    deny: Vec<Named>,
    #[serde(default)]
    skip: Vec<Named>,
}

/// A crate with the reason why it is named.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    spec: Spec,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: Level,
    #[serde(rename = "unknown-git")]
    _unknown_git: Level,
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

/// The only level there is here.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Deny,
}

/// Versions of a crate: `name`, `name:requirement` or `name@exact version`.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Spec {
    text: String,
    name: String,
    versions: semver::VersionReq,
}

impl TryFrom<String> for Spec {
    type Error = semver::Error;

    fn try_from(text: String) -> Result<Self, semver::Error> {
        let (name, versions) = match (text.split_once(':'), text.split_once('@')) {
            (Some((name, versions)), _) => (name, versions.parse()?),
            (None, Some((name, version))) => (name, format!("={version}").parse()?),
            (None, None) => (text.as_str(), semver::VersionReq::STAR),
        };
        Ok(Self {
            name: name.to_owned(),
            versions,
            text,
        })
    }
}

impl Spec {
    fn matches(&self, package: &Package) -> bool {
        self.name == package.name && self.versions.matches(&package.version)
    }
}

/// Checks the tree at `root`.
///
/// # Errors
/// A dependency is not as `deny.toml` asks, and each that is not is named; or a file cannot be
/// read, or cargo fails.
pub(crate) fn check(root: &Path) -> Result<()> {
    let path = root.join("deny.toml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let config = Config::parse(&text).with_context(|| path.display().to_string())?;
    let [target] = &config.graph.targets;
    let read = |manifest: &str| {
        let manifest = root.join(manifest);
        Metadata::of_all(&manifest, target).or_else(|missing| {
            // A clean clone has not downloaded what only fuzz targets need.
            metadata::fetch(&manifest, target).with_context(|| missing.to_string())?;
            Metadata::of_all(&manifest, target)
        })
    };
    let (workspace, fuzz) = (read("Cargo.toml")?, read("fuzz/Cargo.toml")?);
    let complaints = config.complaints(&workspace, &fuzz);
    if !complaints.is_empty() {
        bail!("dependencies:\n{}", complaints.join("\n"));
    }
    Ok(())
}

impl Config {
    fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Everything that is wrong, one a line. Fuzz targets are in no program of ours, and libFuzzer
    /// is C++: of them only licences and sources count.
    fn complaints(&self, workspace: &Metadata, fuzz: &Metadata) -> Vec<String> {
        let all = || workspace.packages.iter().chain(&fuzz.packages);
        let mut complaints: Vec<_> = all()
            .filter_map(|package| self.licence(package))
            .chain(all().filter_map(|package| self.source(package)))
            .chain(self.unused_licences(all()))
            .chain(self.banned(&workspace.packages))
            .chain(self.duplicates(&workspace.packages))
            .chain(wildcards(&workspace.packages))
            .collect();
        // Most packages are in both.
        complaints.sort();
        complaints.dedup();
        complaints
    }

    fn licence(&self, package: &Package) -> Option<String> {
        let Package { name, version, .. } = package;
        let Some(expression) = &package.license else {
            return Some(format!(
                "{name} {version}: its Cargo.toml states no licence: take another crate"
            ));
        };
        let exceptions = self.licenses.exceptions.iter();
        let excepted: Vec<_> = exceptions
            .filter(|exception| exception.spec.matches(package))
            .flat_map(|exception| &exception.allow)
            .collect();
        let allowed = licence::is_allowed(expression, |licence| {
            let mut all = self.licenses.allow.iter().chain(excepted.iter().copied());
            all.any(|allowed| allowed == licence)
        });
        match allowed {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "{name} {version}: its licence `{expression}` is not allowed: take another crate, \
                 or add to `licenses.allow` of deny.toml what suits MIT OR Apache-2.0"
            )),
            Err(error) => Some(format!("{name} {version}: {error}: take another crate")),
        }
    }

    fn source(&self, package: &Package) -> Option<String> {
        // Crates of this tree.
        let source = package.source.as_ref()?;
        let Sources {
            allow_registry,
            allow_git,
            ..
        } = &self.sources;
        let allowed = match source.split_once('+') {
            Some(("registry", url)) => allow_registry.iter().any(|allowed| allowed == url),
            Some(("git", url)) => {
                // Behind these are branch and commit.
                let url = url.split(['?', '#']).next().unwrap_or(url);
                allow_git.iter().any(|allowed| allowed == url)
            }
            _ => false,
        };
        (!allowed).then(|| {
            format!(
                "{} {}: comes from {source}: take it from crates.io",
                package.name, package.version
            )
        })
    }

    fn unused_licences<'p>(&self, packages: impl Iterator<Item = &'p Package>) -> Vec<String> {
        let expressions = packages.filter_map(|package| package.license.as_deref());
        let named: Vec<_> = expressions
            .filter_map(|expression| licence::names(expression).ok())
            .flatten()
            .collect();
        let unused = self.licenses.allow.iter();
        unused
            .filter(|licence| !named.contains(licence))
            .map(|licence| {
                format!("deny.toml: `licenses.allow`: no crate has `{licence}`: remove it")
            })
            .collect()
    }

    fn banned(&self, packages: &[Package]) -> Vec<String> {
        let found = packages.iter().flat_map(|package| {
            let bans = self.bans.deny.iter();
            bans.filter(|ban| ban.spec.matches(package))
                .map(move |ban| (package, ban))
        });
        found
            .map(|(Package { name, version, .. }, ban)| {
                format!(
                    "{name} {version}: is banned by deny.toml: it {}; `cargo tree --invert {name}` \
                     says who wants it",
                    ban.reason
                )
            })
            .collect()
    }

    /// Crates with several versions of which more than one is not skipped; skips that match
    /// nothing.
    fn duplicates(&self, packages: &[Package]) -> Vec<String> {
        let mut versions: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
        for package in packages {
            versions.entry(&package.name).or_default().push(package);
        }
        let skips =
            |package: &Package| self.bans.skip.iter().any(|skip| skip.spec.matches(package));
        let mut complaints = Vec::new();
        for (name, packages) in &versions {
            let counted = packages.iter().filter(|package| !skips(package));
            let counted: Vec<_> = counted.map(|package| package.version.to_string()).collect();
            if counted.len() > 1 {
                complaints.push(format!(
                    "{name}: is built in versions {}: bring them together, or name the older with \
                     who wants it in `bans.skip` of deny.toml (`cargo tree --duplicates`)",
                    counted.join(", ")
                ));
            }
        }
        for Named { spec, reason } in &self.bans.skip {
            let same = versions.get(spec.name.as_str()).map_or(&[][..], |all| all);
            if same.len() < 2 || !same.iter().any(|package| spec.matches(package)) {
                complaints.push(format!(
                    "deny.toml: `bans.skip`: `{}` ({reason}) is no duplicate any more: remove it",
                    spec.text
                ));
            }
        }
        complaints
    }
}

/// Dependencies of our crates in any version at all.
fn wildcards(packages: &[Package]) -> Vec<String> {
    let ours = packages.iter().filter(|package| package.source.is_none());
    let any = ours.flat_map(|package| {
        let dependencies = package.dependencies.iter();
        dependencies
            .filter(|dependency| dependency.path.is_none())
            .filter(|dependency| dependency.req == semver::VersionReq::STAR)
            .map(move |dependency| (package, dependency))
    });
    any.map(|(package, dependency)| {
        format!(
            "{}: depends on any version of {}: name one in the root Cargo.toml",
            package.name, dependency.name
        )
    })
    .collect()
}
