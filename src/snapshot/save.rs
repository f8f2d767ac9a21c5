//! Weights to a file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use safetensors::tensor::{SafeTensors, View};
use safetensors::{Dtype, SafeTensorError};

use super::{SaveError, checksum, first_non_finite};
use crate::weights::{Manifest, WeightsView, kernels};

/// Writes the tensors of `manifest` from `w`, and `metadata` and a checksum with them, to `path`.
/// Writes a temporary file next to it first and renames that, so that `path` is the old file or the
/// new one.
///
/// # Errors
/// A weight is not finite, `w` is too short, or the file cannot be written.
pub fn save(
    path: &Path,
    manifest: &Manifest,
    w: WeightsView<'_>,
    mut metadata: HashMap<String, String>,
) -> Result<(), SaveError> {
    let mut tensors = Vec::with_capacity(manifest.tensors().len());
    for tensor in manifest.tensors() {
        let (end, weights) = (tensor.offset + tensor.len(), w.len());
        if end > weights {
            return Err(SaveError::Outside {
                name: tensor.name.clone(),
                end,
                weights,
            });
        }
        let w = w.slice(tensor.offset, tensor.len());
        tensors.push((
            tensor.name.as_str(),
            SharedTensor {
                shape: &tensor.shape,
                w,
            },
        ));
    }
    let format = |source| SaveError::Format {
        path: path.to_owned(),
        source,
    };
    checksum::note(&mut metadata);
    let mut bytes = safetensors::serialize(tensors, Some(metadata)).map_err(format)?;
    checksum::stamp(&mut bytes);
    // Checked in what will be written, not in weights that change meanwhile.
    check_finite(path, &bytes).map_err(format)??;
    write(path, &bytes).map_err(|source| SaveError::Write {
        path: path.to_owned(),
        source,
    })
}

/// A tensor of the buffer; its bytes are copied out when they are asked for.
struct SharedTensor<'a> {
    shape: &'a [usize],
    w: WeightsView<'a>,
}

impl View for SharedTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        kernels::copy_out_bytes(self.w, &mut bytes);
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        4 * self.w.len()
    }
}

/// Refuses weights that are not finite, in the bytes of a whole file.
fn check_finite(path: &Path, bytes: &[u8]) -> Result<Result<(), SaveError>, SafeTensorError> {
    for (name, tensor) in SafeTensors::deserialize(bytes)?.iter() {
        if let Some(index) = first_non_finite(tensor.data()) {
            let word = tensor.data().as_chunks::<4>().0[index];
            let (path, name, value) = (path.to_owned(), name.to_owned(), f32::from_le_bytes(word));
            return Ok(Err(SaveError::NonFinite {
                path,
                name,
                index,
                value,
            }));
        }
    }
    Ok(Ok(()))
}

/// Puts `bytes` at `path` at once and lastingly.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let temporary = folder.join(temporary_name(name.to_owned()));
    let result = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        // The first error is the one to tell; the file may not be there.
        let _ = fs::remove_file(&temporary);
        return result;
    }
    // Some file systems cannot sync a folder; the snapshot is whole all the same.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

fn write_new(path: &PathBuf, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A name that no other process and no other call of this one uses.
fn temporary_name(mut name: OsString) -> OsString {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Relaxed);
    name.push(format!(".{}-{call}.tmp", std::process::id()));
    name
}
