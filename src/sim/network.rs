//! The virtual network: frames on the way, what becomes of them, and the inboxes of nodes that do
//! not look.
//!
//! Everything follows from the seed and the order of the calls.

use std::ops::Range;
use std::sync::Arc;

use dogwild_net::fault::{BurstLoss, Bursts};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::Fleet;
use super::limit::{Limit, Limits};
use super::queue::Queue;
use super::trace::{Told, Trace};
use super::traffic::Meter;
use crate::weights::kernels;

/// What waits for a node that is paused, bytes; what comes after that is lost. As much as a socket
/// of `udp` asks for.
pub const INBOX_BYTES: usize = 16 << 20;

/// What the virtual network does to each delivery, independently for every receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Probability that a frame is lost, 0 to 1.
    pub drop: f64,
    /// Losses that come in bursts, in addition to `drop`; each way from a node to another is good
    /// or bad by itself.
    pub bursts: Bursts,
    /// Probability that a bit of it is flipped.
    pub corrupt: f64,
    /// Probability that it arrives twice.
    pub duplicate: f64,
    /// Probability that it is held back by up to `reorder_ns`.
    pub reorder: f64,
    /// Longest hold-back, ns.
    pub reorder_ns: u64,
    /// Time on the way, ns.
    pub delay_ns: u64,
    /// Probability that no transmit slot is free.
    pub no_slot: f64,
    /// Longest time until the adapter reads the weights of a position in the buffer, ns; 0: they
    /// are copied when the position is sent.
    pub unread_ns: u64,
    /// What each node may send. Of one way ([`World::set_way`](super::World::set_way)): what may
    /// pass there, in addition.
    pub limit: Option<Limit>,
    /// What each node can receive: a queue in front of it, which drops what does not fit. Not of
    /// one way.
    pub receive: Option<Limit>,
}

/// The way from one node to another.
struct Way {
    faults: Faults,
    bursts: BurstLoss,
    /// Whether it has a limit of its own.
    limited: bool,
}

/// Bytes of a frame, which many receivers share.
pub(super) type Bytes = Arc<[u8]>;

/// Where a frame on its way goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// To the receiver.
    Node,
    /// To the queue in front of the receiver. A frame that will be lost behind it takes its place
    /// there too.
    Queue { from: u16, lost: bool },
}

/// A frame on its way: receiver, where it goes, bytes.
type OnTheWay = (u16, Next, Bytes);

/// A position whose weights the adapter of its sender has yet to read.
pub(super) struct Unread {
    pub(super) due_ns: u64,
    pub(super) ticket: u64,
    pub(super) from: u16,
    pub(super) head: Vec<u8>,
    pub(super) weights: Range<usize>,
}

/// Where frames wait for a node that is paused.
#[derive(Default)]
struct Inbox {
    paused: bool,
    frames: Vec<Bytes>,
    bytes: usize,
}

impl Inbox {
    /// Keeps a frame, if there is room.
    fn keep(&mut self, frame: Bytes) {
        if self.bytes + frame.len() <= INBOX_BYTES {
            self.bytes += frame.len();
            self.frames.push(frame);
        }
    }
}

/// The network: frames on the way and the source of chance.
pub(super) struct Network {
    pub(super) faults: Faults,
    nodes: u16,
    seed: u64,
    pub(super) now_ns: u64,
    /// Tickets that were given for positions in the buffer.
    pub(super) tickets: u64,
    pub(super) rng: Xoshiro256PlusPlus,
    on_the_way: Queue<OnTheWay>,
    pub(super) unread: Vec<Unread>,
    /// From each node to each.
    ways: Vec<Way>,
    /// The queues of ways that have a limit of their own.
    queues: Limits,
    pub(super) meter: Meter,
    inboxes: Vec<Inbox>,
    /// Per node, the frame in whose send it is killed, counted from now on.
    pub(super) kills: Vec<Option<u32>>,
    /// What went to all nodes, for another listener on the wire.
    pub(super) heard: Option<Vec<Vec<u8>>>,
    /// Where all that happens is written, if it is.
    pub(super) trace: Option<Trace>,
    pub(super) limits: Limits,
    /// The queues in front of receivers.
    receive: Limits,
}

impl Network {
    pub(super) fn new(faults: Faults, nodes: u16, seed: u64, meter: Meter) -> Self {
        let mut network = Self {
            faults,
            nodes,
            seed,
            now_ns: 0,
            tickets: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            on_the_way: Queue::new(),
            unread: Vec::new(),
            ways: Vec::new(),
            queues: Limits::new(usize::from(nodes) * usize::from(nodes)),
            meter,
            inboxes: (0..nodes).map(|_| Inbox::default()).collect(),
            kills: vec![None; usize::from(nodes)],
            heard: None,
            trace: None,
            limits: Limits::new(usize::from(nodes)),
            receive: Limits::new(usize::from(nodes)),
        };
        network.set_faults(faults);
        network
    }

    /// What goes wrong from now on. All ways are good at first.
    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        let ways = usize::from(self.nodes) * usize::from(self.nodes);
        self.ways = (0..ways)
            .map(|way| Way {
                faults,
                bursts: self.bursts_of(way, faults),
                limited: false,
            })
            .collect();
    }

    /// What goes wrong on one way from now on, and what may pass there.
    pub(super) fn set_way(&mut self, from: u16, to: u16, faults: Faults) {
        let way = self.way(from, to);
        self.ways[way] = Way {
            faults,
            bursts: self.bursts_of(way, faults),
            limited: faults.limit.is_some(),
        };
    }

    fn bursts_of(&self, way: usize, faults: Faults) -> BurstLoss {
        let apart = (way as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        BurstLoss::new(faults.bursts, self.seed ^ apart)
    }

    fn way(&self, from: u16, to: u16) -> usize {
        usize::from(from) * usize::from(self.nodes) + usize::from(to)
    }

    /// The clock goes on.
    pub(super) fn step(&mut self, ns: u64) {
        self.now_ns += ns;
        self.on_the_way.note_step(ns);
    }

    /// A frame that has arrived, and at whom; `None`: no more at this time.
    pub(super) fn next_due(&mut self) -> Option<(u16, Bytes)> {
        loop {
            let (due, (to, next, bytes)) = self.on_the_way.pop_due(self.now_ns)?;
            if let Next::Queue { from, lost } = next {
                self.queue_at_receiver(due, from, to, lost, bytes);
                continue;
            }
            let inbox = &mut self.inboxes[usize::from(to)];
            if !inbox.paused {
                return Some((to, bytes));
            }
            inbox.keep(bytes);
        }
    }

    pub(super) fn pause(&mut self, node: u16) {
        self.inboxes[usize::from(node)].paused = true;
    }

    pub(super) fn go_on(&mut self, node: u16) {
        for frame in std::mem::take(&mut self.inboxes[usize::from(node)]).frames {
            self.push(self.now_ns, node, Next::Node, frame);
        }
    }

    pub(super) fn is_paused(&self, node: u16) -> bool {
        self.inboxes[usize::from(node)].paused
    }

    fn push(&mut self, due_ns: u64, to: u16, next: Next, bytes: Bytes) {
        self.on_the_way.push(due_ns, (to, next, bytes));
    }

    /// A frame of `from` has come to the queue in front of `to`, at `at_ns`.
    fn queue_at_receiver(&mut self, at_ns: u64, from: u16, to: u16, lost: bool, bytes: Bytes) {
        let (limit, queue) = (self.faults.receive, usize::from(to));
        self.receive.admit(limit, at_ns, queue, bytes.len());
        match self.receive.queued_ns(at_ns) {
            _ if lost => {}
            None => {
                self.tell(format_args!("{from} > {to} no room: {}", Told(&bytes)));
                self.meter.dropped(from, &bytes);
            }
            Some(queued_ns) => self.push(at_ns + queued_ns, to, Next::Node, bytes),
        }
    }

    /// Frames on the way.
    pub(super) fn on_the_way(&self) -> usize {
        self.on_the_way.len()
    }

    pub(super) fn send_to_others(&mut self, from: u16, bytes: &Bytes) {
        if let Some(heard) = &mut self.heard {
            heard.push(bytes.to_vec());
        }
        for node in (0..self.nodes).filter(|node| *node != from) {
            self.deliver(from, node, bytes);
        }
    }

    /// The adapters read what is due, as it is now.
    pub(super) fn read(&mut self, fleet: &Fleet) {
        let now = self.now_ns;
        for position in self
            .unread
            .extract_if(.., |one| one.due_ns <= now)
            .collect::<Vec<_>>()
        {
            let mut bytes = position.head;
            let at = bytes.len();
            bytes.resize(at + 4 * position.weights.len(), 0);
            let from = fleet.weights(position.from);
            let words = from.slice(position.weights.start, position.weights.len());
            kernels::copy_out_bytes(words, &mut bytes[at..]);
            self.send_to_others(position.from, &bytes.into());
        }
    }

    /// Sends a frame of `len` bytes of `from`, or refuses it if no slot is free.
    pub(super) fn admit(&mut self, from: u16, len: usize) -> bool {
        if self.rng.random_bool(self.faults.no_slot) {
            return false;
        }
        let (limit, from) = (self.faults.limit, usize::from(from));
        let went = self.limits.admit(limit, self.now_ns, from, len);
        self.meter.total.sent_bytes += if went { len as u64 } else { 0 };
        went
    }

    /// Brings a frame that was admitted to `to`, or loses it.
    pub(super) fn deliver(&mut self, from: u16, to: u16, bytes: &Bytes) {
        let queued_ns = self.queued_ns(from, to, bytes.len());
        let way = self.way(from, to);
        let Way { faults, bursts, .. } = &mut self.ways[way];
        let faults = *faults;
        let in_burst = queued_ns.is_some() && bursts.loses();
        let lost = queued_ns.is_none() || self.rng.random_bool(faults.drop) || in_burst;
        self.meter.note(from, bytes, !lost);
        let fate = if lost { "lost: " } else { "" };
        self.tell(format_args!("{from} > {to} {fate}{}", Told(bytes)));
        let next = match self.faults.receive {
            Some(_) => Next::Queue { from, lost },
            None => Next::Node,
        };
        let Some(queued_ns) = queued_ns.filter(|_| !lost || next != Next::Node) else {
            return;
        };
        let copies = 1 + u64::from(!lost && self.rng.random_bool(faults.duplicate));
        for _ in 0..copies {
            let mut due = self.now_ns + queued_ns + faults.delay_ns;
            if self.rng.random_bool(faults.reorder) {
                due += self.rng.random_range(0..=faults.reorder_ns);
            }
            let mut bytes = bytes.clone();
            if faults.corrupt > 0.0 && self.rng.random_bool(faults.corrupt) {
                let bit = self.rng.random_range(0..bytes.len() * 8);
                Arc::make_mut(&mut bytes)[bit / 8] ^= 1 << (bit % 8);
            }
            self.push(due, to, next, bytes);
        }
    }

    /// A line for the trace. It is put into words only where there is one.
    pub(super) fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.line(self.now_ns, what);
        }
    }

    /// Time that a frame spends in queues; `None`: one of them was full.
    fn queued_ns(&mut self, from: u16, to: u16, len: usize) -> Option<u64> {
        let own_ns = self.limits.queued_ns(self.now_ns)?;
        let way = self.way(from, to);
        if !self.ways[way].limited {
            return Some(own_ns);
        }
        let (limit, there_ns) = (self.ways[way].faults.limit, self.now_ns + own_ns);
        self.queues.admit(limit, there_ns, way, len);
        Some(own_ns + self.queues.queued_ns(there_ns)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Deltas;

    fn network(bursts: Bursts) -> Network {
        let faults = Faults {
            bursts,
            ..Faults::default()
        };
        Network::new(faults, 3, 7, Meter::new(16, Deltas::ExactlyOnce))
    }

    fn arrived(network: &mut Network) -> usize {
        std::iter::from_fn(|| network.next_due()).count()
    }

    /// A tenth of the frames is lost, ten at a time, on one way at other moments than on another.
    #[test]
    fn each_way_loses_in_bursts_of_its_own() {
        let mut network = network(Bursts::GilbertElliott {
            p: 0.1 / 9.0,
            r: 0.1,
            loss_bad: 1.0,
            loss_good: 0.0,
        });
        let mut came = |to| -> Vec<bool> {
            let one = |_| {
                network.deliver(0, to, &[0].into());
                arrived(&mut network) == 1
            };
            (0..100_000).map(one).collect()
        };
        let ways = [came(1), came(2)];
        for way in &ways {
            let lost = way.iter().filter(|came| !**came).count();
            assert!((8_500..11_500).contains(&lost), "{lost} of 100,000");
            let begins = way.windows(2).filter(|two| two[0] && !two[1]).count();
            assert!((7..14).contains(&(lost / begins)), "{lost} in {begins}");
        }
        let both = ways[0].iter().zip(&ways[1]).filter(|(a, b)| !**a && !**b);
        assert!(both.count() < 2_500, "both ways are bad at the same time");
    }

    #[test]
    fn what_comes_for_a_paused_node_waits_as_far_as_there_is_room() {
        let mut network = network(Bursts::None);
        network.pause(1);
        let frame = vec![0; INBOX_BYTES / 4].into();
        for to in [1, 2, 1, 1, 1, 1] {
            network.deliver(0, to, &frame);
        }
        assert_eq!(network.next_due().map(|(to, _)| to), Some(2));
        assert_eq!(arrived(&mut network), 0);
        network.go_on(1);
        assert!(!network.is_paused(1));
        assert_eq!(arrived(&mut network), 4, "the fifth found no room");
    }

    /// What two nodes send at their full rates to a third waits in front of it, or is lost there.
    #[test]
    fn what_a_node_receives_is_limited() {
        let mut network = network(Bursts::None);
        let limit = Limit {
            bytes_per_s: 1e6,
            burst_bytes: 3_000,
            known_frame_bytes: 0,
        };
        network.set_faults(Faults {
            limit: Some(limit),
            receive: Some(limit),
            delay_ns: 500_000,
            ..Faults::default()
        });
        let frame = vec![0; 1_000].into();
        for from in [0, 1] {
            for _ in 0..3 {
                assert!(network.admit(from, 1_000));
                network.deliver(from, 2, &frame);
            }
        }
        // Each sender's come at 1.5, 2.5 and 3.5 ms: two at a time, and a millisecond for each.
        for (us, expected) in [(2_400, 0), (2_500, 1), (3_500, 1), (4_500, 1), (5_500, 1)] {
            network.now_ns = us * 1_000;
            assert_eq!(arrived(&mut network), expected, "at {us} us");
        }
        network.now_ns = 1_000_000_000;
        assert_eq!(arrived(&mut network), 1, "one of six found the queue full");
        let traffic = network.meter.total;
        assert_eq!((traffic.deliveries, traffic.lost), (6, 1));
        // One that is lost behind the queue takes its place in it.
        network.set_way(
            0,
            2,
            Faults {
                drop: 1.0,
                delay_ns: 500_000,
                ..Faults::default()
            },
        );
        for from in [0, 1] {
            network.deliver(from, 2, &frame);
        }
        for (us, expected) in [(0, 0), (2_000, 0), (500, 1)] {
            network.now_ns += us * 1_000;
            assert_eq!(arrived(&mut network), expected, "after {us} us");
        }
    }

    /// One way may be worse than the others, and thinner.
    #[test]
    fn a_way_has_faults_and_a_queue_of_its_own() {
        let mut network = network(Bursts::None);
        let limit = Limit {
            bytes_per_s: 1e6,
            burst_bytes: 2_000,
            known_frame_bytes: 0,
        };
        let slow = Faults {
            delay_ns: 5_000_000,
            limit: Some(limit),
            ..Faults::default()
        };
        network.set_way(0, 2, slow);
        network.set_way(
            2,
            0,
            Faults {
                drop: 1.0,
                ..Faults::default()
            },
        );
        let frame = vec![0; 1_000].into();
        for (from, to) in [(0, 1), (0, 2), (0, 2), (0, 2), (2, 0), (2, 1)] {
            network.deliver(from, to, &frame);
        }
        assert_eq!(arrived(&mut network), 2, "0 to 1 and 2 to 1");
        // A millisecond for a frame, and five on the way; the third found the queue full.
        for (ms, expected) in [(5, 0), (6, 1), (7, 1), (100, 0)] {
            network.now_ns = ms * 1_000_000;
            assert_eq!(arrived(&mut network), expected, "at {ms} ms");
        }
        let traffic = network.meter.total;
        assert_eq!((traffic.deliveries, traffic.lost), (6, 2));
    }

    #[test]
    fn a_corrupt_frame_differs_in_a_bit() {
        let mut network = network(Bursts::None);
        network.set_faults(Faults {
            corrupt: 0.5,
            ..Faults::default()
        });
        let mut corrupt = 0;
        for _ in 0..1_000 {
            network.deliver(0, 1, &[0; 4].into());
            let (_, bytes) = network.next_due().expect("it arrives");
            let bits: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
            assert!(bits <= 1);
            corrupt += bits;
        }
        assert!((400..600).contains(&corrupt), "{corrupt} of 1000");
    }
}
