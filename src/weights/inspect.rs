//! Reading the header of a file that may be anything: every refusal in one place.
//!
//! Reads by `pread` only, so that no content and no length does harm. Returns a header whose every
//! field was checked against the file's real length.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zerocopy::FromBytes;

use super::error::OpenError;
use super::header::{
    BYTE_ORDER, Head, INITIALISING, LAYOUT_VERSION, MAGIC, MANIFEST_OFFSET, READY, weights_offset,
};
use super::manifest::Manifest;
use super::process::Process;
use super::slots::SLOTS;
use super::{Expect, METERS, padded_len};

/// A manifest larger than this is not one of ours (AlexNet's has 1.5 kB).
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Checks everything but the state and what the caller expects.
pub(super) fn inspect(path: &Path, file: &File) -> Result<(Head, Manifest), OpenError> {
    match inspect_once(path, file) {
        // The creator may have made it ready while the header was being read.
        Err(OpenError::Damaged { .. }) => inspect_once(path, file),
        other => other,
    }
}

fn inspect_once(path: &Path, file: &File) -> Result<(Head, Manifest), OpenError> {
    let io = |source: io::Error| OpenError::Io {
        path: path.into(),
        source,
    };
    let not_ours = |why: &str| OpenError::NotOurs {
        path: path.into(),
        why: why.into(),
    };
    let damaged = |what: String| OpenError::Damaged {
        path: path.into(),
        what,
    };
    let has = file.metadata().map_err(io)?.len();
    if has == 0 {
        return Err(not_ours("it is empty"));
    }
    if has < MAGIC.len() as u64 {
        return Err(not_ours("it is too small"));
    }
    let mut magic = MAGIC;
    file.read_exact_at(&mut magic, 0).map_err(io)?;
    if magic != MAGIC {
        return Err(not_ours("it does not begin with DOGWILD"));
    }
    let truncated = |needs: u64| OpenError::Truncated {
        path: path.into(),
        has,
        needs,
    };
    if has < size_of::<Head>() as u64 {
        return Err(truncated(MANIFEST_OFFSET as u64));
    }
    let mut bytes = [0; size_of::<Head>()];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    let head = Head::read_from_bytes(&bytes).map_err(|e| damaged(e.to_string()))?;
    if head.byte_order == BYTE_ORDER.swap_bytes() {
        return Err(OpenError::ByteOrder { path: path.into() });
    }
    if head.byte_order != BYTE_ORDER {
        return Err(damaged(format!("byte order mark {:#x}", head.byte_order)));
    }
    if head.layout_version != LAYOUT_VERSION {
        let (found, ours) = (head.layout_version, LAYOUT_VERSION);
        return Err(OpenError::OtherVersion {
            path: path.into(),
            found,
            ours,
        });
    }
    if has < head.file_bytes {
        return Err(truncated(head.file_bytes));
    }
    let manifest = read_manifest(file, &head, has).map_err(damaged)?;
    Ok((head, manifest))
}

/// The manifest, after every number of the header was found to be the one it must be.
fn read_manifest(file: &File, head: &Head, has: u64) -> Result<Manifest, String> {
    let same = |what: &str, found: u64, expected: u64| match found == expected {
        true => Ok(()),
        false => Err(format!("{what} is {found}, not {expected}")),
    };
    same("number of slots", head.slots.into(), SLOTS as u64)?;
    same("number of meters", head.meters.into(), METERS as u64)?;
    same(
        "offset of the manifest",
        head.manifest_offset,
        MANIFEST_OFFSET as u64,
    )?;
    if head.manifest_bytes > MAX_MANIFEST_BYTES.min(has.saturating_sub(MANIFEST_OFFSET as u64)) {
        return Err(format!("a manifest of {} bytes", head.manifest_bytes));
    }
    same(
        "offset of the weights",
        head.weights_offset,
        weights_offset(head.manifest_bytes),
    )?;
    let mut json = vec![0; head.manifest_bytes as usize];
    file.read_exact_at(&mut json, MANIFEST_OFFSET as u64)
        .map_err(|e| e.to_string())?;
    let manifest = Manifest::from_json(&json).map_err(|e| e.to_string())?;
    same("fingerprint", head.fingerprint, manifest.fingerprint())?;
    same("number of weights", head.used, manifest.len() as u64)?;
    same(
        "padded length",
        head.padded,
        padded_len(manifest.len()) as u64,
    )?;
    // No overflow: a manifest is limited to 2^40 weights.
    same(
        "length of the file",
        head.file_bytes,
        head.weights_offset + head.padded * 4,
    )?;
    same("real length of the file", has, head.file_bytes)?;
    if head.state == READY {
        same("checksum of the header", head.checksum, head.sum(&json))?;
    }
    Ok(manifest)
}

/// Refuses a buffer whose creator has not finished initialising it.
pub(super) fn check_state(path: &Path, head: &Head) -> Result<(), OpenError> {
    let (path, pid) = (path.to_path_buf(), head.creator_pid);
    match head.state {
        READY => Ok(()),
        INITIALISING
            if (Process {
                pid,
                start: head.creator_start,
            })
            .alive() =>
        {
            Err(OpenError::Initialising { path, pid })
        }
        INITIALISING => Err(OpenError::CreatorDied { path, pid }),
        other => Err(OpenError::Damaged {
            path,
            what: format!("state {other}"),
        }),
    }
}

impl Expect {
    /// Refuses a buffer of another kind of data, model or session than the caller's.
    pub(super) fn check(
        &self,
        path: &Path,
        head: &Head,
        manifest: &Manifest,
    ) -> Result<(), OpenError> {
        let path = path.to_path_buf();
        // First: other data has often another shape, and then makes another model too.
        if let Some(expected) = self.data.filter(|data| !data.agrees(&head.data())) {
            return Err(OpenError::OtherData {
                path,
                found: head.data(),
                expected,
            });
        }
        if let Some(expected) = self.fingerprint.filter(|&f| f != head.fingerprint) {
            let found_is = format!(
                "{} tensors, {} weights",
                manifest.tensors().len(),
                manifest.len()
            );
            return Err(OpenError::OtherModel {
                path,
                found: head.fingerprint,
                expected,
                found_is,
            });
        }
        if let Some(expected) = self.session.filter(|&s| s != head.session) {
            return Err(OpenError::Stale {
                path,
                found: head.session,
                expected,
            });
        }
        Ok(())
    }
}
