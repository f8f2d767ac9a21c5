//! The files of `--capture`: their names in a job of several nodes, and whether they can be
//! written.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Result, bail};

use crate::settings::capture_of_node;

/// Refuses a capture file that streamers could not write, before anything is started. Leaves no
/// file, and those that are there as they are.
pub(super) fn check(base: &Path, nodes: u16) -> Result<()> {
    let given = base.display();
    let folder = base.parent().filter(|folder| *folder != Path::new(""));
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        bail!(
            "--capture {given}: there is no folder {folder}; make it (mkdir -p {folder}), or name a file elsewhere"
        );
    }
    for file in (0..nodes).map(|node| capture_of_node(base, node)) {
        if let Err(error) = try_out(&file) {
            bail!(
                "--capture {given}: cannot write {}: {error}; name a file in a folder that this user may write to",
                file.display()
            );
        }
    }
    Ok(())
}

fn try_out(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(there) if there.is_file() => OpenOptions::new().append(true).open(file).map(drop),
        // A pipe or a device: opening it may wait for a reader.
        Ok(_) => Ok(()),
        Err(_) => match OpenOptions::new().append(true).create_new(true).open(file) {
            Ok(_) => fs::remove_file(file),
            // A link to nothing, or another job that tries it out.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_stays_as_it_is_and_what_cannot_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let base = dir.path().join("run.pcapng");
        let old = dir.path().join("run.n1.pcapng");
        fs::write(&old, "frames").expect("a file");
        check(&base, 3).expect("all can be written");
        assert_eq!(fs::read(&old).expect("the file"), b"frames");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
        check(Path::new("no-such-capture"), 1).expect("the present folder");

        fs::create_dir(dir.path().join("run.n2.pcapng")).expect("a folder");
        check(&base, 2).expect("two nodes need two files");
        let refused = |base: &Path| check(base, 3).expect_err("cannot be written").to_string();
        for (base, words) in [
            (&base, &["run.n2.pcapng", "name a file"][..]),
            (&old.join("run.pcapng"), &["no folder", "run.n1.pcapng"]),
            (
                &"/no/dir/x".into(),
                &["--capture /no/dir/x", "mkdir -p /no/dir"],
            ),
            // Not even root may.
            (&"/proc/x".into(), &["cannot write /proc/x.n0.pcapng"]),
        ] {
            let said = refused(base);
            for word in words {
                assert!(said.contains(word), "`{word}` is missing in: {said}");
            }
        }
    }
}
