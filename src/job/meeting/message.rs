//! What nodes say to each other when they meet, and how it travels.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::precision::Wish;
use super::super::world::{Seat, World};
use super::Card;
use crate::poseidon::{ClusterKey, secured};

/// Longest line, bytes.
const LINE_MAX: u64 = 65_536;
/// Time for the first words of a connection.
pub(super) const GREETING: Duration = Duration::from_secs(2);

/// What a node says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version of its program.
    pub(super) dogwild: String,
    /// What its launcher calls the job.
    pub(super) job: String,
    /// None: it asks for a number of a job that runs, and knows neither its size nor its name.
    pub(super) rank: Option<u16>,
    pub(super) size: u16,
    /// What must be the same on all nodes.
    pub(super) fields: BTreeMap<String, String>,
    /// What it is here for.
    #[serde(default)]
    pub(super) says: Says,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Says {
    /// The node takes part: the precision was given.
    #[default]
    Comes,
    /// It takes part, and wants this precision.
    Wants(Wish),
    /// It measures the link: all that follows is sent back.
    Measures,
}

impl Hello {
    /// That of a node.
    pub(super) fn of(card: &Card, says: Says) -> Self {
        Self {
            dogwild: env!("CARGO_PKG_VERSION").into(),
            job: card.world.job.clone(),
            rank: Some(card.world.rank),
            size: card.world.size,
            fields: card.fields.clone(),
            says,
        }
    }
}

/// What is said after that, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The other end may not take part, and why.
    Refused(String),
    /// The number of a node that had none. Nothing follows.
    Seat(Seat),
    /// It is to ask for its number again, and why. Nothing follows.
    Later(String),
    /// These nodes have yet to come.
    Waiting(Vec<u16>),
    /// All have come; the precision, if it was left to them.
    Begin(Option<Wish>),
    /// A test has reached the target: the job ends.
    End,
    /// Are you there? Said back, it means yes.
    There,
    /// Nothing of the cluster runs here, and it has the checkpoints of these clocks.
    Ready(Vec<u64>),
    /// The members of the cluster start.
    Round(Round),
}

/// A start of all members of a cluster on the reliable path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Where the coordinator listens, as HOST:PORT.
    pub coordinator: String,
    /// Whether they go on from checkpoints.
    pub resume: bool,
}

/// The way out of a connection.
pub(super) struct Line {
    to: Box<dyn Write + Send>,
    /// Which connection it is.
    pub(super) connection: u64,
    /// The address of its other end.
    pub(super) address: SocketAddr,
}

impl Line {
    /// Says a word; one that is not heard is lost with its connection.
    pub(super) fn say(&mut self, word: &Word) {
        let _ = say(&mut self.to, word);
    }

    /// Sends bytes that are not a word.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)
    }
}

/// Both ways of a connection.
pub(super) struct Connection {
    pub(super) from: Box<dyn BufRead + Send>,
    pub(super) line: Line,
    /// What ends the time for greetings.
    pub(super) patience: Patience,
}

/// A stream whose reads end at a time, until that is lifted.
struct Timed {
    stream: TcpStream,
    until: Arc<Mutex<Option<Instant>>>,
}

/// Lifts the limit of a connection's reads.
pub(super) struct Patience(Arc<Mutex<Option<Instant>>>);

impl Patience {
    /// The other end may say nothing for as long as it likes.
    pub(super) fn forever(&self) {
        self.set(None);
    }

    /// The other end has until then to say something.
    pub(super) fn until(&self, then: Instant) {
        self.set(Some(then));
    }

    fn set(&self, then: Option<Instant>) {
        if let Ok(mut until) = self.0.lock() {
            *until = then;
        }
    }
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let until = self.until.lock().map(|until| *until).unwrap_or_default();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        self.stream.read(to)
    }
}

impl Connection {
    /// To node 0.
    pub(super) fn calling(stream: TcpStream, key: Option<&ClusterKey>) -> io::Result<Self> {
        Self::new(stream, key, true, 0)
            .map_err(|error| io::Error::other(format!("it has another key, or none ({error})")))
    }

    /// Over `stream`, encrypted with `key`. The other end has [`GREETING`] for its first words.
    pub(super) fn new(
        stream: TcpStream,
        key: Option<&ClusterKey>,
        calls: bool,
        connection: u64,
    ) -> io::Result<Self> {
        let address = stream.peer_addr()?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(GREETING))?;
        let until = Arc::new(Mutex::new(Some(Instant::now() + GREETING)));
        let from = Timed {
            stream: stream.try_clone()?,
            until: until.clone(),
        };
        let (from, to): (Box<dyn BufRead + Send>, Box<dyn Write + Send>) = match key {
            None => (Box::new(BufReader::new(from)), Box::new(stream)),
            Some(key) => {
                let (from, to) = secured(from, stream, key, calls)?;
                (Box::new(BufReader::new(from)), Box::new(to))
            }
        };
        Ok(Self {
            from,
            line: Line {
                to,
                connection,
                address,
            },
            patience: Patience(until),
        })
    }
}

/// Writes one line, in one piece.
pub(super) fn say(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(what)? + "\n";
    to.write_all(text.as_bytes())
}

impl Connection {
    /// Says something other than a word.
    pub(super) fn greet(&mut self, hello: &Hello) -> io::Result<()> {
        say(&mut self.line.to, hello)
    }
}

/// Reads one line. `None`: the other end has closed.
pub(super) fn hear<T: for<'de> Deserialize<'de>>(from: &mut dyn BufRead) -> io::Result<Option<T>> {
    let mut text = String::new();
    from.take(LINE_MAX).read_line(&mut text)?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|_| io::Error::other("what was said is no message of a job"))
}

/// Where node 0 is to be met.
pub(super) fn resolve(world: &World) -> io::Result<SocketAddr> {
    resolve_at(&world.first, world.port)
}

/// The address of a host and port.
pub(super) fn resolve_at(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut found = (host, port).to_socket_addrs()?;
    let v4 = found.find(SocketAddr::is_ipv4);
    v4.ok_or_else(|| io::Error::other("it has no IPv4 address"))
}
