//! One TCP connection: a half that reads, and a half that writes through a thread of its own.
//!
//! Messages are bounded before anything is allocated. Who says nothing for [`SILENCE`] is dead;
//! writers say `Alive` when they have nothing else to say.

use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::secure::{ClusterKey, DecryptingReader, EncryptingWriter, HandshakeError, handshake};
use super::sync::lock;
use crate::poseidon::{HEADER_LEN, Header, Member, Message, MessageKind, ParseError, Sizes};

/// A peer that sends nothing for so long is dead.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// It is counted in so many parts, each of which must pass while this process runs: who was stopped, or
/// got no processor, for long has not heard others be silent.
const SLICES: u32 = 10;
/// Time between two signs of life.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Bytes of a message that its sender writes itself if nothing else waits.
const AT_ONCE: usize = 16 << 10;
/// Bytes gathered before a write, and read ahead.
const BUFFER: usize = 64 << 10;

/// What is wrong with a connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The handshake failed.
    #[error("it has another key, or none: give all members the same key file")]
    Key,
    /// Ended without a goodbye.
    #[error("it closed the connection without a goodbye")]
    Closed,
    /// Nothing came for too long.
    #[error("it has been silent for {} s", SILENCE.as_secs())]
    Silent,
    /// Bytes that are no message.
    #[error("it does not speak the protocol: {0}")]
    Parse(#[from] ParseError),
    /// A message that does not belong there.
    #[error("it sent {0:?} where a greeting belongs")]
    NotHello(MessageKind),
    /// Somebody who does not belong there.
    #[error("it says it is {0}, which is not expected here")]
    UnexpectedMember(Member),
    /// A greeting that is none.
    #[error("its greeting cannot be read: {0}")]
    UnreadableHello(serde_json::Error),
    /// The socket.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => Self::Closed,
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

/// The half that reads.
pub(super) struct Incoming {
    stream: Box<dyn Read + Send>,
    sizes: Arc<Sizes>,
}

impl Incoming {
    /// The next message; blocks.
    pub(super) fn next(&mut self) -> Result<Message, LinkError> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let header = Header::parse(&head, &self.sizes)?;
        Message::read(&header, |to| Ok(self.stream.read_exact(to)?))
    }

    /// From now on messages of this plan are taken.
    pub(super) fn expect(&mut self, sizes: Arc<Sizes>) {
        self.sizes = sizes;
    }
}

/// A socket whose time-out is [`SILENCE`], of time in which this process could have heard.
struct TimeoutSocket {
    stream: TcpStream,
}

impl TimeoutSocket {
    /// Tries until something moves, or nothing has for all slices in a row.
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
        Self::retry_until_silent(|| self.stream.read(to))
    }
}

impl Write for TimeoutSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Self::retry_until_silent(|| self.stream.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Where the thread that writes and those that send meet.
struct Pipe {
    to: Mutex<BufWriter<Box<dyn Write + Send>>>,
    /// Messages sent and not yet written.
    pending: AtomicUsize,
}

/// The half that writes: messages go out in the order they were sent.
pub(super) struct Link {
    queue: Option<Sender<Arc<Message>>>,
    pipe: Arc<Pipe>,
    writer: Option<JoinHandle<()>>,
    stream: TcpStream,
}

impl Link {
    /// Sends a message. One to a peer that is gone is lost: the reading half will say so.
    pub(super) fn send(&self, message: Arc<Message>) {
        let Some(queue) = &self.queue else { return };
        if message.body.bytes().len() <= AT_ONCE && self.pipe.write_now(&message) {
            return;
        }
        self.pipe.pending.fetch_add(1, SeqCst);
        let _ = queue.send(message);
    }

    /// Sends what is left and ends this way of the connection.
    pub(super) fn finish(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A panic there has been reported.
            let _ = writer.join();
        }
    }

    /// Ends both ways: a reader that waits gets an end.
    pub(super) fn cut(&self) {
        // One that is closed already stays closed.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Makes both halves of a connection.
/// With a key it is authenticated and encrypted; `initiator` on the side that has connected.
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
        pending: AtomicUsize::new(0),
    });
    let (queue, waiting) = channel();
    let (end, writes) = (stream.try_clone()?, pipe.clone());
    let writer = std::thread::Builder::new()
        .name("dogwild-write".into())
        .spawn(move || {
            // The reading half notices what the writing half suffers from.
            let _ = writes.write_all(&waiting);
            let _ = end.shutdown(Shutdown::Write);
        })?;
    let link = Link {
        queue: Some(queue),
        pipe,
        writer: Some(writer),
        stream,
    };
    let incoming = Incoming {
        stream: read,
        sizes: Arc::default(),
    };
    Ok((link, incoming))
}

impl Pipe {
    /// Writes a small message without waking the thread that writes, which costs a tenth of a
    /// millisecond at the end of each step. Not if others wait before it: order is kept.
    fn write_now(&self, message: &Message) -> bool {
        let Ok(mut to) = self.to.try_lock() else {
            return false;
        };
        if self.pending.load(SeqCst) > 0 {
            return false;
        }
        // What fails here fails in the thread that writes, too, which then ends the connection.
        let _ = write(&mut *to, message).and_then(|()| to.flush());
        true
    }

    fn write_all(&self, queue: &Receiver<Arc<Message>>) -> io::Result<()> {
        loop {
            let message = match queue.recv_timeout(ALIVE_EVERY) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    let mut to = lock(&self.to);
                    write(&mut *to, &Message::bare(MessageKind::Alive, 0, 0))?;
                    to.flush()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return lock(&self.to).flush(),
            };
            let mut to = lock(&self.to);
            for message in std::iter::once(message).chain(queue.try_iter()) {
                write(&mut *to, &message)?;
                self.pending.fetch_sub(1, SeqCst);
            }
            to.flush()?;
        }
    }
}

fn write(to: &mut impl Write, message: &Message) -> io::Result<()> {
    to.write_all(&message.header())?;
    to.write_all(message.body.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_in_a_row_is_silence() {
        let mut late = 0;
        let heard = TimeoutSocket::retry_until_silent(|| {
            late += 1;
            match late < SLICES {
                true => Err(ErrorKind::WouldBlock.into()),
                false => Ok(7),
            }
        });
        assert_eq!(heard.unwrap(), 7);
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
