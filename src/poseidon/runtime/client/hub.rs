//! The hub of a client: its syncers, its connections, and the completion vector between them.
//!
//! A thread that reads a connection gives each message to the syncer of its layer and applies it
//! to the weights. The threads that compute send through the hub and wait for the completion
//! vector. All other threads are the hub's own, and [`Hub::join`] ends them. Locks are taken in
//! this order: syncer, then completion vector.

mod waiting;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::arithmetic::PlanArithmetic;
use super::super::budget::{self, Budget};
use super::super::error::PoseidonError;
use super::super::link::{Incoming, Link};
use super::super::member::receive_until_bye;
use super::super::shutdown::Shutdown;
use super::super::sync::lock;
use super::super::traffic::Traffic;
use super::replica::Replica;
use crate::poseidon::{
    ClusterInfo, Completion, Contribution, Destination, MemberRole, Message, MessageKind, Saved,
    Sizes, Stragglers, Syncer,
};

/// Longest time in which a waiting thread does not look whether the shutdown has begun.
const LOOK_UP: Duration = Duration::from_millis(50);

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
pub(in super::super) struct Hub {
    syncers: Vec<Mutex<Syncer>>,
    /// Layer of each KV pair, by the pair's number.
    layer_of: Vec<usize>,
    replica: Arc<dyn Replica>,
    /// Arrays of the replica that the rule of the steps uses.
    states: usize,
    math: PlanArithmetic,
    sizes: Arc<Sizes>,
    waited: Mutex<Waited>,
    ready: Condvar,
    /// Notified when a layer has moved, for those who wait for one.
    moved: Condvar,
    links: Mutex<Links>,
    readers: AtomicUsize,
    traffic: Arc<Traffic>,
    budget: Option<Budget<Destination>>,
    /// Layers with received updates that a computing thread leaves to the applying thread.
    apply_later: Mutex<Option<Sender<usize>>>,
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
        syncers: Vec<Syncer>,
        replica: Arc<dyn Replica>,
        budget: Option<Budget<Destination>>,
        shutdown: Shutdown<'static>,
    ) -> Self {
        Self {
            layer_of: cluster.plan.pairs().iter().map(|pair| pair.layer).collect(),
            sizes: Arc::new(cluster.plan.sizes()),
            waited: Mutex::new(Waited {
                bits: Completion::new(syncers.len()),
                needed: 0,
            }),
            syncers: syncers.into_iter().map(Mutex::new).collect(),
            replica,
            states: cluster.plan.step.rule.states(),
            math: PlanArithmetic::new(&cluster.plan),
            ready: Condvar::new(),
            moved: Condvar::new(),
            links: Mutex::default(),
            readers: AtomicUsize::new(0),
            traffic: Arc::new(Traffic::new(&cluster.plan, cluster.start)),
            budget,
            apply_later: Mutex::default(),
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
        drop(lock(&self.apply_later).take());
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
        let (later, to_apply) = channel();
        *lock(&self.apply_later) = Some(later);
        self.start_thread("apply", move |hub| {
            while !hub.done.load(Relaxed) {
                if let Ok(layer) = to_apply.recv_timeout(LOOK_UP) {
                    hub.apply_received(layer, &mut lock(&hub.syncers[layer]));
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
        receive_until_bye(&mut incoming, who, &self.shutdown, |mut message| {
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
            if let Some(later) = &*lock(&self.apply_later) {
                let _ = later.send(layer);
            }
        }
    }

    /// The layer's range in the buffer.
    pub(super) fn extent(&self, layer: usize) -> std::ops::Range<usize> {
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
