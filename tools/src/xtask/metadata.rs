//! What cargo knows of a workspace and its dependencies.
//!
//! Starts `cargo metadata`, offline and with the lock file as it is. [`fetch`] alone uses the
//! network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A workspace, and the packages that it is built from if they were asked for.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    /// Where cargo builds it.
    #[serde(default)]
    pub(crate) target_directory: PathBuf,
}

/// A crate of the workspace or a dependency.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: semver::Version,
    /// An SPDX expression.
    pub(crate) license: Option<String>,
    /// Where it comes from, `registry+URL` or `git+URL`; none for crates of this tree.
    pub(crate) source: Option<String>,
    /// Names of the features, with what each switches on.
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) dependencies: Vec<Dependency>,
    #[serde(default)]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) authors: Vec<String>,
    /// Tables of other tools.
    #[serde(default)]
    pub(crate) metadata: serde_json::Value,
}

/// A line of a package's `[dependencies]`.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) req: semver::VersionReq,
    /// Its folder, if it is named by one.
    pub(crate) path: Option<String>,
}

impl Metadata {
    /// The workspace's own packages; nothing else has to be there.
    ///
    /// # Errors
    /// Cargo cannot read the manifests, or says what is not understood here.
    pub(crate) fn of_workspace(manifest: &Path) -> Result<Self> {
        Self::read(manifest, &["--no-deps"])
    }

    /// All packages that are built for `target`, with all features and for tests too.
    ///
    /// # Errors
    /// As [`of_workspace`](Self::of_workspace); the lock file is not up to date; a crate that it
    /// names was not downloaded ([`fetch`]).
    pub(crate) fn of_all(manifest: &Path, target: &str) -> Result<Self> {
        let arguments = ["--all-features", "--filter-platform", target];
        let mut all = Self::read(manifest, &arguments)?;
        // `cargo metadata` also names what a feature as `ring?/std` would bring if it were there.
        let built = built(manifest, target)?;
        let is_built = |one: &Package| built.contains(&format!("{} v{}", one.name, one.version));
        all.packages.retain(is_built);
        Ok(all)
    }

    fn read(manifest: &Path, arguments: &[&str]) -> Result<Self> {
        let shown = manifest.display();
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--offline", "--locked"])
            .arg("--manifest-path")
            .arg(manifest)
            .args(arguments)
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`cargo metadata --offline --locked` of {shown} failed:\n{said}");
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("what `cargo metadata` says of {shown} is not understood"))
    }
}

/// Names and versions of all that is built for `target`, with all features and for tests too.
fn built(manifest: &Path, target: &str) -> Result<BTreeSet<String>> {
    let output = Command::new("cargo")
        .args(["tree", "--offline", "--locked", "--workspace"])
        .args(["--all-features", "--prefix", "none", "--target", target])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`cargo tree --offline --locked` failed:\n{said}");
    }
    let said = String::from_utf8(output.stdout).context("what `cargo tree` says")?;
    // `name v1.2.3`, then what it is and whether its part of the tree was shown before.
    let crates = said.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    });
    Ok(crates.collect())
}

/// Downloads the crates of a lock file that are built for `target` and are not here yet.
///
/// # Errors
/// There is no network, or the lock file is not up to date.
pub(crate) fn fetch(manifest: &Path, target: &str) -> Result<()> {
    let status = Command::new("cargo")
        .args(["fetch", "--locked", "--target", target, "--manifest-path"])
        .arg(manifest)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("`cargo fetch --locked` of {} failed", manifest.display());
    }
    Ok(())
}
