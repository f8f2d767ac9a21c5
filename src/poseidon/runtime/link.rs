//! One TCP connection: a half that reads, and a half that writes through a thread of its own.
//!
//! A message's size is checked before anything is allocated for it. A peer that sends nothing for
//! [`SILENCE`] counts as dead, so writers send `Alive` when they have nothing else to send. Where a
//! connection ends, it tells what the peer may lack ([`unacknowledged`](super::unacknowledged)).

use std::io::{self, BufReader, BufWriter, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::queue::{Next, Queue, Queued};
use super::secure::{ClusterKey, DecryptingReader, EncryptingWriter, HandshakeError, handshake};
use super::sync::lock;
use super::unacknowledged::unacknowledged;
use crate::poseidon::{HEADER_LEN, Header, Member, Message, MessageKind, ParseError, Pool, Sizes};

/// A peer that sends nothing for this time counts as dead.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Parts of [`SILENCE`], in each of which this process must have run. A process that was stopped,
/// or got no processor for long, loses one part only: it could not have read what others sent.
const SLICES: u32 = 10;
/// Time after which a writer without messages sends `Alive`.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Most bytes of a message that the sending thread writes itself if nothing else waits.
const AT_ONCE: usize = 16 << 10;
/// Bytes that are gathered before a write, and bytes that are read ahead.
const BUFFER: usize = 64 << 10;

/// Why a connection ended, or must end.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The handshake failed.
    #[error("it has another key, or none: give all members the same key file")]
    Key,
    /// It ended without `Bye`.
    #[error("it closed the connection without a Bye message{}", .0.told())]
    Closed(NotArrived),
    /// It did not send its first message in time.
    #[error("it did not say in time who it is")]
    NoGreeting,
    /// Others that had not said who they are came after it.
    #[error("it did not say who it is, and others came")]
    GaveWay,
    /// No connection came about in time.
    #[error("no connection within {} s: the host is down, or a filter drops packets", SILENCE.as_secs())]
    Unreachable,
    /// Nothing arrived for [`SILENCE`].
    #[error("it has been silent for {} s{}", SILENCE.as_secs(), .0.told())]
    Silent(NotArrived),
    /// Bytes that are not a message.
    #[error("it does not speak the protocol: {0}")]
    Parse(#[from] ParseError),
    /// Its first message is not `Hello`.
    #[error("its first message is {0:?} instead of Hello")]
    NotHello(MessageKind),
    /// It is a member that should not connect here.
    #[error("it claims to be {0}, which is not expected here")]
    UnexpectedMember(Member),
    /// JSON that does not hold what its kind of message must hold.
    #[error("its message cannot be read: {0}")]
    Json(serde_json::Error),
    /// The socket failed otherwise.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let lacks = inner.copied().unwrap_or_default();
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent(lacks),
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => Self::Closed(lacks),
            _ => Self::Io(error),
        }
    }
}

impl From<HandshakeError> for LinkError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Key => Self::Key,
            HandshakeError::Io(error) => error.into(),
        }
    }
}

/// Bytes that were sent again and again, and that the host at the other end did not acknowledge.
#[derive(Clone, Copy, Debug, Default, thiserror::Error)]
#[error("{0} bytes did not arrive")]
pub struct NotArrived(u64);

impl NotArrived {
    /// What to look at, behind what became of the connection; empty: nothing is known.
    fn told(self) -> String {
        match self {
            Self(0) => String::new(),
            lacks => format!(
                ", and {lacks}: its host is down, or the path to it carries a smaller MTU than the interfaces \
                 of the hosts have"
            ),
        }
    }
}

/// The reading half of a connection.
pub(super) struct Incoming {
    stream: Box<dyn Read + Send>,
    sizes: Arc<Sizes>,
    pool: Pool,
}

impl Incoming {
    /// Blocks until the next message is there.
    pub(super) fn next(&mut self) -> Result<Message, LinkError> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let header = Header::parse(&head, &self.sizes)?;
        let read = |to: &mut [u8]| Ok(self.stream.read_exact(to)?);
        Message::read(&header, &self.pool, read)
    }

    /// Reads, and forgets, until the other end has closed: bytes that nothing has read would reset
    /// the connection, and a last message to the other end could be lost.
    pub(super) fn drain(&mut self) {
        while self.stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
    }

    /// Allows messages of a plan from now on, in memory of `pool`. Before that, only text is
    /// allowed.
    pub(super) fn expect(&mut self, sizes: Arc<Sizes>, pool: Pool) {
        self.sizes = sizes;
        self.pool = pool;
    }
}

/// A socket with a timeout of [`SILENCE`], in which only time counts that this process could use.
struct TimeoutSocket {
    stream: TcpStream,
}

impl TimeoutSocket {
    /// Repeats `attempt` until it does something, or has timed out once for each of [`SLICES`].
    fn retry_until_silent(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        for _ in 1..SLICES {
            match attempt() {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                moved => return moved,
            }
        }
        attempt()
    }
}

impl Read for TimeoutSocket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = Self::retry_until_silent(|| self.stream.read(to));
        let kind = match &read {
            Ok(0) => ErrorKind::UnexpectedEof,
            Err(error) => error.kind(),
            Ok(_) => return read,
        };
        match unacknowledged(&self.stream) {
            0 => read,
            bytes => Err(io::Error::new(kind, NotArrived(bytes))),
        }
    }
}

impl Write for TimeoutSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Self::retry_until_silent(|| self.stream.write(from))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::retry_until_silent(|| self.stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// What the writing thread shares with the threads that send.
struct Pipe {
    to: Mutex<BufWriter<Box<dyn Write + Send>>>,
    queue: Queue,
}

/// The writing half of a connection. Messages go out in the order in which they were sent, but for
/// weights that newer ones of the same pair replace while they wait.
pub(super) struct Link {
    pipe: Arc<Pipe>,
    writer: Option<JoinHandle<()>>,
    stream: TcpStream,
}

impl Link {
    /// Sends a message, without waiting for large ones. If the peer is gone the message is lost,
    /// and the reading half reports why.
    pub(super) fn send(&self, message: Arc<Message>) {
        if message.body.bytes().len() <= AT_ONCE && self.pipe.write_now(&message) {
            return;
        }
        self.send_later(message);
    }

    /// Leaves a message to the writing thread: for a thread that reads, which must never wait until
    /// the other end has read.
    pub(super) fn send_later(&self, message: Arc<Message>) {
        self.pipe.queue.push(message);
    }

    /// What has waited here.
    pub(super) fn queued(&self) -> Queued {
        self.pipe.queue.queued()
    }

    /// Lets the writing thread send what is queued, close this direction, and end.
    pub(super) fn close(&self) {
        self.pipe.queue.close();
    }

    /// Sends what is queued and closes this direction of the connection.
    pub(super) fn finish(&mut self) {
        self.close();
        if let Some(writer) = self.writer.take() {
            // A panic of the thread has been printed already.
            let _ = writer.join();
        }
    }

    /// True once the writing thread has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.writer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Closes both directions, so that a waiting reader returns.
    pub(super) fn cut(&self) {
        // It fails if the connection is closed already, which is as good.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Makes both halves of a connection and starts its writing thread. With a key the connection is
/// authenticated and encrypted; `initiator` is true on the side that has connected.
pub(super) fn open(
    stream: TcpStream,
    key: Option<&ClusterKey>,
    initiator: bool,
) -> Result<(Link, Incoming), LinkError> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE / SLICES))?;
    stream.set_write_timeout(Some(SILENCE / SLICES))?;
    let timeout_socket = |stream: TcpStream| TimeoutSocket { stream };
    let mut raw_read = timeout_socket(stream.try_clone()?);
    let mut raw_write = timeout_socket(stream.try_clone()?);
    let (read, write): (Box<dyn Read + Send>, Box<dyn Write + Send>) = match key {
        Some(key) => {
            let state = handshake(&mut raw_read, &mut raw_write, key, initiator)?;
            let sealed = EncryptingWriter::new(raw_write, state.clone());
            let raw_read = BufReader::with_capacity(BUFFER, raw_read);
            (
                Box::new(DecryptingReader::new(raw_read, state)),
                Box::new(sealed),
            )
        }
        None => {
            let raw_read = BufReader::with_capacity(BUFFER, raw_read);
            (Box::new(raw_read), Box::new(raw_write))
        }
    };
    let pipe = Arc::new(Pipe {
        to: Mutex::new(BufWriter::with_capacity(BUFFER, write)),
        queue: Queue::default(),
    });
    let (end, writes) = (stream.try_clone()?, pipe.clone());
    let writer = std::thread::Builder::new()
        .name("dogwild-write".into())
        .spawn(move || {
            // An error here is one of the connection, and the reading half reports it.
            let _ = writes.write_all();
            writes.queue.abandon();
            let _ = end.shutdown(Shutdown::Write);
        })?;
    let link = Link {
        pipe,
        writer: Some(writer),
        stream,
    };
    let incoming = Incoming {
        stream: read,
        sizes: Arc::default(),
        pool: Pool::default(),
    };
    Ok((link, incoming))
}

impl Pipe {
    /// Writes a small message without waking the writing thread, which would cost a tenth of a
    /// millisecond at the end of each step. False if others wait before it: the order must stay.
    fn write_now(&self, message: &Message) -> bool {
        let Ok(mut to) = self.to.try_lock() else {
            return false;
        };
        if !self.queue.is_idle() {
            return false;
        }
        // An error here is met by the writing thread, too, which then closes the connection.
        let _ = write(&mut to, message).and_then(|()| to.flush());
        true
    }

    /// Writes what is queued until the queue is closed. One message at a time is taken out, so that
    /// newer weights can replace all that wait.
    fn write_all(&self) -> io::Result<()> {
        loop {
            match self.queue.next(ALIVE_EVERY) {
                Next::Message(message) => {
                    let mut to = lock(&self.to);
                    write(&mut to, &message)?;
                    if self.queue.written() {
                        to.flush()?;
                    }
                }
                Next::Nothing => {
                    let mut to = lock(&self.to);
                    write(&mut to, &Message::bare(MessageKind::Alive, 0, 0))?;
                    to.flush()?;
                }
                Next::Closed => return lock(&self.to).flush(),
            }
        }
    }
}

/// Writes a message: a large one with its header in one system call, without a copy.
fn write(to: &mut BufWriter<Box<dyn Write + Send>>, message: &Message) -> io::Result<()> {
    let (header, payload) = (message.header(), message.body.bytes());
    if payload.len() < AT_ONCE {
        to.write_all(&header)?;
        return to.write_all(payload);
    }
    to.flush()?;
    let to = to.get_mut();
    let mut sent = 0;
    while sent < header.len() {
        let parts = [IoSlice::new(&header[sent..]), IoSlice::new(payload)];
        match to.write_vectored(&parts)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => sent += written,
        }
    }
    to.write_all(&payload[sent - header.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timeouts_in_a_row_count_as_silence() {
        let mut late = 0;
        let read = TimeoutSocket::retry_until_silent(|| {
            late += 1;
            match late < SLICES {
                true => Err(ErrorKind::WouldBlock.into()),
                false => Ok(7),
            }
        });
        assert_eq!(read.unwrap(), 7);
        let mut tried = 0;
        let silent = TimeoutSocket::retry_until_silent(|| {
            tried += 1;
            Err(ErrorKind::WouldBlock.into())
        });
        assert!(silent.is_err());
        assert_eq!(tried, SLICES);
        let reset = TimeoutSocket::retry_until_silent(|| Err(ErrorKind::ConnectionReset.into()));
        assert_eq!(reset.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
