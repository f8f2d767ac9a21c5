//! A node other than 0: calls node 0 until it answers, and again if it was lost.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Shared;
use super::message::{Connection, Hello, Says, Word, hear, resolve};

/// Time for a connection to be made.
pub(super) const CONNECT: Duration = Duration::from_secs(2);
/// Time between two calls: at first, and once the job has begun.
const AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// Node 0, among the lines.
const FIRST: u16 = 0;

/// Begins to call.
///
/// # Errors
/// No thread can be started.
pub(super) fn call(shared: &Arc<Shared>) -> Result<()> {
    let shared = shared.clone();
    let calls = move || {
        while shared.state().refused.is_none() {
            if let Err(error) = talk(&shared) {
                shared.state().unreachable = Some(error.to_string());
            }
            let begun = shared.state().begun;
            std::thread::sleep(AGAIN[usize::from(begun)]);
        }
    };
    let thread = std::thread::Builder::new().name("meeting".into());
    thread
        .spawn(calls)
        .map(drop)
        .context("no thread for the meeting")
}

/// One connection, to its end.
fn talk(shared: &Shared) -> io::Result<()> {
    let says = shared.wish()?.map_or(Says::Comes, Says::Wants);
    let address = resolve(&shared.card.world)?;
    let stream = TcpStream::connect_timeout(&address, CONNECT)?;
    let local = stream.local_addr()?.ip();
    let mut connection = Connection::calling(stream, shared.key.as_ref())?;
    connection.greet(&Hello::of(&shared.card, says))?;
    connection.patience.forever();
    let Connection { mut from, line, .. } = connection;
    {
        let mut state = shared.state();
        (state.own, state.first) = (Some(local), Some(address.ip()));
        state.unreachable = None;
        let mut line = line;
        if state.ended {
            // It was said while there was no connection.
            line.say(&Word::End);
        }
        if let Some(clocks) = state.ready.get(&shared.card.world.rank) {
            line.say(&Word::Ready(clocks.clone()));
        }
        state.lines.insert(FIRST, line);
    }
    while let Some(word) = hear::<Word>(&mut *from)? {
        let mut state = shared.state();
        match word {
            Word::Refused(why) => {
                if state.begun {
                    log::error!("node 0 refuses this node, which goes on: {why}");
                }
                state.refused = Some(why);
            }
            Word::Waiting(nodes) => state.waiting = nodes,
            Word::Begin(settled) => {
                state.begun = true;
                state.settled = settled;
            }
            Word::Round(round) => state.round = Some(round),
            Word::Ready(_) | Word::Seat(_) | Word::Later(_) => {}
            Word::End => state.ended = true,
            Word::There => {
                if let Some(line) = state.lines.get_mut(&FIRST) {
                    line.say(&Word::There);
                }
            }
        }
    }
    shared.state().lines.remove(&FIRST);
    Ok(())
}
