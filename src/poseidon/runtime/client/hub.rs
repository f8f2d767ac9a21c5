//! The hub of a client: its syncers, its connections, and the completion vector between them.
//!
//! A thread that reads a connection gives each message to the syncer of its layer and applies it
//! to the weights. The threads that compute send through the hub and wait for the completion
//! vector. All other threads are the hub's own, and [`Hub::join`] ends them. Locks are taken in
//! this order: a unit of the share, then a syncer, then the completion vector.

mod links;
mod share;
mod waiting;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::arithmetic::PlanArithmetic;
use super::super::budget::{self, Budget};
use super::super::error::PoseidonError;
use super::super::link::Incoming;
use super::super::member::receive_until_bye;
use super::super::shutdown::Shutdown;
use super::super::sync::lock;
use super::super::traffic::Traffic;
use super::replica::Replica;
use crate::poseidon::{
    ClusterInfo, Completion, Contribution, Destination, KvStore, Member, MemberRole, Message,
    MessageKind, Pair, Pool, ProtocolViolation, Sizes, Stragglers, Syncer,
};
use links::Links;

/// Longest time in which a waiting thread does not look whether the shutdown has begun.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Which layers have seen enough steps for the next iteration.
struct Waited {
    bits: Completion,
    needed: u64,
}

/// What a computing thread leaves to the applying thread.
enum Later {
    /// Apply what this layer has received.
    Apply(usize),
    /// Add an update to this worker's share.
    Add(Arc<Message>),
}

/// Syncers and connections of one worker, shared by its threads.
pub(in super::super) struct Hub {
    /// This worker.
    own: Member,
    syncers: Vec<Mutex<Syncer>>,
    /// What this worker holds of layers under `p2p`.
    share: Option<KvStore>,
    pairs: Vec<Pair>,
    pool: Pool,
    replica: Arc<dyn Replica>,
    /// Arrays of the replica that the rule of the steps uses.
    states: usize,
    math: PlanArithmetic,
    sizes: Arc<Sizes>,
    waited: Mutex<Waited>,
    ready: Condvar,
    /// Notified when a layer has moved, for those who wait for one.
    moved: Condvar,
    pub(super) links: Links,
    readers: AtomicUsize,
    traffic: Arc<Traffic>,
    budget: Option<Budget<Destination>>,
    /// Work for the applying thread; none before it starts and after it was told to end.
    later: Mutex<Option<Sender<Later>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// True once no more layers will be sent.
    done: AtomicBool,
    drop_late: bool,
    /// The clock at which all workers end; `u64::MAX` while none is announced.
    end_at: AtomicU64,
    /// True once every worker has confirmed `end_at`.
    end_known: AtomicBool,
    pub(in super::super) shutdown: Shutdown<'static>,
}

/// What a worker holds.
pub(super) struct Holding {
    /// Memory for messages.
    pub(super) pool: Pool,
    /// The weights that it reads.
    pub(super) replica: Arc<dyn Replica>,
    /// One for each layer.
    pub(super) syncers: Vec<Syncer>,
    /// The weights that it holds for all, under `p2p`.
    pub(super) share: Option<KvStore>,
}

/// Counts a reading thread until it ends, however it ends.
struct Reading<'h>(&'h Hub);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shutdown.fail(PoseidonError::Panicked);
        }
        self.0.readers.fetch_sub(1, Relaxed);
    }
}

impl Hub {
    pub(super) fn new(
        cluster: &ClusterInfo,
        own: Member,
        holding: Holding,
        budget: Option<Budget<Destination>>,
        shutdown: Shutdown<'static>,
    ) -> Self {
        Self {
            own,
            share: holding.share,
            pool: holding.pool,
            pairs: cluster.plan.pairs(),
            sizes: Arc::new(cluster.plan.sizes()),
            waited: Mutex::new(Waited {
                bits: Completion::new(holding.syncers.len()),
                needed: 0,
            }),
            syncers: holding.syncers.into_iter().map(Mutex::new).collect(),
            replica: holding.replica,
            states: cluster.plan.step.rule.states(),
            math: PlanArithmetic::new(&cluster.plan),
            ready: Condvar::new(),
            moved: Condvar::new(),
            links: Links::default(),
            readers: AtomicUsize::new(0),
            traffic: Arc::new(Traffic::new(&cluster.plan, cluster.start)),
            budget,
            later: Mutex::default(),
            threads: Mutex::default(),
            done: AtomicBool::new(false),
            drop_late: cluster.plan.stragglers != Stragglers::Wait,
            end_at: AtomicU64::new(u64::MAX),
            end_known: AtomicBool::new(false),
            shutdown,
        }
    }

    pub(super) fn replica(&self) -> &Arc<dyn Replica> {
        &self.replica
    }

    /// Sizes of the payloads that the plan allows.
    pub(super) fn sizes(&self) -> Arc<Sizes> {
        self.sizes.clone()
    }

    /// Memory for messages.
    pub(super) fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// Counters of what was sent and received.
    pub(super) fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    /// Starts a thread of this hub, which [`Hub::join`] waits for.
    fn start_thread(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), PoseidonError> {
        let hub = self.clone();
        let thread = std::thread::Builder::new().name(format!("dogwild-{name}"));
        let started = thread.spawn(move || work(&hub));
        let started = started.map_err(|why| PoseidonError::System {
            what: "start a thread",
            why,
        })?;
        lock(&self.threads).push(started);
        Ok(())
    }

    /// Starts a thread that reads a connection; [`Hub::readers`] counts it until `read` returns.
    pub(super) fn reading(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), PoseidonError> {
        self.readers.fetch_add(1, Relaxed);
        let started = self.start_thread("read", move |hub| {
            let _counted = Reading(hub);
            read(hub);
        });
        if started.is_err() {
            self.readers.fetch_sub(1, Relaxed);
        }
        started
    }

    /// Waits until all threads of this hub have ended; its connections must be closed.
    pub(super) fn join(&self) {
        drop(lock(&self.later).take());
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                self.shutdown.fail(PoseidonError::Panicked);
            }
        }
    }

    /// Reading threads that still run.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Relaxed)
    }

    /// Starts the thread that applies updates for the computing threads, and with a budget the one
    /// that sends within it.
    pub(super) fn start(self: &Arc<Self>) -> Result<(), PoseidonError> {
        let (later, work) = channel();
        *lock(&self.later) = Some(later);
        self.start_thread("apply", move |hub| {
            while !hub.done.load(Relaxed) {
                match work.recv_timeout(LOOK_UP) {
                    Ok(Later::Apply(layer)) => {
                        hub.apply_received(layer, &mut lock(&hub.syncers[layer]));
                    }
                    Ok(Later::Add(message)) => hub.add_to_share(message, "this worker"),
                    Err(_) => {}
                }
            }
        })?;
        if self.budget.is_none() {
            return Ok(());
        }
        self.start_thread("send", |hub| {
            let Some(budget) = &hub.budget else { return };
            let over = || hub.done.load(Relaxed) && budget.is_empty();
            budget.send_until(over, &hub.shutdown, |to, message| hub.put(to, message));
        })
    }

    /// Receive loop of a connection to a server or a peer, until its `Bye` or an error.
    pub(super) fn read(&self, mut incoming: Incoming, from: Member, who: &str) {
        receive_until_bye(&mut incoming, who, &self.shutdown, |mut message| {
            self.traffic.received(&message);
            // The connection tells who sends; the header's sender is not trusted. Factors and
            // gradients are taken from peers only, weights and sums from the pair's home; the rest
            // is ignored.
            message.sender = from.index;
            let (subject, message) = (message.subject as usize, Arc::new(message));
            match message.kind {
                MessageKind::Factors if from.role == MemberRole::Worker => {
                    self.take(subject, message, who);
                }
                MessageKind::Weights | MessageKind::Bits => {
                    let pair = self.pairs[subject];
                    if pair.home.is_some_and(|home| home.role == from.role) {
                        self.take(pair.layer, message, who);
                    }
                }
                MessageKind::Gradient if from.role == MemberRole::Worker => {
                    self.add_to_share(message, who);
                }
                _ => {}
            }
        });
        self.links.leaves(from);
    }

    /// Gives a message to the syncer of its layer.
    fn take(&self, layer: usize, message: Arc<Message>, from: &str) {
        let mut syncer = lock(&self.syncers[layer]);
        match syncer.receive(message) {
            // A closed layer keeps the message, because a pass reads its weights: it is applied
            // after `send_layer` has opened the layer, or by the next `wait_for`.
            Ok(()) => self.apply_received(layer, &mut syncer),
            Err(why) => self.violation(from, why),
        }
    }

    fn violation(&self, who: &str, why: ProtocolViolation) {
        let who = who.to_owned();
        let error = PoseidonError::ProtocolViolation { who, why };
        self.shutdown.fail(error);
    }

    /// Begins a pass, which reads the weights: each layer stays as it is until it is sent.
    pub(super) fn begin(&self) {
        self.syncers.iter().for_each(|syncer| lock(syncer).begin());
    }

    /// Sends a layer's gradient for iteration `clock`.
    pub(super) fn send_layer(&self, layer: usize, clock: u64, contribution: Contribution<'_>) {
        let priority = self.budget.as_ref().map(|_| {
            let extent = self.extent(layer);
            budget::priority(layer, &contribution, extent, self.replica.weights())
        });
        let mut syncer = lock(&self.syncers[layer]);
        let outgoing = syncer.send(clock, contribution);
        let work = syncer.has_unapplied();
        drop(syncer);
        for (to, message) in outgoing {
            match (&self.budget, priority) {
                // It does not travel.
                _ if to == Destination::Home(self.own) => self.leave(Later::Add(message)),
                (Some(budget), Some(priority)) => {
                    let copies = match to {
                        Destination::Home(_) => 1,
                        Destination::Peers => self.links.peers(),
                    };
                    budget.push(to, message, copies, priority);
                }
                _ => self.put(to, message),
            }
        }
        if work {
            // Updates that arrived while the layer was closed: no reading thread comes back for
            // them, and applying them here would delay the backward pass of the layers below.
            self.leave(Later::Apply(layer));
        }
    }

    /// Leaves work to the applying thread, which lives until no more layers are sent.
    fn leave(&self, work: Later) {
        if let Some(later) = &*lock(&self.later) {
            let _ = later.send(work);
        }
    }

    /// The layer's range in the buffer.
    pub(super) fn extent(&self, layer: usize) -> std::ops::Range<usize> {
        lock(&self.syncers[layer]).extent()
    }

    fn put(&self, to: Destination, message: Arc<Message>) {
        self.links.each(to, |link| {
            self.traffic.sent(&message);
            link.send(message.clone());
        });
    }

    /// The clock at which all workers end; `u64::MAX` while none is announced.
    pub(super) fn end_at(&self) -> u64 {
        self.end_at.load(Relaxed)
    }

    /// True if late updates are dropped.
    pub(super) fn drops_late(&self) -> bool {
        self.drop_late
    }

    /// Announces that all workers end at `clock`; returns when every worker has confirmed it.
    pub(super) fn end_all_at(&self, clock: u64, worker: u16) {
        self.to_coordinator(Message::bare(MessageKind::Finish, worker, clock));
        while !self.end_known.load(Relaxed) && !self.shutdown.has_begun() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Handles a message of the coordinator: the announced end, and that all have confirmed it.
    pub(super) fn on_coordinator_message(&self, message: &Message) {
        match message.kind {
            MessageKind::Finish => {
                self.end_at.fetch_min(message.clock, Relaxed);
                self.to_coordinator(Message::bare(MessageKind::FinishKnown, 0, message.clock));
            }
            MessageKind::FinishKnown => self.end_known.store(true, Relaxed),
            _ => {}
        }
    }

    pub(super) fn to_coordinator(&self, message: Message) {
        self.links.to_coordinator(Arc::new(message));
    }
}
