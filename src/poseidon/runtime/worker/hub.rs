//! The middle of a worker: syncers, connections, and the completion vector between them.
//!
//! A thread that reads a connection hands what arrives to its syncer and moves it into the
//! weights; the threads that compute send through it and wait for the completion vector. Locks are
//! taken in the order syncer, completion.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::super::arithmetic::SolverArithmetic;
use super::super::budget::{self, Budget};
use super::super::error::PoseidonError;
use super::super::link::{Incoming, Link};
use super::super::member::receive_until_bye;
use super::super::shutdown::Shutdown;
use super::super::sync::{lock, wait};
use super::super::traffic::Traffic;
use crate::poseidon::{
    ClusterInfo, Completion, Contribution, Destination, Member, MemberRole, Message, MessageKind,
    Saved, Sizes, Stragglers, Syncer,
};
use crate::weights::WeightsView;

/// Longest time between two looks at whether everything still goes well.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Waiting that is worth a line in the log.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Which layers have seen enough steps for the next iteration.
struct Waited {
    bits: Completion,
    needed: u64,
}

/// Connections by role; the coordinator apart.
#[derive(Default)]
struct Links {
    coordinator: Option<Link>,
    servers: Vec<Link>,
    peers: Vec<Link>,
}

/// See the module.
pub(super) struct Hub<'h> {
    syncers: Vec<Mutex<Syncer>>,
    /// By pair.
    layer_of: Vec<usize>,
    w: WeightsView<'h>,
    history: WeightsView<'h>,
    math: SolverArithmetic,
    sizes: Arc<Sizes>,
    waited: Mutex<Waited>,
    ready: Condvar,
    links: Mutex<Links>,
    readers: AtomicUsize,
    traffic: Arc<Traffic>,
    budget: Option<Budget<Destination>>,
    /// Layers that a computing thread leaves to be moved by another.
    apply_later: Sender<usize>,
    to_apply: Mutex<Option<Receiver<usize>>>,
    /// No more layers will be sent.
    done: AtomicBool,
    drop_late: bool,
    /// The clock at which all end; `u64::MAX` until somebody says so.
    end_at: AtomicU64,
    /// All workers know it.
    end_known: AtomicBool,
    pub(super) shutdown: &'h Shutdown<'h>,
}

impl<'h> Hub<'h> {
    pub(super) fn new(
        cluster: &ClusterInfo,
        syncers: Vec<Syncer>,
        [w, history]: [WeightsView<'h>; 2],
        math: SolverArithmetic,
        budget: Option<Budget<Destination>>,
        shutdown: &'h Shutdown<'h>,
    ) -> Self {
        let (apply_later, to_apply) = channel();
        Self {
            layer_of: cluster.plan.pairs().iter().map(|pair| pair.layer).collect(),
            sizes: Arc::new(cluster.plan.sizes()),
            waited: Mutex::new(Waited {
                bits: Completion::new(syncers.len()),
                needed: 0,
            }),
            syncers: syncers.into_iter().map(Mutex::new).collect(),
            w,
            history,
            math,
            ready: Condvar::new(),
            links: Mutex::default(),
            readers: AtomicUsize::new(0),
            traffic: Arc::new(Traffic::new(&cluster.plan, cluster.start)),
            budget,
            apply_later,
            to_apply: Mutex::new(Some(to_apply)),
            done: AtomicBool::new(false),
            drop_late: cluster.plan.stragglers != Stragglers::Wait,
            end_at: AtomicU64::new(u64::MAX),
            end_known: AtomicBool::new(false),
            shutdown,
        }
    }

    /// The weights.
    pub(super) fn weights(&self) -> WeightsView<'h> {
        self.w
    }

    /// What messages may carry.
    pub(super) fn sizes(&self) -> Arc<Sizes> {
        self.sizes.clone()
    }

    /// What was sent and received.
    pub(super) fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    /// Starts a thread that reads a connection.
    pub(super) fn reading<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        read: impl FnOnce(&'scope Self) + Send + 'scope,
    ) {
        self.readers.fetch_add(1, Relaxed);
        scope.spawn(move || {
            read(self);
            self.readers.fetch_sub(1, Relaxed);
        });
    }

    /// Threads that read.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Relaxed)
    }

    /// Starts the thread that moves layers for those that compute, and the one that keeps the budget.
    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if let Some(to_apply) = lock(&self.to_apply).take() {
            scope.spawn(move || {
                while !self.done.load(Relaxed) {
                    if let Ok(layer) = to_apply.recv_timeout(LOOK_UP) {
                        self.apply_received(layer, &mut lock(&self.syncers[layer]));
                    }
                }
            });
        }
        if let Some(budget) = &self.budget {
            let over = || self.done.load(Relaxed) && budget.is_empty();
            scope.spawn(move || {
                budget.keep(over, self.shutdown, |to, message| self.put(to, message))
            });
        }
    }

    /// Takes over the writing half of a connection.
    pub(super) fn register(&self, role: MemberRole, link: Link) {
        let mut links = lock(&self.links);
        match role {
            MemberRole::Server => links.servers.push(link),
            MemberRole::Worker => links.peers.push(link),
        }
    }

    /// Takes over the writing half of the connection to the coordinator.
    pub(super) fn register_coordinator(&self, link: Link) {
        lock(&self.links).coordinator = Some(link);
    }

    /// Reads a server or a peer until it says goodbye or fails.
    pub(super) fn read(&self, mut incoming: Incoming, from: (MemberRole, u16), who: &str) {
        receive_until_bye(&mut incoming, who, self.shutdown, |mut message| {
            self.traffic.received(&message);
            // Whatever it says: everybody speaks for itself, and factors come from peers only.
            message.sender = from.1;
            let layer = match (message.kind, from.0) {
                (MessageKind::Factors, MemberRole::Worker) => message.subject as usize,
                (MessageKind::Weights | MessageKind::Bits, MemberRole::Server) => {
                    self.layer_of[message.subject as usize]
                }
                _ => return,
            };
            let mut syncer = lock(&self.syncers[layer]);
            match syncer.receive(message) {
                Ok(()) => self.apply_received(layer, &mut syncer),
                Err(why) => {
                    let who = who.to_owned();
                    self.shutdown
                        .fail(PoseidonError::ProtocolViolation { who, why });
                }
            }
        });
    }

    fn apply_received(&self, layer: usize, syncer: &mut Syncer) {
        syncer.apply_received(self.w, self.history, &self.math);
        let mut waited = lock(&self.waited);
        let ready = syncer.clock() >= waited.needed;
        waited.bits.set(layer, ready);
        if ready && waited.bits.all() {
            self.ready.notify_all();
        }
    }

    /// Waits until `needed` steps are in the weights of every layer. False if it all ends before.
    pub(super) fn wait_for(&self, needed: u64) -> bool {
        lock(&self.waited).needed = needed;
        for (layer, syncer) in self.syncers.iter().enumerate() {
            self.apply_received(layer, &mut lock(syncer));
        }
        let mut long = Instant::now() + LONG_WAIT;
        let mut waited = lock(&self.waited);
        while !waited.bits.all() {
            if self.shutdown.has_begun() || self.drop_late && self.end_at() != u64::MAX {
                return false;
            }
            if Instant::now() >= long {
                long = Instant::now() + LONG_WAIT;
                let missing: Vec<usize> = waited.bits.missing().collect();
                drop(waited);
                self.log_missing(&missing, needed);
                waited = lock(&self.waited);
                continue;
            }
            waited = wait(&self.ready, waited, LOOK_UP);
        }
        !self.shutdown.has_begun()
    }

    fn log_missing(&self, layers: &[usize], steps: u64) {
        for layer in layers {
            let syncer = lock(&self.syncers[*layer]);
            let from: Vec<_> = syncer
                .awaited(steps)
                .iter()
                .map(Member::to_string)
                .collect();
            let (name, from) = (syncer.name(), from.join(", "));
            log::info!("waiting for step {steps} of {name}, from {from}");
        }
    }

    /// Steps that are in the weights of every layer.
    pub(super) fn steps(&self) -> u64 {
        let clocks = self.syncers.iter().map(|syncer| lock(syncer).clock());
        clocks.min().unwrap_or(0)
    }

    /// From now on weights are read: nothing moves until a layer is sent.
    pub(super) fn begin(&self) {
        self.syncers.iter().for_each(|syncer| lock(syncer).begin());
    }

    /// Sends a layer's gradient for iteration `clock`.
    pub(super) fn send_layer(&self, layer: usize, clock: u64, contribution: Contribution<'_>) {
        let priority = self.budget.as_ref().map(|_| {
            let extent = self.extent(layer);
            budget::priority(layer, &contribution, extent, self.w)
        });
        let mut syncer = lock(&self.syncers[layer]);
        let outgoing = syncer.send(clock, contribution);
        let work = syncer.has_unapplied();
        drop(syncer);
        for (to, message) in outgoing {
            match (&self.budget, priority) {
                (Some(budget), Some(priority)) => {
                    let copies = match to {
                        Destination::Server(_) => 1,
                        Destination::Peers => lock(&self.links).peers.len(),
                    };
                    budget.push(to, message, copies, priority);
                }
                _ => self.put(to, message),
            }
        }
        if work {
            // The thread that moves lives until no more layers are sent.
            let _ = self.apply_later.send(layer);
        }
    }

    /// First and last weight of a layer in the buffer.
    fn extent(&self, layer: usize) -> std::ops::Range<usize> {
        lock(&self.syncers[layer]).extent()
    }

    fn put(&self, to: Destination, message: Arc<Message>) {
        let links = lock(&self.links);
        let to: &[Link] = match to {
            Destination::Server(index) => std::slice::from_ref(&links.servers[usize::from(index)]),
            Destination::Peers => &links.peers,
        };
        for link in to {
            self.traffic.sent(&message);
            link.send(message.clone());
        }
    }

    /// What the syncers need of a checkpoint.
    pub(super) fn saved(&self) -> Vec<Saved> {
        let saved = self.syncers.iter().map(|syncer| lock(syncer).saved());
        saved.flatten().collect()
    }

    /// The clock at which all end, if somebody has said so; else `u64::MAX`.
    pub(super) fn end_at(&self) -> u64 {
        self.end_at.load(Relaxed)
    }

    /// True if late updates are dropped.
    pub(super) fn drops_late(&self) -> bool {
        self.drop_late
    }

    /// Lets all end at `clock`: returns when every worker knows it.
    pub(super) fn end_all_at(&self, clock: u64, worker: u16) {
        self.to_coordinator(Message::bare(MessageKind::Finish, worker, clock));
        while !self.end_known.load(Relaxed) && !self.shutdown.has_begun() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What the coordinator says.
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

    fn to_coordinator(&self, message: Message) {
        if let Some(link) = &lock(&self.links).coordinator {
            link.send(Arc::new(message));
        }
    }

    /// Ends all threads but those that read; those end when everybody has said goodbye.
    pub(super) fn send_bye_and_wait(&self, worker: u16) {
        self.done.store(true, Relaxed);
        if self.shutdown.has_begun() {
            return;
        }
        while self
            .budget
            .as_ref()
            .is_some_and(|budget| !budget.is_empty())
            && !self.shutdown.has_begun()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bye = Arc::new(Message::bare(MessageKind::Bye, worker, 0));
        {
            let links = lock(&self.links);
            let all = links
                .servers
                .iter()
                .chain(&links.peers)
                .chain(&links.coordinator);
            all.for_each(|link| link.send(bye.clone()));
        }
        while self.readers() > 0 && !self.shutdown.has_begun() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All connections, to be ended.
    pub(super) fn take_links(&self) -> Vec<Link> {
        let links = std::mem::take(&mut *lock(&self.links));
        let all = links.servers.into_iter().chain(links.peers);
        all.chain(links.coordinator).collect()
    }
}
