//! A whole cluster without a network: messages are delivered in any order the protocol allows.
//! All replicas must follow the steps that one process makes from the same gradients.

mod ahead;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::poseidon::cost::{LayerShape, Policy, Scheme};
use crate::weights::WeightsView;

/// Momentum SGD on plain numbers.
struct Math;

impl Arithmetic for Math {
    fn step(
        &self,
        _: &Pair,
        clock: u64,
        contributions: usize,
        gradient: &[f32],
        w: WeightsView<'_>,
        state: &[WeightsView<'_>],
    ) {
        let history = state[0];
        let rate = 0.1 / (1.0 + clock as f32);
        for (i, g) in gradient.iter().enumerate() {
            let step = rate * g / contributions as f32 + 0.9 * history.load(i);
            history.store(i, step);
            w.store(i, w.load(i) - step);
        }
    }

    fn add_outer_products(&self, [m, n]: [usize; 2], u: &[f32], v: &[f32], gradient: &mut [f32]) {
        let k = u.len() / m;
        for o in 0..m {
            for i in 0..n {
                for j in 0..k {
                    gradient[o * n + i] += u[o * k + j] * v[i * k + j];
                }
            }
        }
    }
}

const IMAGES: usize = 3;
const FC: [usize; 2] = [6, 7];
const FC_AT: usize = 64;
const WEIGHTS: usize = 128;

fn plan(
    scheme: Scheme,
    workers: u16,
    servers: u16,
    staleness: u32,
    stragglers: Stragglers,
) -> Plan {
    let shape = |[outputs, inputs]: [usize; 2], fully_connected| LayerShape {
        outputs: outputs as u64,
        inputs: inputs as u64,
        bias: true,
        fully_connected,
    };
    let layers = vec![
        (
            "conv".to_owned(),
            shape([4, 9], false),
            vec![
                PlanTensor::new("conv.weight", 0, &[4, 9]),
                PlanTensor::new("conv.bias", 48, &[4]),
            ],
        ),
        (
            "ip".to_owned(),
            shape(FC, true),
            vec![
                PlanTensor::new("ip.weight", FC_AT, &FC),
                PlanTensor::new("ip.bias", FC_AT + 48, &[FC[0]]),
            ],
        ),
    ];
    let spec = ClusterSpec {
        workers,
        servers,
        images: IMAGES as u32,
        policy: Policy::Force(scheme),
        pair_bytes: 64,
        partition: Partition::Pairs,
        staleness,
        reads: Reads::Own,
        stragglers,
        clocks: 6,
        checkpoint_every: 3,
        recipe: String::new(),
    };
    Plan::new(&spec, layers).unwrap()
}

/// The only server of a test.
const SERVER: Member = Member {
    role: MemberRole::Server,
    index: 0,
};

/// Servers of a cluster: under `p2p` they have nothing to hold.
fn servers(scheme: Scheme) -> u16 {
    if scheme == Scheme::P2p { 0 } else { 2 }
}

/// Gradients and factors that depend on worker and clock alone.
fn gradients(worker: u16, clock: u64) -> (Vec<f32>, Vec<f32>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(u64::from(worker) << 32 | clock);
    let mut values = |n: usize| {
        (0..n)
            .map(|_| rng.random::<f32>() - 0.5)
            .collect::<Vec<_>>()
    };
    let factors = values((FC[0] + FC[1]) * IMAGES);
    let mut all = values(WEIGHTS);
    let (u, v) = factors.split_at(FC[0] * IMAGES);
    let fc = &mut all[FC_AT..FC_AT + 54];
    fc.fill(0.0);
    Math.add_outer_products(FC, u, v, &mut fc[..42]);
    for (bias, row) in fc[48..].iter_mut().zip(u.chunks(IMAGES)) {
        *bias = row.iter().sum();
    }
    (all, factors)
}

fn words() -> Vec<AtomicU32> {
    let start = |i: usize| (i % 7) as f32 / 7.0;
    (0..WEIGHTS)
        .map(|i| AtomicU32::new(start(i).to_bits()))
        .collect()
}

fn zeros() -> Vec<AtomicU32> {
    (0..WEIGHTS).map(|_| AtomicU32::new(0)).collect()
}

fn values(words: &[AtomicU32]) -> Vec<f32> {
    (0..words.len())
        .map(|i| WeightsView::of(words).load(i))
        .collect()
}

fn whole(values: &[f32]) -> Contribution<'_> {
    Contribution::Gradient { from: 0, values }
}

struct Worker {
    w: Vec<AtomicU32>,
    history: Vec<AtomicU32>,
    syncers: Vec<Syncer>,
    clock: u64,
    inbox: Vec<VecDeque<Arc<Message>>>,
}

/// All members, and messages on the way: per sender and receiver in order, as TCP delivers them.
struct World {
    plan: Plan,
    workers: Vec<Worker>,
    /// Servers, and under `p2p` workers too.
    homes: Vec<Member>,
    stores: Vec<KvStore>,
    /// At each home, from each worker.
    inbox: Vec<Vec<VecDeque<Message>>>,
    rng: Xoshiro256PlusPlus,
    /// Largest number of iterations that one worker was ahead of another.
    lead: u64,
    /// What each iteration was computed from: its clock, and the weights when it began.
    read: Vec<(u64, Vec<f32>)>,
    /// Who did.
    readers: Vec<u16>,
}

impl World {
    fn new(plan: Plan, seed: u64) -> Self {
        let members = |role, count| (0..count).map(move |index| Member { role, index });
        let mut homes: Vec<_> = members(MemberRole::Server, plan.servers).collect();
        homes.extend(members(MemberRole::Worker, plan.workers));
        let senders = usize::from(plan.workers) + homes.len();
        let pool = Pool::default();
        let worker = |k| Worker {
            w: words(),
            history: zeros(),
            syncers: (0..plan.layers.len())
                .map(|l| Syncer::new(&plan, l, k, 0, &pool))
                .collect(),
            clock: 0,
            inbox: (0..senders).map(|_| VecDeque::new()).collect(),
        };
        let start = words();
        Self {
            workers: (0..plan.workers).map(worker).collect(),
            stores: homes
                .iter()
                .map(|home| KvStore::new(&plan, *home, 0, WeightsView::of(&start), &pool))
                .collect(),
            inbox: homes
                .iter()
                .map(|_| (0..plan.workers).map(|_| VecDeque::new()).collect())
                .collect(),
            homes,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            lead: 0,
            read: Vec::new(),
            readers: Vec::new(),
            plan,
        }
    }

    /// A worker's iteration, if it may begin one.
    fn compute(&mut self, k: usize) -> bool {
        let worker = &mut self.workers[k];
        if self.plan.stragglers != Stragglers::Wait {
            let newest = worker.syncers.iter().map(Syncer::clock).min().unwrap();
            worker.clock = worker.clock.max(newest);
        }
        let clock = worker.clock;
        if clock >= self.plan.clocks || !worker.syncers.iter().all(|s| s.ready_for(clock)) {
            return false;
        }
        worker.syncers.iter_mut().for_each(Syncer::begin);
        self.read.push((clock, values(&worker.w)));
        self.readers.push(k as u16);
        let (all, factors) = gradients(k as u16, clock);
        let mut sent = Vec::new();
        for (l, syncer) in worker.syncers.iter_mut().enumerate().rev() {
            let contribution = match l == 1 && syncer.scheme().sends_factors() {
                true => Contribution::Factors(factors.clone()),
                false => whole(&all),
            };
            sent.extend(syncer.send(clock, contribution));
            syncer.apply_received(
                WeightsView::of(&worker.w),
                &[WeightsView::of(&worker.history)],
                &Math,
            );
        }
        worker.clock += 1;
        for (to, message) in sent {
            match to {
                Destination::Home(home) => {
                    let at = self.homes.iter().position(|member| *member == home);
                    self.inbox[at.unwrap()][k].push_back((*message).clone());
                }
                Destination::Peers => {
                    for (_, peer) in self.workers.iter_mut().enumerate().filter(|(p, _)| *p != k) {
                        peer.inbox[k].push_back(message.clone());
                    }
                }
            }
        }
        let clocks = || self.workers.iter().map(|w| w.clock);
        self.lead = self
            .lead
            .max(clocks().max().unwrap() - clocks().min().unwrap());
        true
    }

    /// A home takes one message of worker `k`.
    fn serve(&mut self, s: usize, k: usize) -> bool {
        let Some(message) = self.inbox[s][k].pop_front() else {
            return false;
        };
        let out = self.stores[s].receive(message, &Math, |made| made.messages);
        let out = out.unwrap().unwrap_or_default();
        let from = usize::from(self.plan.workers) + s;
        for worker in &mut self.workers {
            worker.inbox[from].extend(out.iter().cloned());
        }
        true
    }

    /// Worker `k` takes one message of `from`.
    fn receive(&mut self, k: usize, from: usize) -> bool {
        let worker = &mut self.workers[k];
        let Some(message) = worker.inbox[from].pop_front() else {
            return false;
        };
        let layer = match message.kind {
            MessageKind::Factors => message.subject as usize,
            _ => self.plan.pairs()[message.subject as usize].layer,
        };
        let syncer = &mut worker.syncers[layer];
        syncer.receive(message).unwrap();
        syncer.apply_received(
            WeightsView::of(&worker.w),
            &[WeightsView::of(&worker.history)],
            &Math,
        );
        true
    }

    /// Runs until nothing can happen any more. `frozen` neither computes nor delivers.
    fn run(&mut self, frozen: Option<usize>) {
        let (workers, homes) = (self.workers.len(), self.stores.len());
        let mut idle = 0;
        while idle < 4000 {
            let k = self.rng.random_range(0..workers);
            let home = self.rng.random_range(0..homes);
            let from = self.rng.random_range(0..workers + homes);
            let happened = match self.rng.random_range(0..3) {
                0 if Some(k) != frozen => self.compute(k),
                1 => self.serve(home, k),
                _ => self.receive(k, from),
            };
            idle = if happened { 0 } else { idle + 1 };
        }
    }

    fn weights(&self) -> Vec<Vec<f32>> {
        self.workers.iter().map(|w| values(&w.w)).collect()
    }
}

/// What one process makes of the same gradients: the weights after no step, one step, and so on.
fn trajectory(plan: &Plan) -> Vec<Vec<f32>> {
    let (w, history) = (words(), zeros());
    let mut all_steps = vec![values(&w)];
    for clock in 0..plan.clocks {
        let mut sum = vec![0.0; WEIGHTS];
        for worker in 0..plan.workers {
            let (all, _) = gradients(worker, clock);
            sum.iter_mut().zip(all).for_each(|(s, g)| *s += g);
        }
        for pair in plan.pairs() {
            let at = pair.offset..pair.offset + pair.len;
            let [w, h] = [&w, &history].map(|x| WeightsView::of(&x[at.clone()]));
            Math.step(&pair, clock, plan.workers.into(), &sum[at], w, &[h]);
        }
        all_steps.push(values(&w));
    }
    all_steps
}

fn reference(plan: &Plan) -> Vec<f32> {
    trajectory(plan).pop().unwrap()
}

#[test]
fn replicas_make_the_steps_of_one_process_in_any_order_of_messages() {
    for (seed, scheme) in (0..).zip([Scheme::Ps, Scheme::Sfb, Scheme::Adam, Scheme::P2p]) {
        for workers in [1, 2, 4] {
            let plan = plan(scheme, workers, servers(scheme), 0, Stragglers::Wait);
            let mut world = World::new(plan.clone(), seed);
            world.run(None);
            let [expected, found] = [
                vec![reference(&plan); usize::from(workers)],
                world.weights(),
            ];
            for (k, (a, b)) in found
                .iter()
                .flatten()
                .zip(expected.iter().flatten())
                .enumerate()
            {
                assert!(
                    (a - b).abs() < 1e-5,
                    "{scheme:?}, {workers} workers, {k}: {a}, not {b}"
                );
            }
            assert!(found.iter().all(|w| *w == found[0]), "bit for bit");
        }
    }
}

#[test]
fn one_bit_replicas_stay_equal_and_follow_roughly() {
    let plan = plan(Scheme::OneBit, 3, 2, 0, Stragglers::Wait);
    let mut world = World::new(plan.clone(), 5);
    world.run(None);
    let found = world.weights();
    assert!(world.workers.iter().all(|w| w.clock == plan.clocks));
    assert!(found.iter().all(|w| *w == found[0]), "bit for bit");
    assert_ne!(found[0], values(&words()), "something was learnt");
}

/// A worker that stands still is overtaken by `staleness` iterations and no more; when it goes on,
/// all end with the same weights.
#[test]
fn no_worker_runs_further_ahead_than_staleness() {
    for scheme in Scheme::ALL {
        for staleness in [0, 1, 3] {
            let plan = plan(scheme, 3, servers(scheme), staleness, Stragglers::Wait);
            let mut world = World::new(plan.clone(), u64::from(staleness));
            world.run(Some(1));
            let lead = u64::from(staleness) + 1;
            assert_eq!(world.lead, lead, "{scheme:?}, staleness {staleness}");
            world.run(None);
            assert!(world.workers.iter().all(|w| w.clock == plan.clocks));
            let found = world.weights();
            let all_in = |w: &Worker| w.syncers.iter().all(|s| s.clock() == plan.clocks);
            assert!(world.workers.iter().all(all_in));
            assert!(found.iter().all(|w| *w == found[0]), "{scheme:?}");
            assert!(world.lead <= lead, "{}", world.lead);
        }
    }
}

/// What an iteration is computed from where whole steps alone are read: each pair as it was after
/// one of the steps t - s to t, whole, and never older. The oldest that is allowed does occur.
#[test]
fn reads_are_as_old_as_staleness_allows_and_no_older() {
    for scheme in [Scheme::Ps, Scheme::Sfb, Scheme::Adam, Scheme::P2p] {
        for staleness in [0, 1, 3] {
            let plan = Plan {
                reads: Reads::Delayed,
                ..plan(scheme, 3, servers(scheme), staleness, Stragglers::Wait)
            };
            let mut world = World::new(plan.clone(), 7 + u64::from(staleness));
            world.run(Some(1));
            world.run(None);
            let steps = trajectory(&plan);
            let mut oldest = 0;
            for (t, read) in &world.read {
                for pair in plan.pairs() {
                    let at = pair.offset..pair.offset + pair.len;
                    let is_step = |c: u64| {
                        let mut both = read[at.clone()].iter().zip(&steps[c as usize][at.clone()]);
                        both.all(|(a, b)| (a - b).abs() < 1e-5)
                    };
                    let first = t.saturating_sub(staleness.into());
                    let found = (first..=*t).rev().find(|c| is_step(*c));
                    let found = found.unwrap_or_else(|| {
                        panic!("{scheme:?}, staleness {staleness}: iteration {t} read pair {} otherwise", pair.id)
                    });
                    oldest = oldest.max(t - found);
                }
            }
            assert_eq!(oldest, u64::from(staleness), "{scheme:?}");
        }
    }
}

#[test]
fn a_straggler_is_left_behind_and_its_updates_are_counted() {
    for scheme in [Scheme::Ps, Scheme::Adam, Scheme::OneBit] {
        left_behind(scheme);
    }
}

fn left_behind(scheme: Scheme) {
    let plan = plan(scheme, 3, 2, 0, Stragglers::Drop(0.6));
    let mut world = World::new(plan.clone(), 1);
    // It has computed iteration 0 and then stands still, with its updates on the way.
    assert!(world.compute(2));
    let late: Vec<_> = world
        .inbox
        .iter_mut()
        .map(|at| std::mem::take(&mut at[2]))
        .collect();
    world.run(Some(2));
    assert_eq!(
        world.workers[0].clock, plan.clocks,
        "the others did not wait"
    );
    let pairs: u64 = late.iter().map(|queue| queue.len() as u64).sum();
    for (s, queue) in late.into_iter().enumerate() {
        world.inbox[s][2] = queue;
    }
    world.run(None);
    let dropped: u64 = world.stores.iter().map(|store| store.dropped()[2]).sum();
    assert_eq!(dropped, pairs);
    let found = world.weights();
    assert!(found.iter().all(|w| *w == found[0]));
    let all_made = |store: &KvStore| store.has_made(plan.clocks);
    assert!(world.stores.iter().all(all_made));
}

#[test]
fn stores_go_on_from_a_checkpoint_bit_for_bit() {
    for scheme in [Scheme::Ps, Scheme::Adam] {
        let plan = plan(scheme, 1, 1, 0, Stragglers::Wait);
        let start = words();
        let pool = Pool::default();
        let first = KvStore::new(&plan, SERVER, 0, WeightsView::of(&start), &pool);
        let mut syncers: Vec<_> = (0..2).map(|l| Syncer::new(&plan, l, 0, 0, &pool)).collect();
        let mut feed = |store: &KvStore, clock: u64| {
            let mut checkpoints = Vec::new();
            let (all, factors) = gradients(0, clock);
            let fc = match scheme {
                Scheme::Adam => Contribution::Factors(factors),
                _ => whole(&all),
            };
            for (syncer, gradient) in syncers.iter_mut().zip([whole(&all), fc]) {
                for (_, message) in syncer.send(clock, gradient) {
                    let made = store.receive((*message).clone(), &Math, |made| made.checkpoints);
                    checkpoints.extend(made.unwrap().unwrap_or_default());
                }
            }
            checkpoints
        };
        let mut checkpoints: Vec<_> = (0..4).flat_map(|clock| feed(&first, clock)).collect();
        let checkpoint = checkpoints.pop().unwrap();
        assert_eq!((checkpoint.clock, checkpoints), (3, Vec::new()));
        let nothing = zeros();
        let mut again = KvStore::new(&plan, SERVER, 3, WeightsView::of(&nothing), &pool);
        let arrays: std::collections::HashMap<_, _> = checkpoint.arrays.into_iter().collect();
        again
            .restore(|name, len| {
                let saved = arrays.get(name).filter(|a| a.len() == len);
                saved.cloned().ok_or(format!("no {name}"))
            })
            .unwrap();
        feed(&again, 3);
        let weights = |store: &KvStore| {
            let mut all = Vec::new();
            store.weights(|made| all.extend(made.messages));
            all
        };
        assert_eq!(weights(&again), weights(&first));
        assert_eq!(again.saved(), first.saved());
    }
}

#[test]
fn messages_that_break_the_protocol_are_refused() {
    let plan = plan(Scheme::Ps, 2, 1, 0, Stragglers::Wait);
    let start = words();
    let pool = Pool::default();
    let store = KvStore::new(&plan, SERVER, 0, WeightsView::of(&start), &pool);
    let push = |kind, subject, sender, clock| Message {
        kind,
        subject,
        sender,
        clock,
        body: Body::Floats(vec![0.0; plan.pairs()[0].len].into()),
    };
    let receive = |message| store.receive(message, &Math, |made| made.messages);
    let refused = |message| receive(message).unwrap_err().to_string();
    assert!(refused(push(MessageKind::Gradient, 99, 0, 0)).contains("does not take"));
    assert!(refused(push(MessageKind::Weights, 0, 0, 0)).contains("does not take"));
    assert!(refused(push(MessageKind::Gradient, 0, 2, 0)).contains("worker 2 in a cluster of 2"));
    assert!(refused(push(MessageKind::Gradient, 0, 0, 1)).contains("did not wait"));
    receive(push(MessageKind::Gradient, 0, 0, 0)).unwrap();
    let twice = receive(push(MessageKind::Gradient, 0, 0, 0));
    assert!(twice.unwrap_err().to_string().contains("clock 0 twice"));

    let mut syncer = Syncer::new(&plan, 0, 0, 0, &pool);
    let mut refused = |message| {
        let refused = syncer.receive(Arc::new(message));
        refused.unwrap_err().to_string()
    };
    assert!(
        refused(push(MessageKind::Weights, 0, 1, 1)).contains("does not take"),
        "no such server"
    );
    assert!(refused(push(MessageKind::Factors, 0, 1, 0)).contains("does not take"));
    let newer = Arc::new(push(MessageKind::Weights, 0, 0, 2));
    syncer.receive(newer).unwrap();
    let back = syncer
        .receive(Arc::new(push(MessageKind::Weights, 0, 0, 1)))
        .unwrap_err();
    assert!(back.to_string().contains("but 2 was the next"), "{back}");
}

#[test]
fn the_next_iteration_begins_when_all_bits_are_set() {
    let mut bits = Completion::new(2);
    bits.set(0, true);
    assert_eq!(
        (bits.all(), bits.missing().collect::<Vec<_>>()),
        (false, vec![1])
    );
    bits.set(1, true);
    assert!(bits.all());
}
