//! Node 0: listens, admits or refuses, and tells all when the job begins.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::precision::Wish;
use super::super::world::World;
use super::message::{Connection, Hello, Line, Says, Word, hear, resolve};
use super::precision::send_back;
use super::seats::seat;
use super::{Card, LOOK_EVERY, Shared, State};

/// Connections at a time that have said nothing yet.
const MOST_STRANGERS: usize = 64;
/// Time in which a node that is there says so: less than that in which a second one gives up.
const ANSWER: Duration = Duration::from_millis(700);

/// Begins to listen.
///
/// # Errors
/// The port is taken.
pub(super) fn listen(shared: &Arc<Shared>) -> Result<()> {
    let world = &shared.card.world;
    // Who is known by its name for itself has no others to wait for elsewhere.
    let known = resolve(world).map(|address| address.ip());
    let ip = match known {
        Ok(ip) if ip == IpAddr::V4(Ipv4Addr::LOCALHOST) => ip,
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let listener = TcpListener::bind((ip, world.port)).with_context(|| {
        format!(
            "node 0 cannot listen at port {} of {}: another job may be there; name another port, --join {}:PORT",
            world.port, world.first, world.first
        )
    })?;
    {
        let mut state = shared.state();
        state.waiting = missing(&shared.card, &state);
    }
    let shared = shared.clone();
    let strangers = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for stream in listener.incoming().flatten() {
            if strangers.fetch_add(1, Relaxed) >= MOST_STRANGERS {
                strangers.fetch_sub(1, Relaxed);
                continue;
            }
            let (shared, counted) = (shared.clone(), strangers.clone());
            let serve = move || serve(&shared, stream, &counted);
            let thread = std::thread::Builder::new().name("meeting-guest".into());
            if thread.spawn(serve).is_err() {
                strangers.fetch_sub(1, Relaxed);
            }
        }
    };
    let thread = std::thread::Builder::new().name("meeting".into());
    thread
        .spawn(accept)
        .map(drop)
        .context("no thread for the meeting")
}

/// One connection, from its greeting to its end.
fn serve(shared: &Shared, stream: TcpStream, strangers: &AtomicUsize) {
    let local = stream.local_addr().map(|address| address.ip());
    let greeted = greet(shared, stream);
    strangers.fetch_sub(1, Relaxed);
    let (mut connection, hello) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => return log::debug!("a stranger at the meeting: {error}"),
    };
    let (address, number) = (connection.line.address, connection.line.connection);
    let refused = refusal(&shared.card, &hello);
    let Some(rank) = hello.rank else {
        let answer = refused.map_or_else(|| seat(shared), Word::Refused);
        log::debug!("{address} asked for a number: {answer:?}");
        return connection.line.say(&answer);
    };
    if hello.says == Says::Measures && refused.is_none() {
        return send_back(shared, connection);
    }
    let wish = match hello.says {
        Says::Wants(wish) => Some(wish),
        Says::Comes | Says::Measures => None,
    };
    let clash = || shared.state().clash(rank, wish?);
    if let Some(why) = refused.or_else(|| taken(shared, rank)).or_else(clash) {
        log::warn!("refused {address} as node {rank}: {why}");
        return connection.line.say(&Word::Refused(why));
    }
    connection.patience.forever();
    let Connection { mut from, line, .. } = connection;
    if rank >= shared.card.world.size {
        log::info!("node {rank} joins, from {address}");
    } else {
        log::debug!("node {rank} has come from {address}");
    }
    admit(shared, rank, line, wish, local.ok());
    while let Ok(Some(word)) = hear::<Word>(&mut *from) {
        *shared.state().said.entry(rank).or_default() += 1;
        match word {
            Word::End => end(shared),
            Word::Ready(clocks) => {
                shared.state().ready.insert(rank, clocks);
            }
            _ => {}
        }
    }
    let mut state = shared.state();
    let is_it = |line: &Line| line.connection == number;
    if state.lines.get(&rank).is_some_and(is_it) {
        state.lines.remove(&rank);
        // It says so again when it is back.
        state.ready.remove(&rank);
        if !state.begun {
            state.waiting = missing(&shared.card, &state);
        }
    }
}

fn greet(shared: &Shared, stream: TcpStream) -> io::Result<(Connection, Hello)> {
    let number = {
        let mut state = shared.state();
        state.connections += 1;
        state.connections
    };
    let mut connection = Connection::new(stream, shared.key.as_ref(), false, number)?;
    let hello = hear(&mut *connection.from)?;
    let hello = hello.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok((connection, hello))
}

/// Why a node may not take part, by what it says of itself.
pub(super) fn refusal(own: &Card, hello: &Hello) -> Option<String> {
    let version = env!("CARGO_PKG_VERSION");
    let who = hello.rank.map_or_else(
        || "the node that asks to join".to_owned(),
        |rank| format!("node {rank}"),
    );
    if hello.dogwild != version {
        let theirs = &hello.dogwild;
        return Some(format!("{who} has dogwild {theirs}, node 0 has {version}"));
    }
    let wrong = hello.rank.and_then(|rank| wrong_place(own, hello, rank));
    wrong.or_else(|| other_job(own, hello, &who))
}

/// What is wrong with the place that a node takes for its own.
fn wrong_place(own: &Card, hello: &Hello, rank: u16) -> Option<String> {
    let World { size, job, .. } = &own.world;
    if hello.job != *job {
        return Some(format!(
            "node {rank} is of another job of the launcher: {:?}, node 0 is of {job:?}",
            hello.job.trim()
        ));
    }
    if hello.size != *size {
        return Some(format!(
            "node {rank} has {} nodes, node 0 has {size}",
            hello.size
        ));
    }
    let is_one = (1..own.places.max(*size)).contains(&rank);
    (!is_one).then(|| format!("a second node {rank} of {size}"))
}

/// What makes the job of `who` another one than that of node 0.
fn other_job(own: &Card, hello: &Hello, who: &str) -> Option<String> {
    let names = own.fields.keys().chain(hello.fields.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort();
    names.dedup();
    let differing = names.into_iter().filter_map(|name| {
        let [mine, theirs] = [own.fields.get(name), hello.fields.get(name)];
        let text = |value: Option<&String>| value.map_or("none", String::as_str).to_owned();
        (mine != theirs).then(|| {
            format!(
                "{name} is {} on {who} and {} on node 0",
                text(theirs),
                text(mine)
            )
        })
    });
    let differing: Vec<String> = differing.take(4).collect();
    (!differing.is_empty()).then(|| format!("another job: {}", differing.join(", ")))
}

/// Why not, by who is here. A node whose host is gone does not answer, and its place is free.
fn taken(shared: &Shared, rank: u16) -> Option<String> {
    let said = |state: &State| state.said.get(&rank).copied();
    let before = {
        let mut state = shared.state();
        state.lines.get_mut(&rank)?.say(&Word::There);
        said(&state)
    };
    let start = Instant::now();
    loop {
        {
            let state = shared.state();
            let line = state.lines.get(&rank)?;
            if said(&state) != before {
                return Some(format!(
                    "node {rank} is here already, from {}: two processes have this rank",
                    line.address
                ));
            }
        }
        if start.elapsed() >= ANSWER {
            return None;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Takes a node in, and begins the job if it was the last.
fn admit(shared: &Shared, rank: u16, line: Line, wish: Option<Wish>, local: Option<IpAddr>) {
    let own = shared.own_wish();
    let mut state = shared.state();
    state.lines.insert(rank, line);
    state.wishes.extend(wish.map(|wish| (rank, wish)));
    // Of several networks that of others than this host is the job's.
    if local.is_some_and(|ip| !ip.is_loopback()) || state.own.is_none() {
        state.own = local;
    }
    state.waiting = missing(&shared.card, &state);
    let of_the_beginning = state.lines.range(..shared.card.world.size);
    let here = 1 + of_the_beginning.count();
    let begins = !state.begun && here >= usize::from(shared.card.least);
    if begins {
        state.begun = true;
        state.settle(own);
    }
    let (begun, ended, settled) = (state.begun, state.ended, state.settled);
    let waiting = Word::Waiting(state.waiting.clone());
    for (node, line) in &mut state.lines {
        match (begun, begins || *node == rank) {
            (true, true) => line.say(&Word::Begin(settled)),
            (true, false) => {}
            (false, _) => line.say(&waiting),
        }
        if ended && *node == rank {
            line.say(&Word::End);
        }
    }
}

fn missing(card: &Card, state: &State) -> Vec<u16> {
    let nodes = 1..card.world.size;
    nodes
        .filter(|node| !state.lines.contains_key(node))
        .collect()
}

/// Notes that the job is to end, and tells all that can be told.
pub(super) fn end(shared: &Shared) {
    let mut state = shared.state();
    if !state.ended {
        state.ended = true;
        state
            .lines
            .values_mut()
            .for_each(|line| line.say(&Word::End));
    }
}
