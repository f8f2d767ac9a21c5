//! A file to weights.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{LoadError, checksum, first_non_finite};
use crate::weights::{Manifest, TensorInfo, WeightsView, kernels};

/// Bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;

/// Metadata by name.
type Notes = HashMap<String, String>;

/// Longest header, as the format says.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the tensors of `manifest` from the file at `path` into `w`, -0.0 as 0.0; returns the
/// file's metadata. Nothing is stored unless everything fits.
///
/// # Errors
/// The file cannot be read, is not of the format or is cut off; a tensor is missing, too many, of
/// another shape or dtype, or not finite; a checksum is wrong; `w` is too short.
pub fn load(
    path: &Path,
    manifest: &Manifest,
    w: WeightsView<'_>,
) -> Result<HashMap<String, String>, LoadError> {
    for tensor in manifest.tensors() {
        let (end, weights) = (tensor.offset + tensor.len(), w.len());
        if end > weights {
            return Err(LoadError::Outside {
                name: tensor.name.clone(),
                end,
                weights,
            });
        }
    }
    let (header, data, metadata) = read(path, manifest)?;
    let mut checked = Vec::with_capacity(manifest.tensors().len());
    for tensor in manifest.tensors() {
        let bytes = &data[place(path, &header, tensor)?];
        if let Some(index) = first_non_finite(bytes) {
            let value = f32::from_le_bytes(bytes.as_chunks::<4>().0[index]);
            let (path, name) = (path.to_owned(), tensor.name.clone());
            return Err(LoadError::NonFinite {
                path,
                name,
                index,
                value,
            });
        }
        checked.push((w.slice(tensor.offset, tensor.len()), bytes));
    }
    for (w, bytes) in checked {
        kernels::copy_in_bytes(w, bytes);
    }
    Ok(metadata)
}

/// Header, data and metadata, in which a checksum is right. The header says the tensors of
/// `manifest` and fits the file's length, so that no memory is taken for anything else.
fn read(path: &Path, manifest: &Manifest) -> Result<(Metadata, Vec<u8>, Notes), LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let has = file.metadata().map_err(failed)?.len();
    let header_len = read_header_len(path, &mut file, has)?;
    let raw = read_exactly(&mut file, header_len).map_err(failed)?;
    let header: Metadata = serde_json::from_slice(&raw).map_err(|e| LoadError::Format {
        path: path.to_owned(),
        reason: format!("its header is damaged: {e}"),
    })?;
    check_header(path, &header, manifest)?;
    // Of the size of the model, hence no overflow.
    let data_len = header.data_len() as u64;
    let expected = LENGTH_BYTES + header_len + data_len;
    if expected != has {
        return Err(LoadError::Length {
            path: path.to_owned(),
            expected,
            has,
        });
    }
    let data = read_exactly(&mut file, data_len).map_err(failed)?;
    let mut notes = header.metadata().clone().unwrap_or_default();
    checksum::check(&raw, &data, &mut notes).map_err(|_| LoadError::Checksum {
        path: path.to_owned(),
    })?;
    Ok((header, data, notes))
}

fn read_header_len(path: &Path, file: &mut File, has: u64) -> Result<u64, LoadError> {
    let format = |reason: &str| LoadError::Format {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if has < LENGTH_BYTES {
        return Err(format("it is too short"));
    }
    let mut len = [0; 8];
    file.read_exact(&mut len)
        .map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER_BYTES {
        return Err(format(
            "its first eight bytes are not the length of a header",
        ));
    }
    if LENGTH_BYTES + len > has {
        return Err(LoadError::Length {
            path: path.to_owned(),
            expected: LENGTH_BYTES + len,
            has,
        });
    }
    Ok(len)
}

fn read_exactly(file: &mut File, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).map_err(io::Error::other)?);
    file.take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == len {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Refuses a header that does not say exactly the tensors of `manifest`.
fn check_header(path: &Path, header: &Metadata, manifest: &Manifest) -> Result<(), LoadError> {
    let found: BTreeSet<String> = header.offset_keys().into_iter().collect();
    let expected: BTreeSet<String> = manifest.tensors().iter().map(|t| t.name.clone()).collect();
    let path_of = || path.to_owned();
    let missing: Vec<String> = expected.difference(&found).cloned().collect();
    if !missing.is_empty() {
        return Err(LoadError::Missing {
            path: path_of(),
            names: missing,
        });
    }
    let extra: Vec<String> = found.difference(&expected).cloned().collect();
    if !extra.is_empty() {
        return Err(LoadError::Extra {
            path: path_of(),
            names: extra,
        });
    }
    for tensor in manifest.tensors() {
        place(path, header, tensor)?;
    }
    Ok(())
}

/// Where a tensor's bytes lie in the data, if it is as the model has it.
fn place(path: &Path, header: &Metadata, tensor: &TensorInfo) -> Result<Range<usize>, LoadError> {
    let (path, name) = (path.to_owned(), tensor.name.clone());
    let Some(info) = header.info(&tensor.name) else {
        return Err(LoadError::Missing {
            path,
            names: vec![name],
        });
    };
    if info.shape != tensor.shape {
        let (found, expected) = (info.shape.clone(), tensor.shape.clone());
        return Err(LoadError::Shape {
            path,
            name,
            found,
            expected,
        });
    }
    if info.dtype != Dtype::F32 {
        return Err(LoadError::Dtype {
            path,
            name,
            found: info.dtype,
        });
    }
    Ok(info.data_offsets.0..info.data_offsets.1)
}
