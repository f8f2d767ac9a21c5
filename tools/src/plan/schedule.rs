//! The time of an iteration, by playing it: compute, links, servers.
//!
//! The model (docs/guide/planning.md): a worker spends the forward and then the backward times of
//! its layers one after the other. A layer's messages set out when its backward pass ends, or,
//! without overlap, when the whole backward pass has. Each node has one link out and one in, both
//! of the same bandwidth and independent (full duplex). Messages leave in the order in which they
//! were ready and arrive in the order in which they began to leave. One that finds the receiver's
//! link busy waits in the switch. Servers, sufficient factors and memory cost no time, nor does
//! latency. Numbers only: the clock is virtual.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::cluster::{Place, Sync};

/// When the next forward pass may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Next {
    /// When every layer is in step (the papers' completion vector)
    All,
    /// Each layer's when that layer is in step
    Layer,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) place: &'a Place,
    pub(crate) syncs: &'a [Sync],
    /// Seconds of each layer, forward and backward.
    pub(crate) times: &'a [[f64; 2]],
    pub(crate) bytes_per_s: f64,
    /// Bytes that a node handles in a second, in and out together; `None`: at once.
    pub(crate) host_bytes_per_s: Option<f64>,
    pub(crate) overlap: bool,
    pub(crate) next: Next,
}

/// Iterations that are played; the first is not counted, as nothing is on its way before it.
const ROUNDS: usize = 4;

/// Seconds from the start of one iteration to the start of the next.
pub(crate) fn iteration_s(scene: &Scene<'_>) -> f64 {
    let mut play = Play::new(*scene);
    for worker in 0..scene.place.workers() {
        play.advance(worker);
    }
    while let Some(Event { time, what, .. }) = play.events.pop() {
        play.now = time;
        match what {
            What::Computed(worker) => play.computed(worker),
            What::Handed(message) => play.leave(message),
            What::Left(message) => play.left(message),
            What::Came(message) => play.came(message),
            What::Arrived(message) => play.arrived(message),
        }
    }
    let starts = &play.starts;
    (starts[ROUNDS - 1] - starts[0]) / (ROUNDS - 1) as f64
}

#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    bytes: f64,
    layer: usize,
    round: usize,
    kind: Payload,
}

#[derive(Clone, Copy, Debug)]
enum Payload {
    /// To a server, for this gather of the layer.
    Up(usize),
    /// To a worker.
    Down,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A worker has done its step.
    Computed(usize),
    /// The sender has handled a message.
    Handed(Message),
    /// A message has begun to leave.
    Left(Message),
    /// All of a message has come.
    Came(Message),
    /// The receiver has handled it.
    Arrived(Message),
}

/// Something that happens; the earliest comes first, of equals the one that was planned first.
#[derive(Clone, Copy, Debug)]
struct Event {
    time: f64,
    number: u64,
    what: What,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.time.total_cmp(&self.time);
        by_time.then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

/// One worker's place: layers forward are steps 0 to L-1, backward L to 2L-1.
#[derive(Clone, Debug)]
struct Worker {
    round: usize,
    step: usize,
    computing: bool,
    /// Messages that are still to come, per round and layer.
    lacking: Vec<Vec<usize>>,
}

struct Play<'a> {
    scene: Scene<'a>,
    now: f64,
    events: BinaryHeap<Event>,
    planned: u64,
    out_free: Vec<f64>,
    in_free: Vec<f64>,
    host_free: Vec<f64>,
    workers: Vec<Worker>,
    /// Number of workers that have sent, per layer and gather.
    heard: Vec<Vec<usize>>,
    /// When the last worker began each round.
    starts: [f64; ROUNDS],
}

impl<'a> Play<'a> {
    fn new(scene: Scene<'a>) -> Self {
        let workers = scene.place.workers();
        let wanted = |sync: &Sync| match sync {
            Sync::Broadcast(_) => workers - 1,
            Sync::Gathers(gathers) => gathers.iter().map(|gather| gather.down.len()).sum(),
        };
        let lacking: Vec<usize> = scene.syncs.iter().map(wanted).collect();
        let heard = |sync: &Sync| match sync {
            Sync::Broadcast(_) => Vec::new(),
            Sync::Gathers(gathers) => vec![0; gathers.len()],
        };
        let worker = Worker {
            round: 0,
            step: 0,
            computing: false,
            lacking: vec![lacking; ROUNDS],
        };
        Self {
            scene,
            now: 0.0,
            events: BinaryHeap::new(),
            planned: 0,
            out_free: vec![0.0; scene.place.nodes()],
            in_free: vec![0.0; scene.place.nodes()],
            host_free: vec![0.0; scene.place.nodes()],
            workers: vec![worker; workers],
            heard: scene.syncs.iter().map(heard).collect(),
            starts: [0.0; ROUNDS],
        }
    }

    fn layers(&self) -> usize {
        self.scene.times.len()
    }

    fn plan(&mut self, time: f64, what: What) {
        self.planned += 1;
        let number = self.planned;
        self.events.push(Event { time, number, what });
    }

    /// Lets a worker begin its next step, if nothing is missing.
    fn advance(&mut self, index: usize) {
        let layers = self.layers();
        let worker = &mut self.workers[index];
        if worker.computing {
            return;
        }
        if worker.step == 2 * layers {
            let mut lacking = worker.lacking[worker.round].iter();
            let ready = match self.scene.next {
                Next::All => lacking.all(|&lacking| lacking == 0),
                Next::Layer => true,
            };
            if !ready || worker.round + 1 == ROUNDS {
                return;
            }
            worker.round += 1;
            worker.step = 0;
        }
        let (round, step) = (worker.round, worker.step);
        if step < layers && round > 0 && worker.lacking[round - 1][step] > 0 {
            return;
        }
        if step == 0 {
            self.starts[round] = self.starts[round].max(self.now);
        }
        let time = if step < layers {
            self.scene.times[step][0]
        } else {
            self.scene.times[2 * layers - 1 - step][1]
        };
        self.workers[index].computing = true;
        self.plan(self.now + time, What::Computed(index));
    }

    fn computed(&mut self, index: usize) {
        let layers = self.layers();
        let worker = &mut self.workers[index];
        worker.computing = false;
        worker.step += 1;
        let step = worker.step;
        if self.scene.overlap && step > layers {
            self.send_layer(index, 2 * layers - step);
        } else if step == 2 * layers {
            (0..layers)
                .rev()
                .for_each(|layer| self.send_layer(index, layer));
        }
        self.advance(index);
    }

    /// Sends what a worker has for a layer.
    fn send_layer(&mut self, index: usize, layer: usize) {
        let round = self.workers[index].round;
        let (syncs, workers) = (self.scene.syncs, self.workers.len());
        let to = |to, bytes, kind| Message {
            from: index,
            to,
            bytes,
            layer,
            round,
            kind,
        };
        match &syncs[layer] {
            Sync::Broadcast(bytes) => {
                for next in 1..workers {
                    self.send(to((index + next) % workers, *bytes, Payload::Down));
                }
            }
            Sync::Gathers(gathers) => {
                for (number, gather) in gathers.iter().enumerate() {
                    self.send(to(gather.home, gather.up, Payload::Up(number)));
                }
            }
        }
    }

    fn send(&mut self, message: Message) {
        if message.from == message.to {
            return self.plan(self.now, What::Arrived(message));
        }
        match self.handled(message.from, message.bytes) {
            Some(end) => self.plan(end, What::Handed(message)),
            None => self.leave(message),
        }
    }

    /// When a node will have handled so many bytes more; `None`: that takes no time.
    fn handled(&mut self, node: usize, bytes: f64) -> Option<f64> {
        let rate = self.scene.host_bytes_per_s?;
        let free = &mut self.host_free[node];
        *free = free.max(self.now) + bytes / rate;
        Some(*free)
    }

    fn leave(&mut self, message: Message) {
        let free = &mut self.out_free[message.from];
        let start = free.max(self.now);
        *free = start + message.bytes / self.scene.bytes_per_s;
        self.plan(start, What::Left(message));
    }

    fn left(&mut self, message: Message) {
        let free = &mut self.in_free[message.to];
        *free = free.max(self.now) + message.bytes / self.scene.bytes_per_s;
        let end = *free;
        match self.scene.host_bytes_per_s {
            Some(_) => self.plan(end, What::Came(message)),
            None => self.plan(end, What::Arrived(message)),
        }
    }

    fn came(&mut self, message: Message) {
        let end = self.handled(message.to, message.bytes);
        self.plan(end.unwrap_or(self.now), What::Arrived(message));
    }

    fn arrived(&mut self, message: Message) {
        match message.kind {
            Payload::Up(number) => self.heard(message, number),
            Payload::Down => {
                self.workers[message.to].lacking[message.round][message.layer] -= 1;
                self.advance(message.to);
            }
        }
    }

    /// A server has a worker's message; it answers when it has those of all.
    fn heard(&mut self, message: Message, number: usize) {
        let workers = self.workers.len();
        let heard = &mut self.heard[message.layer][number];
        *heard += 1;
        if *heard < workers {
            return;
        }
        *heard = 0;
        let syncs = self.scene.syncs;
        let Sync::Gathers(gathers) = &syncs[message.layer] else {
            return;
        };
        for &bytes in &gathers[number].down {
            for next in 1..=workers {
                self.send(Message {
                    from: message.to,
                    to: (message.to + next) % workers,
                    bytes,
                    kind: Payload::Down,
                    ..message
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::syncs;
    use super::*;
    use dogwild::poseidon::{ClusterSize, LayerShape, Partition, Scheme};

    const LAYER: LayerShape = LayerShape {
        outputs: 100,
        inputs: 100,
        bias: false,
        fully_connected: true,
    };

    fn place(workers: u32, servers: u32, apart: bool) -> Place {
        Place {
            cluster: ClusterSize::new(workers, servers, 10).unwrap(),
            apart,
            pair_bytes: 400,
            partition: Partition::Pairs,
        }
    }

    /// Two layers of a second forward and two backward each, 40,000 bytes each.
    fn seconds(place: &Place, scheme: Scheme, overlap: bool, next: Next, bytes_per_s: f64) -> f64 {
        let syncs = syncs(&[(LAYER, scheme); 2], place);
        iteration_s(&scene(place, &syncs, overlap, next, bytes_per_s))
    }

    fn scene<'a>(
        place: &'a Place,
        syncs: &'a [Sync],
        overlap: bool,
        next: Next,
        bytes_per_s: f64,
    ) -> Scene<'a> {
        Scene {
            place,
            syncs,
            times: &[[1.0, 2.0]; 2],
            bytes_per_s,
            host_bytes_per_s: None,
            overlap,
            next,
        }
    }

    fn about(found: f64, wanted: f64) {
        assert!(
            (found / wanted - 1.0).abs() < 0.01,
            "{found} instead of {wanted}"
        );
    }

    #[test]
    fn one_node_only_computes() {
        let one = place(1, 1, false);
        for scheme in Scheme::ALL {
            about(seconds(&one, scheme, false, Next::All, 1.0), 6.0);
        }
    }

    #[test]
    fn without_overlap_the_network_follows_the_computer() {
        // Per node and direction: (P + P2 - 2)/P2 of a layer; both layers at 1.5 times 40,000
        // bytes.
        let four = place(4, 4, false);
        let found = seconds(&four, Scheme::Ps, false, Next::All, 40_000.0);
        about(found, 6.0 + 2.0 * 1.5);
        // Factors: 10 images of 200 floats to each of three peers, two layers.
        let found = seconds(&four, Scheme::Sfb, false, Next::All, 8_000.0);
        about(found, 6.0 + 2.0 * 3.0);
        // A server on its own node gets four times 40,000 bytes at once, and answers pair by pair.
        let found = seconds(&place(4, 1, true), Scheme::Ps, false, Next::All, 40_000.0);
        about(found, 6.0 + 2.0 * 4.0);
    }

    #[test]
    fn overlap_hides_the_network_behind_the_layers_below() {
        let four = place(4, 4, false);
        // A layer takes 1 s: the upper one's is hidden behind the lower one's backward pass.
        let found = seconds(&four, Scheme::Ps, true, Next::All, 60_000.0);
        about(found, 6.0 + 1.0);
        // By layer, the upper one's second may be hidden behind the lower one's forward pass too:
        // at 2 s a layer, the lower one begins at 6 s and is done at 8 s.
        let found = seconds(&four, Scheme::Ps, true, Next::Layer, 30_000.0);
        about(found, 6.0 + 2.0);
    }

    #[test]
    fn the_network_bounds_the_iteration_however_much_overlaps() {
        let four = place(4, 4, false);
        let found = seconds(&four, Scheme::Ps, true, Next::All, 4_000.0);
        // Forward and the upper layer's backward pass, then 30 s of network.
        about(found, 2.0 + 2.0 + 30.0);
    }

    #[test]
    fn a_host_handles_what_comes_and_what_goes_one_after_the_other() {
        let four = place(4, 4, false);
        let found = |scheme, overlap, host_bytes_per_s| {
            let syncs = syncs(&[(LAYER, scheme); 2], &four);
            iteration_s(&Scene {
                host_bytes_per_s,
                ..scene(&four, &syncs, overlap, Next::All, 1e12)
            })
        };
        // In and out of a node: four times 3/4 of 40,000 bytes for each layer, by a link that takes
        // no time.
        about(found(Scheme::Ps, false, Some(40_000.0)), 6.0 + 2.0 * 3.0);
        about(found(Scheme::P2p, false, Some(40_000.0)), 6.0 + 2.0 * 3.0);
        about(found(Scheme::Ps, false, None), 6.0);
        // Factors, 8,000 bytes to and from each of three peers.
        about(found(Scheme::Sfb, false, Some(16_000.0)), 6.0 + 2.0 * 3.0);
        // The upper layer's 2 s are hidden behind the lower one's backward pass.
        about(found(Scheme::Ps, true, Some(60_000.0)), 6.0 + 2.0);
    }

    #[test]
    fn adam_waits_for_the_node_that_holds_the_layer() {
        let four = place(4, 4, false);
        let found = seconds(&four, Scheme::Adam, false, Next::All, 40_000.0);
        // Each layer has a node of its own, which sends the matrix to three peers.
        assert!(found > 6.0 + 3.0, "{found}");
    }
}
