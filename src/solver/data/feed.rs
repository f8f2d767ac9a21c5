//! A data set over the network: one host reads it, hosts without the files train on it.
//!
//! [`serve`] answers each connection with the whole set, [`fetch`] takes it. Pictures are bytes in
//! memory either way, so a solver on fetched data makes the very steps that one on files makes.
//! TCP, because all of it is needed; neither sealed nor encrypted.
//!
//! ```text
//! magic   16 bytes  "dogwild data 1\n\0"
//! length  u32       of the header
//! header  JSON      kind, name; of train and test: count, shape, classes
//! bytes             pixels and labels of train, then of test
//! hash    u64       xxh3 of those bytes
//! ```
//!
//! Numbers are little-endian. Invariant: nothing is taken that does not fit its header and hash,
//! and memory grows with what has come, not with what a header claims.

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{DataError, DataSet, Images};

const MAGIC: &[u8; 16] = b"dogwild data 1\n\0";
/// Longest header, bytes.
const HEADER_MAX: u32 = 4096;
/// Largest set, bytes.
const BYTES_MAX: u64 = 64 << 30;
/// Time that a feed which is not there yet is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two attempts, and of one.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// Silence after which the other side is given up.
const SILENCE: Duration = Duration::from_secs(20);
/// Receivers at a time; more have to wait until one has all.
const RECEIVERS_MAX: usize = 64;

/// What a set is, before its bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    kind: String,
    name: String,
    train: Part,
    test: Part,
}

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    count: usize,
    shape: [usize; 3],
    classes: usize,
}

impl Part {
    fn of(images: &Images) -> Self {
        Self {
            count: images.len(),
            shape: images.shape,
            classes: images.classes,
        }
    }

    /// Bytes of the pixels; `None`: the product of the header's numbers is too large.
    fn pixels(&self) -> Option<u64> {
        let sides = self.shape.iter().map(|side| *side as u64);
        let bytes = sides
            .chain([self.count as u64])
            .try_fold(1u64, u64::checked_mul)?;
        (bytes > 0 && bytes <= BYTES_MAX && (1..=256).contains(&self.classes)).then_some(bytes)
    }
}

/// A set made ready to be sent.
pub struct Feed {
    head: Vec<u8>,
    set: DataSet,
    hash: u64,
}

impl Feed {
    /// `set`, which `--data` calls `kind`.
    pub fn new(kind: &str, set: DataSet) -> Self {
        let header = Header {
            kind: kind.to_owned(),
            name: set.name.clone(),
            train: Part::of(&set.train),
            test: Part::of(&set.test),
        };
        let header = serde_json::to_vec(&header).expect("names and numbers");
        let mut head = MAGIC.to_vec();
        head.extend((header.len() as u32).to_le_bytes());
        head.extend(header);
        let mut hash = Xxh3::new();
        bytes_of(&set)
            .into_iter()
            .for_each(|part| hash.update(part));
        Self {
            head,
            hash: hash.digest(),
            set,
        }
    }

    /// Sends all of it.
    fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.head)?;
        for part in bytes_of(&self.set) {
            to.write_all(part)?;
        }
        to.write_all(&self.hash.to_le_bytes())?;
        to.flush()
    }
}

fn bytes_of(set: &DataSet) -> [&[u8]; 4] {
    let (train, test) = (&set.train, &set.test);
    [&train.pixels, &train.labels, &test.pixels, &test.labels]
}

/// Sends `feed` on each connection, until `stop` is set. Reports the address of each, and the error
/// if it did not get all.
///
/// # Errors
/// The listener broke.
pub fn serve(
    feed: &Arc<Feed>,
    listener: &TcpListener,
    stop: &AtomicBool,
    tell: impl Fn(SocketAddr, Option<io::Error>) + Clone + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let receivers = Arc::new(AtomicUsize::new(0));
    while !stop.load(Relaxed) {
        if receivers.load(Relaxed) >= RECEIVERS_MAX {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        match listener.accept() {
            Ok((stream, address)) => {
                receivers.fetch_add(1, Relaxed);
                let (feed, receivers, tell) = (feed.clone(), receivers.clone(), tell.clone());
                std::thread::spawn(move || {
                    tell(address, send(&feed, stream).err());
                    receivers.fetch_sub(1, Relaxed);
                });
            }
            Err(error) if is_passing(&error) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a later accept may succeed.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | Interrupted | ConnectionAborted | ConnectionReset
    )
}

fn send(feed: &Feed, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(SILENCE))?;
    feed.send(&mut stream)?;
    // Until the other side has read all and closes: else what is on its way might be cut off.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.read(&mut [0]).map(drop)
}

/// Takes the set that is fed at `address`, which is to be of `kind`. Waits for a feed that is not
/// there yet, for 20 s.
///
/// # Errors
/// No feed answers, it sends something else, or the connection breaks.
pub fn fetch(kind: &str, address: &str) -> Result<DataSet, DataError> {
    let wrong = |what: String| DataError::Feed {
        address: address.to_owned(),
        what,
    };
    let mut stream = connect(address).map_err(wrong)?;
    let header = receive_header(&mut stream).map_err(wrong)?;
    if header.kind != kind {
        return Err(wrong(format!(
            "feeds {}, not {kind}: ask for {}@{address}",
            header.kind, header.kind
        )));
    }
    receive(&mut stream, &header).map_err(wrong)
}

fn connect(address: &str) -> Result<TcpStream, String> {
    let end = Instant::now() + PATIENCE;
    let mut said = false;
    loop {
        let error = match attempt(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if Instant::now() >= end {
            return Err(format!(
                "no feed answered within {} s ({error}): start `dogwild feed` for this data there",
                PATIENCE.as_secs()
            ));
        }
        if !said {
            log::info!("waiting for the data that is fed at {address} ({error})");
            said = true;
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn attempt(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn broken(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the feed ended before all had come: try again".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing came for {} s", SILENCE.as_secs())
        }
        _ => format!("the connection broke: {error}"),
    }
}

fn receive_header(from: &mut impl Read) -> Result<Header, String> {
    let stranger =
        || "what answers there is no feed of dogwild's data, or of another version".to_owned();
    let mut head = [0; MAGIC.len() + 4];
    from.read_exact(&mut head).map_err(broken)?;
    let (magic, len) = head.split_at(MAGIC.len());
    let len = u32::from_le_bytes(len.try_into().expect("four bytes"));
    if magic != MAGIC || len > HEADER_MAX {
        return Err(stranger());
    }
    let mut header = vec![0; len as usize];
    from.read_exact(&mut header).map_err(broken)?;
    serde_json::from_slice(&header).map_err(|_| stranger())
}

fn receive(from: &mut impl Read, header: &Header) -> Result<DataSet, String> {
    let mut hash = Xxh3::new();
    let mut part = |part: &Part| -> Result<Images, String> {
        let pixels = part.pixels().ok_or("its header names impossible numbers")?;
        let mut bytes = |len: u64| -> Result<Vec<u8>, String> {
            let mut bytes = Vec::new();
            from.take(len).read_to_end(&mut bytes).map_err(broken)?;
            if (bytes.len() as u64) < len {
                return Err(broken(io::ErrorKind::UnexpectedEof.into()));
            }
            hash.update(&bytes);
            Ok(bytes)
        };
        let images = Images {
            pixels: bytes(pixels)?,
            labels: bytes(part.count as u64)?,
            shape: part.shape,
            classes: part.classes,
        };
        match images
            .labels
            .iter()
            .find(|label| usize::from(**label) >= part.classes)
        {
            None => Ok(images),
            Some(label) => Err(format!("label {label} is not below {}", part.classes)),
        }
    };
    let (train, test) = (part(&header.train)?, part(&header.test)?);
    let mut told = [0; 8];
    from.read_exact(&mut told).map_err(broken)?;
    if u64::from_le_bytes(told) != hash.digest() {
        return Err("what came is damaged (its hash differs): try again".to_owned());
    }
    if (train.shape, train.classes) != (test.shape, test.classes) {
        return Err("pictures to learn from and to test on differ in shape or classes".to_owned());
    }
    Ok(DataSet {
        train,
        test,
        name: header.name.clone(),
    })
}
