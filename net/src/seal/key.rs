//! The key: 32 bytes from a file that only its owner can read.
//!
//! Touches one file. Invariants: no key material in `Debug` output or in an error. A file that
//! group or others can touch is refused before it is read. What was read is wiped from the buffers
//! of this file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mac::{KEY_BYTES, Mac, wipe};

/// Longest file that can hold a key: hexadecimal with a line end.
const FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;

/// A key that all nodes share.
#[derive(Clone)]
pub struct Key(Arc<Mac>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why a key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It does not exist, or this user may not open it.
    #[error("cannot open the key file {}: {error}; `head -c 32 /dev/urandom > FILE && chmod 600 FILE` makes one", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It cannot be read, or is a folder.
    #[error("cannot read the key file {}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Others can read or write it.
    #[error("the key file {} has mode {mode:03o}: its group or others can read or write it; `chmod 600` it, and make a new key if another user may have read it", path.display())]
    Mode {
        /// Path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is neither 32 bytes nor 64 hexadecimal digits.
    #[error("the key file {} is {problem}: a key is {KEY_BYTES} bytes, or {} hexadecimal digits", path.display(), 2 * KEY_BYTES)]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl Key {
    /// A key of random bytes. Never a password: nothing here makes guessing one slow.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Key(Arc::new(Mac::new(bytes)))
    }

    /// Reads a key file, see [`read_key`].
    ///
    /// # Errors
    /// See [`KeyError`]; each message says what to do.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let mut bytes = read_key(path.as_ref())?;
        let key = Key::new(&bytes);
        wipe(&mut bytes);
        Ok(key)
    }

    pub(super) fn mac(&self) -> &Mac {
        &self.0
    }
}

/// Reads a key file: 32 bytes, or 64 hexadecimal digits with a line end or without. On Unix it
/// must be a plain file that neither its group nor others can read or write.
///
/// # Errors
/// See [`KeyError`]; each message says what to do.
pub fn read_key(path: &Path) -> Result<[u8; KEY_BYTES], KeyError> {
    let file = File::open(path).map_err(|error| KeyError::Open {
        path: path.to_owned(),
        error,
    })?;
    let read_error = |error| KeyError::Read {
        path: path.to_owned(),
        error,
    };
    // Of the file that is open, not of what the name might stand for by now.
    let meta = file.metadata().map_err(read_error)?;
    let shape = |problem| KeyError::Shape {
        path: path.to_owned(),
        problem,
    };
    if !meta.is_file() {
        return Err(shape("no plain file"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let mode = meta.mode() & 0o777;
        if mode & 0o066 != 0 {
            return Err(KeyError::Mode {
                path: path.to_owned(),
                mode,
            });
        }
    }
    let mut bytes = Vec::with_capacity(FILE_BYTES_MAX + 1);
    let read = file
        .take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(read_error);
    let key = read.and_then(|_| parse(&bytes).map_err(shape));
    wipe(&mut bytes);
    key
}

fn parse(file: &[u8]) -> Result<[u8; KEY_BYTES], &'static str> {
    if let Ok(raw) = <&[u8; KEY_BYTES]>::try_from(file) {
        if raw.iter().all(|byte| *byte == 0) {
            return Err("all zeros");
        }
        return Ok(*raw);
    }
    let digits = file.strip_suffix(b"\n").unwrap_or(file);
    let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
    if digits.len() < 2 * KEY_BYTES {
        return Err("too short");
    }
    if digits.len() > 2 * KEY_BYTES {
        return Err("too long");
    }
    let mut raw = [0; KEY_BYTES];
    for (byte, pair) in raw.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| (pair[at] as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            wipe(&mut raw);
            return Err("64 bytes that are not all hexadecimal digits");
        };
        *byte = (high << 4 | low) as u8;
    }
    if raw.iter().all(|byte| *byte == 0) {
        return Err("all zeros");
    }
    Ok(raw)
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const RAW: [u8; KEY_BYTES] = *b"0123456789abcdef\x01\x02\x03\x04\x05\x06\x07\x08ABCDEFGH";

    fn with_file<T>(name: &str, content: &[u8], mode: u32, test: impl FnOnce(&Path) -> T) -> T {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, content).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        test(&path)
    }

    fn refusal(content: &[u8], mode: u32) -> String {
        with_file("key", content, mode, |path| {
            Key::from_file(path).expect_err("refused").to_string()
        })
    }

    fn tag(key: &Key) -> u128 {
        key.mac().tag(&[8; 16], b"some frame")
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_and_digits_are_the_same_key() {
        let of = |content: &[u8]| {
            let key = with_file("key", content, 0o600, |path| Key::from_file(path));
            tag(&key.expect("a key"))
        };
        let wanted = tag(&Key::new(&RAW));
        let digits = hex(&RAW);
        assert_eq!(of(&RAW), wanted);
        for text in [
            digits.clone(),
            format!("{digits}\n"),
            format!("{digits}\r\n"),
            digits.to_uppercase(),
        ] {
            assert_eq!(of(text.as_bytes()), wanted, "{text:?}");
        }
    }

    #[test]
    fn every_byte_of_the_key_counts() {
        let wanted = tag(&Key::new(&RAW));
        for at in 0..KEY_BYTES {
            let mut other = RAW;
            other[at] ^= 1;
            assert_ne!(tag(&Key::new(&other)), wanted, "byte {at}");
        }
    }

    #[test]
    fn a_file_that_others_can_touch_is_refused() {
        for mode in [0o640, 0o620, 0o604, 0o602, 0o644, 0o666, 0o440] {
            let text = refusal(&RAW, mode);
            assert!(
                text.contains(&format!("{mode:o}")) && text.contains("chmod 600"),
                "{text}"
            );
        }
        for mode in [0o600, 0o400, 0o700] {
            with_file("key", &RAW, mode, |path| Key::from_file(path)).expect("a key");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_reason() {
        let digits = hex(&RAW);
        let long = [7; 1000];
        let mut wrong = digits.clone().into_bytes();
        wrong[5] = b'g';
        for (content, reason) in [
            (&b""[..], "too short"),
            (&RAW[..31], "too short"),
            (&digits.as_bytes()[..63], "too short"),
            (&long[..], "too long"),
            (&long[..65], "too long"),
            (&wrong[..], "hexadecimal"),
            (&[0; 32][..], "all zeros"),
            (&[b'0'; 64][..], "all zeros"),
        ] {
            let text = refusal(content, 0o600);
            assert!(text.contains(reason) && text.contains("32 bytes"), "{text}");
        }
        let missing = Key::from_file("/nowhere/key")
            .expect_err("refused")
            .to_string();
        assert!(
            missing.contains("/nowhere/key") && missing.contains("makes one"),
            "{missing}"
        );
        let folder = Key::from_file("/").expect_err("refused").to_string();
        assert!(folder.contains("no plain file"), "{folder}");
    }

    #[test]
    fn nothing_of_the_key_is_shown() {
        assert_eq!(format!("{:?}", Key::new(&RAW)), "Key(..)");
        let mut wrong = hex(&RAW);
        wrong.replace_range(9..10, "g");
        let text = refusal(wrong.as_bytes(), 0o600);
        assert!(!text.contains(&wrong[10..20]), "{text}");
    }
}
