//! Numbers for nodes that join a job without one: node 0 gives the first that no node has.
//!
//! A node has its number while it is connected, and while the streamer of node 0 takes it for one
//! of the job. So a node that is silent keeps its number, for it may be back, and one that has left
//! in order does not. A number that was given is kept for a while for who got it.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::super::world::{Door, Seat, World};
use super::guest::CONNECT;
use super::message::{Connection, Hello, Says, Word, hear, resolve_at};
use super::{LOOK_EVERY, SAY_AFTER, SAY_EVERY, Shared};
use crate::node::Stop;
use crate::poseidon::ClusterKey;
use crate::watch::PeerMeter;
use crate::weights::SharedWeights;

/// Time in which who got a number is to come with it.
const COMES_WITHIN: Duration = Duration::from_secs(60);
/// Time between two calls.
const AGAIN: Duration = Duration::from_millis(500);

/// A number for a node that asks for one, and is one of the job.
pub(super) fn seat(shared: &Shared) -> Word {
    let World { size, job, .. } = &shared.card.world;
    if shared.card.places <= *size {
        return Word::Refused(
            "the job has no place for nodes that join: begin it with --places N, more than its nodes".into(),
        );
    }
    let own = SharedWeights::watch(&shared.card.buffer).ok();
    let mut state = shared.state();
    let ready = own
        .as_ref()
        .is_some_and(|own| own.globals().ready.load(Relaxed) != 0);
    // Before that it may not have heard of all nodes.
    if !(state.begun && ready) {
        return Word::Later("node 0 to be ready".into());
    }
    let members: Vec<u16> = own.map_or_else(Vec::new, |own| members(&own));
    state.given.retain(|_, at| at.elapsed() < COMES_WITHIN);
    let is_free = |rank: &u16| {
        let connected = state.lines.contains_key(rank);
        !connected && !state.given.contains_key(rank) && !members.contains(rank)
    };
    let Some(rank) = (*size..shared.card.places).find(is_free) else {
        let places = shared.card.places;
        return Word::Refused(format!(
            "all {places} places of the job are taken, those of silent nodes too: begin it with more (--places N)"
        ));
    };
    state.given.insert(rank, Instant::now());
    Word::Seat(Seat {
        rank,
        size: *size,
        job: job.clone(),
    })
}

/// Other nodes of the job, as far as the streamer of this buffer knows.
fn members(own: &SharedWeights) -> Vec<u16> {
    let peers = own.peers().into_iter();
    peers
        .filter(|(_, words)| PeerMeter::Member.of(words) != 0)
        .map(|(node, _)| node)
        .collect()
}

/// Asks node 0 of the job that runs at `door` for a number, for a node with these `fields`, and
/// says for what it waits. `None`: a signal came.
///
/// # Errors
/// The job is another one, or has no place.
pub fn ask_for_a_seat(
    door: &Door,
    fields: &BTreeMap<String, String>,
    key: Option<&ClusterKey>,
    stop: &Stop,
) -> Result<Option<Seat>> {
    let Door { first, port } = door;
    let mut due = Instant::now() + SAY_AFTER;
    while stop.signal().is_none() {
        let why = match ask(door, fields, key) {
            Ok(Word::Seat(seat)) => return Ok(Some(seat)),
            Ok(Word::Refused(why)) => bail!("{why}"),
            Ok(Word::Later(why)) => why,
            Ok(_) => format!("node 0 at {first}, port {port} (it answers something else)"),
            Err(error) => format!("node 0 at {first}, port {port} ({error})"),
        };
        if Instant::now() >= due {
            due = Instant::now() + SAY_EVERY;
            log::info!("waiting for {why}");
        }
        let again = Instant::now() + AGAIN;
        while stop.signal().is_none() && Instant::now() < again {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(None)
}

fn ask(
    door: &Door,
    fields: &BTreeMap<String, String>,
    key: Option<&ClusterKey>,
) -> io::Result<Word> {
    let address = resolve_at(&door.first, door.port)?;
    let stream = TcpStream::connect_timeout(&address, CONNECT)?;
    let mut connection = Connection::calling(stream, key)?;
    connection.greet(&Hello {
        dogwild: env!("CARGO_PKG_VERSION").into(),
        job: String::new(),
        rank: None,
        size: 0,
        fields: fields.clone(),
        says: Says::Comes,
    })?;
    // Who has no key is sent away without a word.
    let answer = hear(&mut *connection.from).ok().flatten();
    answer
        .ok_or_else(|| io::Error::other("it says nothing: has the job another key, or one at all?"))
}
