//! How weights are to travel, where that is left to the nodes: the narrowest that one of them
//! needs, by its own steps and its link to node 0.
//!
//! Invariants: a job has one precision for as long as it runs; a node that goes on with its buffer
//! keeps that of the buffer, and all others follow it.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use super::super::precision::{Load, Wish};
use super::guest::CONNECT;
use super::message::{Connection, Hello, Says, Word, hear, resolve};
use super::{Shared, State};
use crate::node::SMALLER_MTU;
use crate::wire::Dtype;

/// Bytes of the first measurement; each one after it has twice as many.
const FIRST_BYTES: usize = 64 << 10;
/// Bytes of the last one.
const MOST_BYTES: usize = 8 << 20;
/// Bytes that are sent back at a time.
const PIECE: usize = 16 << 10;
/// A measurement that takes as long says enough.
const LONG_ENOUGH: Duration = Duration::from_millis(100);
/// Time for all of them.
const ALL_WITHIN: Duration = Duration::from_secs(4);
/// Time in which a node has its turn: after that it calls again.
const TURN_WITHIN: Duration = Duration::from_secs(60);

/// What a node says of the precision before the job begins.
#[derive(Clone, Copy, Debug)]
pub enum Precision {
    /// Its buffer has this one.
    Settled(Dtype),
    /// It is chosen, by this.
    Open(Load),
}

fn wish(precision: Dtype, settled: bool) -> Wish {
    Wish { precision, settled }
}

impl Shared {
    /// What this node wants as far as it knows without the link.
    pub(super) fn own_wish(&self) -> Option<Wish> {
        Some(match self.card.precision? {
            Precision::Settled(precision) => wish(precision, true),
            Precision::Open(load) => wish(load.precision(), false),
        })
    }

    /// What this node wants. One that calls node 0 measures the link first, once.
    ///
    /// # Errors
    /// Node 0 cannot be reached.
    pub(super) fn wish(&self) -> io::Result<Option<Wish>> {
        let load = match self.card.precision {
            Some(Precision::Open(load)) if self.card.world.rank != 0 => load,
            _ => return Ok(self.own_wish()),
        };
        if let Some(wish) = self.state().wish {
            return Ok(Some(wish));
        }
        let load = load.at_most(measure(self)?);
        let wanted = load.precision();
        if let Some(rate) = load.bytes_per_s {
            log::info!(
                "the link to node 0 carries {:.1} MB/s: weights get {:.1} steps old in {} ({:.1} in f32)",
                rate / 1e6,
                load.age_steps(wanted),
                wanted.name(),
                load.age_steps(Dtype::F32),
            );
        }
        let wish = wish(wanted, false);
        self.state().wish = Some(wish);
        Ok(Some(wish))
    }
}

impl State {
    /// On node 0: the job begins, with what its nodes want.
    pub(super) fn settle(&mut self, own: Option<Wish>) {
        let all = self.wishes.values().chain(&own).copied();
        self.settled = all.reduce(Wish::and).map(|wish| Wish {
            settled: true,
            ..wish
        });
        if let Some(Wish { precision, .. }) = self.settled {
            log::info!("weights travel in {}", precision.name());
        }
    }

    /// On node 0: why a node with this wish may not take part.
    pub(super) fn clash(&self, rank: u16, wish: Wish) -> Option<String> {
        let settled = self
            .settled
            .filter(|settled| wish.settled && *settled != wish)?;
        let [theirs, ours] = [wish, settled].map(|wish| wish.precision.name());
        Some(format!(
            "node {rank} goes on in {theirs}, and weights travel in {ours} in this job: start it without \
             its buffer and results"
        ))
    }
}

/// Bytes per second that the link to node 0 carries, there and back at the same time; none: node 0
/// is on this host.
pub(super) fn measure(shared: &Shared) -> io::Result<Option<f64>> {
    let address = resolve(&shared.card.world)?;
    let stream = TcpStream::connect_timeout(&address, CONNECT)?;
    if stream.local_addr()?.ip() == address.ip() {
        return Ok(None);
    }
    let mut connection = Connection::calling(stream, shared.key.as_ref())?;
    connection.greet(&Hello::of(&shared.card, Says::Measures))?;
    // Other nodes have their turns before.
    connection.patience.until(Instant::now() + TURN_WITHIN);
    match hear(&mut *connection.from)? {
        Some(Word::There) => {}
        Some(Word::Refused(why)) => {
            shared.state().refused = Some(why);
            return Err(io::Error::other("it refuses this node"));
        }
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    connection.patience.until(Instant::now() + ALL_WITHIN);
    let (mut bytes, mut rate) = (FIRST_BYTES, None);
    loop {
        let start = Instant::now();
        let mut left = bytes;
        let done = bounce(&mut connection, bytes, &mut left);
        let took = start.elapsed();
        match done {
            Ok(()) => rate = Some(bytes as f64 / took.as_secs_f64()),
            // Not thin: it carried what was said before.
            Err(ref error) if is_late(error) && rate.is_none() && left == bytes => {
                log::warn!(
                    "node 0 answers, but nothing of {} KiB came back from it within {} s: {SMALLER_MTU}",
                    bytes >> 10,
                    ALL_WITHIN.as_secs(),
                );
                return Ok(None);
            }
            // As much as that is known of a link that is too thin for the first.
            Err(ref error) if is_late(error) => {
                rate = rate.or(Some(bytes as f64 / took.as_secs_f64()))
            }
            Err(error) => return Err(error),
        }
        if done.is_err() || took >= LONG_ENOUGH || bytes >= MOST_BYTES {
            return Ok(rate);
        }
        bytes *= 2;
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// Sends so many bytes to who sends them back; `left` of them have not come.
fn bounce(connection: &mut Connection, bytes: usize, left: &mut usize) -> io::Result<()> {
    let Connection { from, line, .. } = connection;
    thread::scope(|scope| {
        let sends = scope.spawn(move || line.send(&vec![b' '; bytes]));
        let mut buffer = [0; PIECE];
        while *left > 0 {
            match from.read(&mut buffer[..(*left).min(PIECE)])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => *left -= more,
            }
        }
        sends.join().unwrap_or(Ok(()))
    })
}

/// On node 0: sends back what a node sends, one node at a time.
pub(super) fn send_back(shared: &Shared, mut connection: Connection) {
    let _turn = shared
        .measuring
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    connection.line.say(&Word::There);
    // The other end is late first.
    connection.patience.until(Instant::now() + 2 * ALL_WITHIN);
    let mut buffer = [0; PIECE];
    while let Ok(bytes @ 1..) = connection.from.read(&mut buffer) {
        if connection.line.send(&buffer[..bytes]).is_err() {
            return;
        }
    }
}
