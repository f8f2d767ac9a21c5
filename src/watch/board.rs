//! Event files, which TensorBoard shows: scalars by step.
//!
//! Appends to a file of its own and touches nothing else. A file is a row of TFRecords (length, its
//! checksum, event, its checksum), an event is protobuf: `event.proto` and `summary.proto` of
//! TensorFlow. Invariant: an event is written by one call, so that a killed process leaves at most
//! one half-written record, the last, which readers pass over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};
use prost::Message;

/// Checksums of records are CRC-32C, turned and shifted, as records may hold checksums.
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
const MASK: u32 = 0xa282_ead8;

/// `Event` of event.proto, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `Summary` of summary.proto.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    /// It is one of several kinds of value: 0 has to be written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a new one in the folder `dir`, which it makes. Files of earlier runs stay:
    /// TensorBoard shows all of a folder as one.
    ///
    /// # Errors
    /// The folder or the file cannot be made.
    pub fn create(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let (seconds, pid) = (now_s() as u64, std::process::id());
        // TensorBoard knows event files by this part of the name.
        let name = |n: u32| format!("events.out.tfevents.{seconds:010}.dogwild.{pid}.{n}");
        for n in 0.. {
            let path = dir.join(name(n));
            match OpenOptions::new().create_new(true).append(true).open(&path) {
                Ok(file) => {
                    let mut events = Self { path, file };
                    events.write(&Event {
                        wall_time: now_s(),
                        file_version: Some("brain.Event:2".to_owned()),
                        ..Event::default()
                    })?;
                    return Ok(events);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars of one step, of now.
    ///
    /// # Errors
    /// The file cannot be written; then it is as it was before.
    pub fn scalars(&mut self, step: u64, scalars: &[(String, f32)]) -> io::Result<()> {
        let value = scalars.iter().map(|(tag, value)| Scalar {
            tag: tag.clone(),
            simple_value: Some(*value),
        });
        self.write(&Event {
            wall_time: now_s(),
            step: i64::try_from(step).unwrap_or(i64::MAX),
            file_version: None,
            summary: Some(Summary {
                value: value.collect(),
            }),
        })
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let record = record(&event.encode_to_vec());
        let before = self.file.metadata()?.len();
        self.file.write_all(&record).inspect_err(|_| {
            // Half a record (the disk is full) would hide all that follow.
            let _ = self.file.set_len(before);
        })
    }
}

fn now_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A TFRecord of `data`.
fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    let [of_len, of_data] = [len.as_slice(), data].map(|bytes| masked(bytes).to_le_bytes());
    [len.as_slice(), &of_len, data, &of_data].concat()
}

fn masked(bytes: &[u8]) -> u32 {
    CRC.checksum(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that TensorFlow's own writer makes of this event (checksums of the TFRecord
    /// document: CRC-32C of "123456789" is e3069283).
    #[test]
    fn a_record_is_as_documented() {
        assert_eq!(CRC.checksum(b"123456789"), 0xe306_9283);
        let event = Event {
            wall_time: 1.0,
            step: 3,
            file_version: None,
            summary: Some(Summary {
                value: vec![Scalar {
                    tag: "a".into(),
                    simple_value: Some(0.5),
                }],
            }),
        };
        let data = [
            9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, // 1: double 1.0
            0x10, 3, // 2: 3
            0x2a, 10, // 5: a summary
            0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0, 0x3f, // 1: its value: tag, 0.5
        ];
        assert_eq!(event.encode_to_vec(), data);
        let record = record(&data);
        assert_eq!(record[..8], 23_u64.to_le_bytes());
        assert_eq!(record[12..35], data);
        assert_eq!(record.len(), 8 + 4 + 23 + 4);
    }

    #[test]
    fn files_of_one_moment_have_names_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("a/b");
        let mut one = EventFile::create(&dir).expect("a file");
        let other = EventFile::create(&dir).expect("another");
        assert_ne!(one.path(), other.path());
        let before = fs::metadata(one.path()).expect("there").len();
        one.scalars(7, &[("loss".into(), 0.25)]).expect("written");
        assert!(fs::metadata(one.path()).expect("there").len() > before);
        let why = EventFile::create(Path::new("/proc/nowhere"));
        assert!(why.is_err());
    }
}
