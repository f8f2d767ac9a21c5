//! A checksum within a safetensors file: a note in its metadata, over every byte of the file.
//!
//! Pure: bytes in, bytes out. The note is a hash (xxh3) of the whole file with its own digits as
//! zeros. Files of other programs have none and are taken as they are. A second note says who wrote
//! the file, so that one whose checksum has lost its name is not taken for a foreign one.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

/// The notes that every file of ours has: who wrote it, and the place of the checksum.
const WRITER: (&str, &str) = ("writer", "dogwild");
const CHECKSUM: (&str, &str) = ("checksum", "0000000000000000");

/// Bytes before the header: its length.
const LENGTH_BYTES: usize = 8;

/// Why a file was not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong;

/// Adds the notes to those that a file shall have.
pub(crate) fn note(metadata: &mut HashMap<String, String>) {
    for (name, value) in [WRITER, CHECKSUM] {
        metadata.insert(name.into(), value.into());
    }
}

/// Sets the checksum of a whole file whose metadata has the notes.
pub(crate) fn stamp(file: &mut [u8]) {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return;
    };
    let len = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some(at) = rest.get(..len).and_then(digits) else {
        return;
    };
    let at = LENGTH_BYTES + at..LENGTH_BYTES + at + CHECKSUM.1.len();
    file[at.clone()].copy_from_slice(CHECKSUM.1.as_bytes());
    let mut hash = Xxh3::new();
    hash.update(file);
    file[at].copy_from_slice(format!("{:016x}", hash.digest()).as_bytes());
}

/// Checks the bytes of a file, and takes the notes out of its metadata.
pub(crate) fn check(
    header: &[u8],
    data: &[u8],
    metadata: &mut HashMap<String, String>,
) -> Result<(), Wrong> {
    let ours = metadata.get(WRITER.0).is_some_and(|name| name == WRITER.1);
    let Some(noted) = metadata.get(CHECKSUM.0) else {
        return if ours { Err(Wrong) } else { Ok(()) };
    };
    let mut blank = header.to_vec();
    let at = digits(header).ok_or(Wrong)?;
    blank[at..at + CHECKSUM.1.len()].copy_from_slice(CHECKSUM.1.as_bytes());
    let mut hash = Xxh3::new();
    hash.update(&(header.len() as u64).to_le_bytes());
    hash.update(&blank);
    hash.update(data);
    if *noted != format!("{:016x}", hash.digest()) {
        return Err(Wrong);
    }
    metadata.remove(WRITER.0);
    metadata.remove(CHECKSUM.0);
    Ok(())
}

/// Where the digits of the checksum stand in a header, if it has them as we write them.
fn digits(header: &[u8]) -> Option<usize> {
    let name = format!("\"{}\":\"", CHECKSUM.0);
    let found = header
        .windows(name.len())
        .position(|window| window == name.as_bytes())?;
    let at = found + name.len();
    (header.get(at + CHECKSUM.1.len()) == Some(&b'"')).then_some(at)
}
