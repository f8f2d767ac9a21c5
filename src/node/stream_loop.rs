//! One node of a stream, turned by the program that it is part of: [`Streamer`] over a [`Link`].
//!
//! Holds the state machine, the link, a clock and the limit of rate. [`StreamLoop::step`] takes
//! what has come and sends what may go. It never blocks, spins or sleeps, and touches nothing of
//! the process (no signals, no privileges, no threads). `dogwild stream` is this loop with
//! counters, a log, naps and a buffer in shared memory; `examples/` has it without them.

use std::io;
use std::time::Duration;

use dogwild_net::{Link, ReceiveStats, Source, TransmitStats};

use super::clock::Clock;
use super::contacts::Contacts;
use super::port::{Paced, Port};
use crate::stream::{Counters, Streamer};
use crate::wire::{Frame, KIND_AT, Kind};

/// Positions sent before a step looks at receiving again, at most; twice as many frames are taken
/// before it looks at sending again.
const MOST_BATCH: usize = 128;
/// Longest and shortest time that [`StreamLoop::wait`] sleeps.
const WAIT: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(5));
/// Time between two looks where no limit says when more may go.
const LOOK: Duration = Duration::from_micros(500);

/// A frame waits no longer than twice this for others to the same node, ns, while more keep coming:
/// a full batch costs less per frame. A node to which few frames go would wait until its own
/// silence, take that for a queue, and send still less. So this is much less than the queue that a
/// flow window allows.
const GATHER_NS: u64 = 125_000;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it began, ns since the loop was made.
    pub at_ns: u64,
    /// Frames that were received.
    pub received: usize,
    /// Frames that were sent on the node's own account: positions, hellos, restores. Answers to
    /// what was received are not counted.
    pub sent: usize,
}

impl Step {
    /// True if there was nothing to do.
    pub fn is_idle(&self) -> bool {
        self.received == 0 && self.sent == 0
    }
}

/// A node of a stream. See the head of this file.
pub struct StreamLoop<'a> {
    streamer: Streamer<'a>,
    link: Link,
    rate: Option<Paced>,
    clock: Clock,
    batch: usize,
    contacts: Contacts,
    /// When frames that had waited were handed to the kernel last, ns.
    flushed_ns: u64,
    /// Frames that were ours to take.
    taken: u64,
    /// Sealed frames that came although this node has no key: since the last look, and where from.
    sealed: (u64, Option<Source>),
}

impl<'a> StreamLoop<'a> {
    /// A loop over `link`, which must carry frames of the size that `streamer` is configured for
    /// ([`chunk_weights_for`](crate::stream::chunk_weights_for)). It sends `rate_bytes_per_s` at
    /// most, headers included; `None`: what the link takes.
    pub fn new(streamer: Streamer<'a>, link: Link, rate_bytes_per_s: Option<f64>) -> Self {
        let frame_len = link.tx.mtu();
        // Half of a short range, so that both nodes have something on the way all the time.
        let range = streamer.ranges().begun_by(0).len();
        Self {
            rate: rate_bytes_per_s.map(|rate| Paced::new(rate, frame_len)),
            clock: Clock::start(),
            batch: (range / 2).clamp(8, MOST_BATCH),
            contacts: Contacts::default(),
            flushed_ns: 0,
            taken: 0,
            sealed: (0, None),
            streamer,
            link,
        }
    }

    /// Takes what has come, answers each position at once, sends what may go now, and hands all of
    /// it to the kernel.
    ///
    /// # Errors
    /// Of the link, if it does not work any more: see [`dogwild_net::Transmit::flush`].
    pub fn step(&mut self) -> io::Result<Step> {
        self.step_of(self.batch)
    }

    /// The same, with `most` positions at most.
    pub(super) fn step_of(&mut self, most: usize) -> io::Result<Step> {
        let most = most.min(self.batch);
        let at_ns = self.clock.now_ns();
        if let Some(rate) = &mut self.rate {
            rate.note(at_ns, self.link.tx.stats().bytes);
        }
        let received = self.receive(at_ns, 2 * most)?;
        let tx = self.link.tx.as_mut();
        self.contacts.poll(at_ns, &self.streamer, tx);
        let mut port = Port::new(tx, self.rate.as_mut());
        let sent = self.streamer.poll_transmit(at_ns, most, &mut port);
        // While frames come, more to send follows at once: full batches cost less per frame.
        // A transport whose batch is full does not wait for this.
        if received == 0 {
            self.link.tx.flush()?;
        } else if at_ns.saturating_sub(self.flushed_ns) >= GATHER_NS {
            self.flushed_ns = at_ns;
            self.link.tx.flush_old()?;
        }
        Ok(Step {
            at_ns,
            received,
            sent,
        })
    }

    fn receive(&mut self, now_ns: u64, most: usize) -> io::Result<usize> {
        let Link { tx, rx } = &mut self.link;
        let (streamer, rate) = (&mut self.streamer, &mut self.rate);
        let (taken, sealed) = (&mut self.taken, &mut self.sealed);
        let contacts = &mut self.contacts;
        rx.recv(most, &mut |source, bytes| {
            if bytes.get(KIND_AT) == Some(&(Kind::Seek as u8)) {
                let answered = contacts.take_seek(now_ns, source, bytes, streamer, tx.as_mut());
                *taken += u64::from(answered);
                return;
            }
            let mut port = Port::new(tx.as_mut(), rate.as_mut());
            if let Some(sender) = streamer.handle_frame(now_ns, bytes, &mut port) {
                tx.learn(sender, source);
                contacts.note_source(now_ns, sender, source, streamer);
                *taken += 1;
                if bytes[KIND_AT] == Kind::Contacts as u8
                    && let Ok(frame) = Frame::parse(bytes)
                {
                    contacts.take(now_ns, frame.payload, streamer, tx.as_mut());
                }
            }
            if !streamer.is_usual_length(bytes.len()) && looks_sealed(bytes) {
                *sealed = (sealed.0 + 1, Some(source));
            }
        })
    }

    /// Sleeps until a frame comes (true), or until more may go, 5 ms at most (false).
    ///
    /// # Errors
    /// Of the link.
    pub fn wait(&mut self) -> io::Result<bool> {
        // Zero: what is left of the budget is for answers.
        let pause = self.rate.as_ref().map(Paced::wait);
        let pause = pause.filter(|pause| !pause.is_zero()).unwrap_or(LOOK);
        let pause = pause.max(self.link.tx.ready_in());
        self.link.rx.wait(pause.clamp(WAIT.0, WAIT.1))
    }

    /// Hands what was sent so far to the kernel.
    ///
    /// # Errors
    /// Of the link, as [`step`](Self::step).
    pub fn flush(&mut self) -> io::Result<()> {
        self.link.tx.flush()
    }

    /// Whether frames may go as fast as the link takes them, at this moment.
    pub fn is_unlimited(&self) -> bool {
        self.rate.is_none() && self.link.tx.ready_in().is_zero()
    }

    /// Time since the loop was made, ns: that of [`Step::at_ns`].
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// What was sent, taken and dropped so far.
    pub fn counters(&self) -> &Counters {
        self.streamer.counters()
    }

    /// Whether every range has been seen: weights are those of the cluster from now on.
    pub fn ready(&self) -> bool {
        self.streamer.ready()
    }

    /// Tells the other nodes how many iterations this node has made: by them its deltas count.
    pub fn set_local_iterations(&mut self, iterations: u64) {
        self.streamer.set_local_iterations(iterations);
    }

    /// The state machine.
    pub fn streamer(&self) -> &Streamer<'a> {
        &self.streamer
    }

    /// The state machine, to take its reports.
    pub fn streamer_mut(&mut self) -> &mut Streamer<'a> {
        &mut self.streamer
    }

    /// What the link sent and received so far.
    pub fn link_stats(&mut self) -> (TransmitStats, ReceiveStats) {
        (self.link.tx.stats(), self.link.rx.stats())
    }

    /// Nodes to which copies of frames to the group go, because multicast does not reach them.
    pub fn copies(&self) -> usize {
        self.contacts.copies()
    }

    /// Frames that were for this node and valid.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Frames that the limit of rate held back.
    pub fn held_back(&self) -> u64 {
        self.rate.as_ref().map_or(0, |rate| rate.refused)
    }

    /// Sealed frames since the last call, and where the last one came from.
    pub fn take_sealed(&mut self) -> (u64, Option<Source>) {
        std::mem::take(&mut self.sealed)
    }
}

/// Whether a frame of ours has so much behind it that a seal must be there. None is so short that
/// Ethernet pads it.
#[cold]
fn looks_sealed(bytes: &[u8]) -> bool {
    Frame::parse(bytes).is_ok_and(|frame| {
        bytes.len() - frame.header.frame_len() >= dogwild_net::seal::OVERHEAD_BYTES
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use dogwild_net::{Receive, To, Transmit};

    use super::*;
    use crate::stream::Config;
    use crate::weights::{StreamState, WeightsView, padded_len};

    const FRAME_BYTES: usize = 1_000;

    /// Gathers, and counts how often it was told not to.
    struct Gathers(Arc<AtomicU64>);

    impl Transmit for Gathers {
        fn mtu(&self) -> usize {
            FRAME_BYTES
        }

        fn send(&mut self, _: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
            fill(&mut vec![0; len]);
            true
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.fetch_add(1, Relaxed);
            Ok(())
        }

        fn learn(&mut self, _: u16, _: Source) {}

        fn knows(&self, _: u16) -> bool {
            true
        }

        fn stats(&self) -> TransmitStats {
            TransmitStats::default()
        }
    }

    /// Always has a frame.
    struct NeverEmpty;

    impl Receive for NeverEmpty {
        fn recv(&mut self, _: usize, each: &mut dyn FnMut(Source, &[u8])) -> io::Result<usize> {
            each(Source::Memory(1), &[0; FRAME_BYTES]);
            Ok(1)
        }

        fn wait(&mut self, _: Duration) -> io::Result<bool> {
            Ok(true)
        }

        fn stats(&mut self) -> ReceiveStats {
            ReceiveStats::default()
        }
    }

    /// Frames to a node to which few go waited for a batch of them while those of another came: its
    /// window fell to the shortest and stayed there, and the other had the link.
    #[test]
    fn what_was_sent_leaves_while_frames_keep_coming() {
        let config = Config::new(0, 2, 1_000, FRAME_BYTES).expect("long enough");
        let memory: Vec<_> = (0..padded_len(1_000))
            .map(|_| std::sync::atomic::AtomicU32::new(0))
            .collect();
        let folder = tempfile::tempdir().expect("a folder");
        let spec = config.state_spec(memory.len());
        let path = folder.path().join("state");
        let (state, _) = StreamState::open_or_create(&path, &spec).expect("a state");
        let flushed = Arc::new(AtomicU64::new(0));
        let link = Link {
            tx: Box::new(Gathers(Arc::clone(&flushed))),
            rx: Box::new(NeverEmpty),
        };
        let streamer = Streamer::new(config, WeightsView::of(&memory), &state);
        let mut stream = StreamLoop::new(streamer, link, None);
        while stream.now_ns() < 2 * GATHER_NS {
            let step = stream.step().expect("the link works");
            assert_eq!(step.received, 1);
        }
        stream.step().expect("the link works");
        assert!(flushed.load(Relaxed) > 0);
    }
}
