//! The CSV file: `node,solver,iteration,seconds,loss,test_loss,test_accuracy`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One measurement of one solver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurveRow {
    /// Node of the solver, from 0.
    pub node: u16,
    /// Solver of that node, from 0.
    pub solver: u32,
    /// Iterations that the solver has done.
    pub iteration: u64,
    /// Seconds since training began.
    pub seconds: f64,
    /// Loss on training images, if measured.
    pub loss: Option<f64>,
    /// Loss on test images, if measured.
    pub test_loss: Option<f64>,
    /// Share of the test images that were classified correctly, 0..=1, if measured.
    pub test_accuracy: Option<f64>,
}

const HEADER: &str = "node,solver,iteration,seconds,loss,test_loss,test_accuracy";

/// Why a file of rows could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CurveError {
    /// The file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has other columns.
    #[error("{}: is not a learning curve: its first line is {found:?} instead of {HEADER:?}; \
             move it away or name another file", path.display())]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// A line is not a row.
    #[error("{}: {source}; correct or remove that line", path.display())]
    Row {
        /// Path of the file.
        path: PathBuf,
        /// The line and what is wrong with it.
        source: csv::Error,
    },
}

impl CurveError {
    fn file(path: &Path) -> impl Fn(io::Error) -> CurveError + '_ {
        move |source| CurveError::File {
            path: path.to_owned(),
            source,
        }
    }
}

/// Appends rows to a file.
#[derive(Debug)]
pub struct CurveWriter {
    path: PathBuf,
    file: File,
}

impl CurveWriter {
    /// Opens the file to append to, or begins a new one. A half-written last line, left by a
    /// process that was killed, is removed.
    ///
    /// # Errors
    /// The file cannot be opened, or is not one of rows.
    pub fn append(path: &Path) -> Result<Self, CurveError> {
        let failed = CurveError::file(path);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(&failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(&failed)?;
        let whole = whole_lines(&bytes);
        // Of a file killed in its very first line only a beginning of the header is there. Any
        // other file without a line is not ours to cut.
        if !whole.is_empty() || !HEADER.as_bytes().starts_with(&bytes) {
            check_header(path, &bytes)?;
        }
        file.set_len(whole.len() as u64).map_err(&failed)?;
        file.seek(SeekFrom::End(0)).map_err(&failed)?;
        if whole.is_empty() {
            file.write_all(format!("{HEADER}\n").as_bytes())
                .map_err(&failed)?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes a row; it is in the file when this returns.
    ///
    /// # Errors
    /// The file cannot be written; then it is as it was before.
    pub fn write(&mut self, row: &CurveRow) -> Result<(), CurveError> {
        let row_failed = |source| CurveError::Row {
            path: self.path.clone(),
            source,
        };
        let mut line = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(Vec::new());
        line.serialize(row).map_err(row_failed)?;
        let line = line
            .into_inner()
            .map_err(|e| CurveError::file(&self.path)(e.into_error()))?;
        let failed = CurveError::file(&self.path);
        let before = self.file.stream_position().map_err(&failed)?;
        self.file.write_all(&line).map_err(|error| {
            // Half a row (the disk is full) would spoil the next one. If it cannot be cut either,
            // readers pass over it as long as it is the last.
            let _ = self.file.set_len(before);
            let _ = self.file.seek(SeekFrom::Start(before));
            failed(error)
        })
    }
}

/// The rows of a file, without a half-written last line.
///
/// # Errors
/// The file cannot be read, is not one of rows, or a line before the last is damaged.
pub fn read_rows(path: &Path) -> Result<Vec<CurveRow>, CurveError> {
    let bytes = std::fs::read(path).map_err(CurveError::file(path))?;
    let whole = whole_lines(&bytes);
    if whole.is_empty() && HEADER.as_bytes().starts_with(&bytes) {
        return Ok(Vec::new());
    }
    check_header(path, &bytes)?;
    csv::Reader::from_reader(whole)
        .into_deserialize()
        .collect::<Result<_, _>>()
        .map_err(|source| CurveError::Row {
            path: path.to_owned(),
            source,
        })
}

/// All up to the last end of a line.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |last| last + 1);
    &bytes[..end]
}

fn check_header(path: &Path, bytes: &[u8]) -> Result<(), CurveError> {
    let first = bytes
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    let first = first.strip_suffix(b"\r").unwrap_or(first);
    if first == HEADER.as_bytes() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(&first[..first.len().min(100)]).into_owned();
    Err(CurveError::Header {
        path: path.to_owned(),
        found,
    })
}
