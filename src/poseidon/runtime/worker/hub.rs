//! The hub of a worker: its syncers, its connections, and the completion vector between them.
//!
//! A thread that reads a connection gives each message to the syncer of its layer and applies it
//! to the weights. The threads that compute send through the hub and wait for the completion
//! vector. Locks are taken in this order: syncer, then completion vector.

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

/// Longest time in which a waiting thread does not look whether the shutdown has begun.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Time after which a worker that still waits logs what it waits for.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Which layers have seen enough steps for the next iteration.
struct Waited {
    bits: Completion,
    needed: u64,
}

/// The writing halves of the connections, by the role of the other end.
#[derive(Default)]
struct Links {
    coordinator: Option<Link>,
    servers: Vec<Link>,
    peers: Vec<Link>,
}

/// Syncers and connections of one worker, shared by its threads.
pub(super) struct Hub<'h> {
    syncers: Vec<Mutex<Syncer>>,
    /// Layer of each KV pair, by the pair's number.
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
    /// Layers with received updates that a computing thread leaves to the applying thread.
    apply_later: Sender<usize>,
    to_apply: Mutex<Option<Receiver<usize>>>,
    /// True once no more layers will be sent.
    done: AtomicBool,
    drop_late: bool,
    /// The clock at which all workers end; `u64::MAX` while none is announced.
    end_at: AtomicU64,
    /// True once every worker has confirmed `end_at`.
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

    pub(super) fn weights(&self) -> WeightsView<'h> {
        self.w
    }

    /// Sizes of the payloads that the plan allows.
    pub(super) fn sizes(&self) -> Arc<Sizes> {
        self.sizes.clone()
    }

    /// Counters of what was sent and received.
    pub(super) fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    /// Starts a thread that reads a connection; [`Hub::readers`] counts it until `read` returns.
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

    /// Reading threads that still run.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Relaxed)
    }

    /// Starts the thread that applies updates for the computing threads, and with a budget the one
    /// that sends within it.
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
                budget.send_until(over, self.shutdown, |to, message| self.put(to, message))
            });
        }
    }

    /// Registers the writing half of a connection to a server or a peer.
    pub(super) fn register(&self, role: MemberRole, link: Link) {
        let mut links = lock(&self.links);
        match role {
            MemberRole::Server => links.servers.push(link),
            MemberRole::Worker => links.peers.push(link),
        }
    }

    /// Registers the writing half of the connection to the coordinator.
    pub(super) fn register_coordinator(&self, link: Link) {
        lock(&self.links).coordinator = Some(link);
    }

    /// Receive loop of a connection to a server or a peer, until its `Bye` or an error.
    pub(super) fn read(&self, mut incoming: Incoming, from: (MemberRole, u16), who: &str) {
        receive_until_bye(&mut incoming, who, self.shutdown, |mut message| {
            self.traffic.received(&message);
            // The connection tells who sends; the header's sender is not trusted. Factors are taken
            // from peers only, weights and sums from servers only; the rest is ignored.
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
                // A closed layer keeps the message, because a pass reads its weights: it is applied
                // after `send_layer` has opened the layer, or by the next `wait_for`.
                Ok(()) => self.apply_received(layer, &mut syncer),
                Err(why) => {
                    let who = who.to_owned();
                    self.shutdown
                        .fail(PoseidonError::ProtocolViolation { who, why });
                }
            }
        });
    }

    /// Applies what a layer has received, and updates its bit of the completion vector. The caller
    /// holds the syncer's lock, so that the bit always fits the syncer's clock.
    fn apply_received(&self, layer: usize, syncer: &mut Syncer) {
        syncer.apply_received(self.w, self.history, &self.math);
        let mut waited = lock(&self.waited);
        let ready = syncer.clock() >= waited.needed;
        waited.bits.set(layer, ready);
        if ready && waited.bits.all() {
            self.ready.notify_all();
        }
    }

    /// Waits until `needed` steps are in the weights of every layer. False if the run ends before
    /// that.
    pub(super) fn wait_for(&self, needed: u64) -> bool {
        lock(&self.waited).needed = needed;
        // The bits still answer for the previous `needed`, so each is computed anew. `needed` is
        // set first: a reading thread that comes in between already computes with the new one.
        for (layer, syncer) in self.syncers.iter().enumerate() {
            self.apply_received(layer, &mut lock(syncer));
        }
        let mut long = Instant::now() + LONG_WAIT;
        let mut waited = lock(&self.waited);
        while !waited.bits.all() {
            // Where late updates are dropped, an announced end takes effect at once: the missing
            // steps may never be made, because the other workers have stopped.
            if self.shutdown.has_begun() || self.drop_late && self.end_at() != u64::MAX {
                return false;
            }
            if Instant::now() >= long {
                long = Instant::now() + LONG_WAIT;
                let missing: Vec<usize> = waited.bits.missing().collect();
                // The log line needs the syncers' locks, which come before this one. The bits may
                // change meanwhile, so the loop looks at them again before it waits.
                drop(waited);
                self.log_missing(&missing, needed);
                waited = lock(&self.waited);
                continue;
            }
            // `apply_received` notifies. The shutdown does not, hence the time limit.
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

    /// Begins a pass, which reads the weights: each layer stays as it is until it is sent.
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
            // Updates that arrived while the layer was closed: no reading thread comes back for
            // them, and applying them here would delay the backward pass of the layers below. The
            // applying thread lives until no more layers are sent, so it receives this.
            let _ = self.apply_later.send(layer);
        }
    }

    /// The layer's range in the buffer.
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

    /// What a checkpoint must hold of the syncers.
    pub(super) fn saved(&self) -> Vec<Saved> {
        let saved = self.syncers.iter().map(|syncer| lock(syncer).saved());
        saved.flatten().collect()
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
        if let Some(link) = &lock(&self.links).coordinator {
            link.send(Arc::new(message));
        }
    }

    /// Ends the sending threads, sends `Bye` on all connections, and waits until the reading
    /// threads have received the `Bye` of all others.
    pub(super) fn send_bye_and_wait(&self, worker: u16) {
        self.done.store(true, Relaxed);
        if self.shutdown.has_begun() {
            return;
        }
        // `Bye` ends a connection: what waits for the budget must be sent before.
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

    /// Removes all connections, for the caller to close.
    pub(super) fn take_links(&self) -> Vec<Link> {
        let links = std::mem::take(&mut *lock(&self.links));
        let all = links.servers.into_iter().chain(links.peers);
        all.chain(links.coordinator).collect()
    }
}
