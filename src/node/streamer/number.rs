//! The number of a node that was given none: the one that its buffer had before, else a free one of
//! the job, which the other nodes tell.
//!
//! Touches the link, which nothing else uses yet, and leaves no address in it. Waits as long as no
//! node answers, and says so.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use dogwild_net::{Link, Source, To, Way};

use super::super::clock::Clock;
use super::super::ready::number_before;
use super::{StreamJob, StreamerError};
use crate::stream::Search;
use crate::weights::SharedWeights;
use crate::wire::{Contact, Frame, Kind, NO_NODE};

/// Time between two lines about what is waited for, ns; the first comes after it.
const SAY_EVERY_NS: u64 = 5_000_000_000;
/// A node that had a number before starts with it after so long, if none answers, ns.
const ALONE_NS: u64 = 300_000_000;
/// Frames that are looked at between two looks at the clock, and the longest sleep.
const BATCH: usize = 256;
const SLEEP: Duration = Duration::from_millis(5);

/// The number of the node that `job` streams; `None`: `stop` was set before it had one.
///
/// # Errors
/// There is none for it, or the link is broken.
pub(super) fn number(
    job: &StreamJob,
    shared: &SharedWeights,
    link: &mut Link,
    stop: &AtomicBool,
) -> Result<Option<u16>, StreamerError> {
    if job.node.is_some() {
        return Ok(job.node);
    }
    let had = number_before(shared);
    let shape = (job.nodes, job.places);
    let mut search = Search::new(shared.session(), shared.identity(), shape, had);
    let mut known = BTreeSet::new();
    let found = find(&mut search, had, link, &mut known, stop);
    for node in known {
        link.tx.forget(node);
    }
    let found = found?;
    match (found, had) {
        (Some(node), None) => log::info!("this host is node {node} of the job, which was free"),
        (Some(node), Some(_)) => log::info!("this host is node {node} of the job, as before"),
        (None, _) => {}
    }
    Ok(found)
}

fn find(
    search: &mut Search,
    had: Option<u16>,
    link: &mut Link,
    known: &mut BTreeSet<u16>,
    stop: &AtomicBool,
) -> Result<Option<u16>, StreamerError> {
    let clock = Clock::start();
    let mut say_ns = SAY_EVERY_NS;
    while !stop.load(Relaxed) {
        let now_ns = clock.now_ns();
        if let Some((header, seek)) = search.poll(now_ns) {
            link.tx.send(To::All, header.frame_len(), &mut |slot| {
                seek.emit(header.emit(slot).1);
            });
            link.tx.flush()?;
        }
        hear(search, now_ns, link, known)?;
        if let Some(node) = search.number(now_ns)? {
            return Ok(Some(node));
        }
        if search.heard() == 0 && had.is_some() && now_ns >= ALONE_NS {
            return Ok(had);
        }
        if now_ns >= say_ns {
            say_ns = now_ns + SAY_EVERY_NS;
            match search.heard() {
                0 => log::warn!(
                    "waiting for a node of the job, which says what numbers are free: none answers; nodes that begin a \
                     job need --node K, those that multicast does not reach --join HOST"
                ),
                heard => log::info!("waiting for {heard} nodes to agree on the number of this one"),
            }
        }
        link.rx.wait(SLEEP)?;
    }
    Ok(None)
}

/// Takes what has come. Seeks go from then on to each node that was heard, or heard of.
fn hear(
    search: &mut Search,
    now_ns: u64,
    link: &mut Link,
    known: &mut BTreeSet<u16>,
) -> Result<(), StreamerError> {
    let Link { tx, rx } = link;
    let mut refused = None;
    rx.recv(BATCH, &mut |source, bytes| {
        let Ok(frame) = Frame::parse(bytes) else {
            return;
        };
        match search.hear(now_ns, &frame) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                refused = Some(error);
                return;
            }
        }
        let mut learn = |node: u16, source: Source| {
            if node < NO_NODE && known.insert(node) {
                tx.learn(node, source);
                tx.set_way(node, Way::Rest);
            }
        };
        learn(frame.header.sender, source);
        if frame.header.kind == Kind::Contacts {
            for contact in Contact::parse(frame.payload).unwrap_or_default() {
                learn(contact.node, Source::Socket(contact.address));
            }
        }
    })?;
    refused.map_or(Ok(()), |error| Err(error.into()))
}
