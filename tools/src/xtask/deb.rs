//! `cargo xtask deb`: the Debian package with all programs, by what `[package.metadata.deb]` of
//! Cargo.toml says.
//!
//! Builds the programs, has them write their man pages and shell completions, fills a folder and
//! lets dpkg-deb make the package of it. Understands the part of cargo-deb's table that is used
//! there. Writes to the folder of the package and to cargo's.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, write::GzEncoder};
use serde::Deserialize;

use super::metadata::{Metadata, Package};
use super::{output, root};

/// The profile of what users get.
const PROFILE: &str = "dist";
/// Where cargo-deb's table says that programs are.
const BUILT: &str = "target/release/";
/// Where it says that what the programs write is.
const WRITTEN: &str = "target/share/";
/// The package's own revision of a version.
const REVISION: u32 = 1;
/// Maintainer scripts that there may be.
const SCRIPTS: [&str; 4] = ["preinst", "postinst", "prerm", "postrm"];

/// The table: what of it is used.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Table {
    section: String,
    priority: String,
    depends: String,
    recommends: String,
    extended_description: String,
    maintainer_scripts: PathBuf,
    /// Pattern, folder in the package, mode.
    assets: Vec<(String, PathBuf, String)>,
}

/// Builds it into `out`. The programs of the folder `programs` go in; `None`: they are built.
pub(super) fn build(out: &Path, programs: Option<PathBuf>, compress: &str) -> Result<()> {
    let workspace = Metadata::of_workspace(&root().join("Cargo.toml"))?;
    let package = workspace.packages.iter().find(|one| one.name == "dogwild");
    let package = package.context("no crate `dogwild` in the workspace")?;
    let table: Table = serde_json::from_value(package.metadata["deb"].clone())
        .context("[package.metadata.deb] of Cargo.toml has more or less than is understood here")?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"));
    let architecture = architecture
        .context("a Debian package takes Debian's dpkg")?
        .trim()
        .to_owned();
    let name = format!(
        "{}_{}-{REVISION}_{architecture}.deb",
        package.name, package.version
    );
    let file = out.join(&name);
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    ensure!(
        !file.exists(),
        "{} is there already: remove it",
        file.display()
    );

    let target = &workspace.target_directory;
    let programs = programs.map_or_else(|| build_programs(target), Ok)?;
    let share = target.join("share");
    let stage = Stage::new(target.join("deb"))?;
    remove(&share)?;
    let sources = Sources {
        programs: &programs,
        share: &share,
    };
    let mut binaries = Vec::new();
    for (pattern, _, _) in &table.assets {
        if let Some(program) = pattern.strip_prefix(BUILT) {
            let program = programs.join(program);
            output(Command::new(&program).arg("--pages").arg(&share))?;
            binaries.push(program);
        }
    }
    for (pattern, folder, mode) in &table.assets {
        for source in sources.find(pattern)? {
            stage.put(&source, folder, mode, pattern.starts_with(BUILT))?;
        }
    }
    stage.control(package, &table, &architecture, &binaries)?;
    let mut make = Command::new("dpkg-deb");
    make.arg("--root-owner-group");
    make.arg(format!("-Z{compress}")).arg("--build");
    output(make.arg(&stage.0).arg(&file))?;
    let bytes = fs::metadata(&file)?.len();
    dogwild_lab::say!("{}: {:.2} MB", file.display(), bytes as f64 / 1e6);
    Ok(())
}

fn build_programs(target: &Path) -> Result<PathBuf> {
    let words = format!("cargo build --locked --profile {PROFILE} --workspace --bins");
    super::run((&[], &words))?;
    Ok(target.join(PROFILE))
}

/// Removes a folder that may be there.
fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Where the patterns of the table are looked for.
struct Sources<'s> {
    programs: &'s Path,
    share: &'s Path,
}

impl Sources<'_> {
    /// The files of a pattern, which may have one `*` in its last part.
    fn find(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        let path = if let Some(program) = pattern.strip_prefix(BUILT) {
            self.programs.join(program)
        } else if let Some(written) = pattern.strip_prefix(WRITTEN) {
            self.share.join(written)
        } else {
            root().join(pattern)
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("`{pattern}` names no file"))?;
        let Some((start, end)) = name.split_once('*') else {
            return Ok(vec![path]);
        };
        let folder = path.parent().unwrap_or(&path);
        let entries =
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        found.retain(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            path.is_file()
                && name.is_some_and(|name| name.starts_with(start) && name.ends_with(end))
        });
        found.sort();
        ensure!(!found.is_empty(), "no file is like `{pattern}`");
        Ok(found)
    }
}

/// The folder that becomes the package; removed with this.
struct Stage(PathBuf);

impl Stage {
    fn new(folder: PathBuf) -> Result<Self> {
        remove(&folder)?;
        fs::create_dir_all(folder.join("DEBIAN"))
            .with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Puts a file into a folder of the package. Programs go without what only debuggers read, man
    /// pages are compressed.
    fn put(&self, source: &Path, folder: &Path, mode: &str, is_program: bool) -> Result<()> {
        let name = source.file_name().context("a file's name")?;
        let mut place = self.0.join(folder).join(name);
        let failed = |what: &Path| format!("cannot put {} into the package", what.display());
        fs::create_dir_all(self.0.join(folder)).with_context(|| failed(folder))?;
        if is_program {
            output(Command::new("strip").arg("-o").arg(&place).arg(source))?;
        } else if folder.starts_with("usr/share/man") {
            place = self.0.join(folder).join(name).with_extension("1.gz");
            let text = fs::read(source).with_context(|| failed(source))?;
            let file = File::create(&place).with_context(|| failed(source))?;
            let mut encoder = GzEncoder::new(file, Compression::best());
            encoder.write_all(&text)?;
            encoder.finish()?;
        } else {
            fs::copy(source, &place).with_context(|| failed(source))?;
        }
        let mode = u32::from_str_radix(mode, 8).with_context(|| format!("mode {mode}"))?;
        fs::set_permissions(&place, Permissions::from_mode(mode))?;
        Ok(())
    }

    /// What dpkg reads of the package: fields, checksums, scripts.
    fn control(
        &self,
        package: &Package,
        table: &Table,
        architecture: &str,
        binaries: &[PathBuf],
    ) -> Result<()> {
        let folder = self.0.join("DEBIAN");
        let libraries = self.libraries(binaries)?;
        let files = output(
            Command::new("sh")
                .args(["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"])
                .current_dir(&self.0),
        )?;
        fs::write(folder.join("md5sums"), files)?;
        let used = output(
            Command::new("du")
                .args(["-sk", "--exclude=DEBIAN"])
                .arg(&self.0),
        )?;
        let used = used.split_whitespace().next().context("du says a size")?;
        let short = package.description.as_deref().unwrap_or_default();
        let mut text = format!(
            "Package: {}\nVersion: {}-{REVISION}\nArchitecture: {architecture}\n",
            package.name, package.version
        );
        let depends = table.depends.replace("$auto", &libraries);
        for (field, value) in [
            ("Maintainer", package.authors.join(", ").as_str()),
            ("Installed-Size", used),
            ("Depends", &depends),
            ("Recommends", &table.recommends),
            ("Section", &table.section),
            ("Priority", &table.priority),
            ("Description", short),
        ] {
            text += &format!("{field}: {value}\n");
        }
        for line in table.extended_description.lines() {
            text += &match line {
                "" => " .\n".to_owned(),
                line => format!(" {line}\n"),
            };
        }
        fs::write(folder.join("control"), text)?;
        for script in SCRIPTS {
            let source = root().join(&table.maintainer_scripts).join(script);
            if source.exists() {
                let text = fs::read_to_string(&source)?.replace("#DEBHELPER#", "");
                let place = folder.join(script);
                fs::write(&place, text)?;
                fs::set_permissions(&place, Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// The packages of the libraries that the programs are linked with, with their least versions.
    fn libraries(&self, binaries: &[PathBuf]) -> Result<String> {
        // It wants to be in a source package.
        let source = self.0.with_extension("source");
        remove(&source)?;
        fs::create_dir_all(source.join("debian"))?;
        fs::write(
            source.join("debian/control"),
            "Source: dogwild\n\nPackage: dogwild\nArchitecture: any\n",
        )?;
        let mut ask = Command::new("dpkg-shlibdeps");
        ask.arg("-O").args(binaries).current_dir(&source);
        let said = output(&mut ask).context("dpkg-shlibdeps is of Debian's dpkg-dev")?;
        remove(&source)?;
        let found = said
            .lines()
            .find_map(|line| line.strip_prefix("shlibs:Depends="));
        match found {
            Some(found) => Ok(found.to_owned()),
            None => bail!("dpkg-shlibdeps names no library: {said}"),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            dogwild_lab::say!("{error:#}");
        }
    }
}
