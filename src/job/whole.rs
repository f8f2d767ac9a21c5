//! Files that appear whole or not at all: written under another name, put on the disk, renamed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Lets `write` make a file under another name next to `path`, and gives it its name.
pub(super) fn write_whole(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = temporary(path);
    let written = write(&temporary).and_then(|()| {
        File::open(&temporary)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&temporary, path))
            .with_context(|| format!("cannot write {}", path.display()))
    });
    if written.is_err() {
        // The first error is the one to tell; the file may not be there.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_folder(path.parent().unwrap_or(Path::new(".")));
    Ok(())
}

/// Puts the names in `folder` on the disk. Some file systems cannot: the files are whole all the
/// same.
pub(super) fn sync_folder(folder: &Path) {
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        write_whole(&path, |to| Ok(fs::write(to, "old")?)).expect("written");
        let failed = write_whole(&path, |to| {
            fs::write(to, "ne")?;
            anyhow::bail!("full")
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).expect("there"), "old");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
