//! A server's process: its share of the KV pairs, and a thread for each worker.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::arithmetic::SolverArithmetic;
use super::budget::Budget;
use super::checkpoint::CheckpointFolder;
use super::error::PoseidonError;
use super::link::{self, Link};
use super::member::{
    Joined, LOOK_EVERY, MemberJob, accept, close_all, connection_error, identity, join,
    member_name, read_hello, receive_until_bye,
};
use super::model::{Model, ModelJob, hash};
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::sync::lock;
use super::traffic::Traffic;
use crate::poseidon::{
    ClusterInfo, KvStore, Member, MemberHello, MemberRole, Message, MessageKind, Sizes,
};
use crate::weights::WeightsView;

/// Time after which a step that still waits is logged, with the workers it waits for.
const LATE: Duration = Duration::from_secs(5);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerJob {
    /// Its place in the cluster.
    pub member: MemberJob,
    /// Number of the job, the same for all members.
    pub session: u64,
    /// The model that all members train.
    pub model: ModelJob,
}

/// The workers that a message goes to.
#[derive(Clone, Copy, Debug)]
enum Recipients {
    /// All workers that are connected.
    All,
    /// The worker of this index.
    Worker(usize),
}

/// What the threads of a server share. Locks are taken in this order: store, then links.
struct Server<'s> {
    cluster: ClusterInfo,
    hello: MemberHello,
    sizes: Arc<Sizes>,
    store: Mutex<KvStore>,
    /// Connections by worker. They stay after a worker's `Bye`.
    links: Mutex<Vec<Option<Link>>>,
    left: AtomicUsize,
    readers: AtomicUsize,
    budget: Option<Budget<Recipients>>,
    /// True once nothing more will be sent.
    done: AtomicBool,
    math: SolverArithmetic,
    folder: Option<CheckpointFolder>,
    identity: std::collections::BTreeMap<String, String>,
    traffic: Traffic,
    key: Option<ClusterKey>,
    shutdown: &'s Shutdown<'s>,
}

/// Serves until all workers have sent `Bye`, or until the first error.
pub fn run_server(job: &ServerJob, stop: &AtomicBool) -> Result<(), PoseidonError> {
    let member = Member {
        role: MemberRole::Server,
        index: job.member.index,
    };
    let budget = job.member.bandwidth()?.map(Budget::new);
    let model = job.model.open()?;
    let weights = job.model.first_weights(&model)?;
    let folder = job.member.folder(member)?;
    let checkpoints = folder
        .as_ref()
        .map_or(Ok(Vec::new()), CheckpointFolder::clocks)?;
    let listener = job.member.listener()?;
    let hello = MemberHello {
        member,
        session: job.session,
        fingerprint: model.manifest.fingerprint(),
        recipe: job.model.recipe(),
        weights: hash(&weights),
        images: model.images,
        // A server reads no pictures.
        data: String::new(),
        address: String::new(),
        checkpoints,
    };
    let Some(joined) = join(&job.member, hello, &listener, stop)? else {
        return Ok(());
    };
    let (cluster, start) = (joined.cluster.clone(), joined.cluster.start);
    let mut store = KvStore::new(
        &cluster.plan,
        job.member.index,
        start,
        WeightsView::of(&weights),
    );
    let identity = identity(&cluster, &model);
    if let (Some(folder), 1..) = (&folder, start) {
        let saved = folder.load(start, &identity)?;
        store.restore(|name, len| saved.array(name, len))?;
    }
    let shutdown = Shutdown::new(stop);
    let server = Server {
        sizes: Arc::new(cluster.plan.sizes()),
        store: Mutex::new(store),
        links: Mutex::new((0..cluster.plan.workers).map(|_| None).collect()),
        left: AtomicUsize::new(0),
        readers: AtomicUsize::new(0),
        budget,
        done: AtomicBool::new(false),
        math: arithmetic(&job.model, &model),
        traffic: Traffic::new(&cluster.plan, start),
        hello: joined.hello.clone(),
        folder,
        identity,
        key: job.member.key.clone(),
        shutdown: &shutdown,
        cluster,
    };
    server.run(joined, listener);
    let mut report = server.traffic.report();
    report.dropped_updates = lock(&server.store).dropped().to_vec();
    if report.dropped_updates.iter().any(|dropped| *dropped > 0) {
        let by_worker = &report.dropped_updates;
        log::info!("updates that came too late and were dropped, by worker: {by_worker:?}");
    }
    drop(server);
    shutdown.into_result()?;
    job.member.write_report(&report)
}

fn arithmetic(job: &ModelJob, model: &Model) -> SolverArithmetic {
    SolverArithmetic::new(&job.spec, model, job.threads)
}

impl Server<'_> {
    fn run(&self, joined: Joined, listener: TcpListener) {
        let Joined {
            link,
            mut incoming,
            who,
            ..
        } = joined;
        let workers = usize::from(self.cluster.plan.workers);
        std::thread::scope(|scope| {
            self.readers.fetch_add(1, Relaxed);
            scope.spawn(move || {
                receive_until_bye(&mut incoming, &who, self.shutdown, |_| {});
                self.readers.fetch_sub(1, Relaxed);
            });
            if let Some(budget) = &self.budget {
                let over = || self.done.load(Relaxed);
                scope.spawn(move || {
                    budget.send_until(over, self.shutdown, |to, message| self.put(to, &message));
                });
            }
            let (mut listener, mut late) = (Some(listener), StepWatch::new());
            while !self.shutdown.has_begun() && self.left.load(Relaxed) < workers {
                if let Some((stream, from)) = listener.as_ref().and_then(accept) {
                    self.readers.fetch_add(1, Relaxed);
                    scope.spawn(move || {
                        self.serve_worker(stream, from);
                        self.readers.fetch_sub(1, Relaxed);
                    });
                } else if lock(&self.links).iter().all(Option::is_some) {
                    listener = None;
                }
                late.look(&self.store);
                std::thread::sleep(LOOK_EVERY);
            }
            self.done.store(true, Relaxed);
            let links = std::mem::take(&mut *lock(&self.links));
            let links: Vec<Link> = links.into_iter().flatten().chain([link]).collect();
            if !self.shutdown.has_begun() {
                let bye = Arc::new(Message::bare(MessageKind::Bye, self.hello.member.index, 0));
                links.iter().for_each(|link| link.send(bye.clone()));
                // The coordinator answers with `Bye` when all members have sent theirs.
                while !self.shutdown.has_begun() && self.readers.load(Relaxed) > 0 {
                    std::thread::sleep(LOOK_EVERY);
                }
            }
            close_all(links, self.shutdown, || self.readers.load(Relaxed));
        });
    }

    /// Serves one worker, from `Hello` to `Bye`.
    fn serve_worker(&self, stream: TcpStream, from: SocketAddr) {
        let opened =
            link::open(stream, self.key.as_ref(), false).and_then(|(link, mut incoming)| {
                let hello = read_hello(&mut incoming)?;
                incoming.expect(self.sizes.clone());
                Ok((link, incoming, hello))
            });
        let (link, mut incoming, hello) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                log::warn!("the connection from {from} is dropped: {why}");
                return;
            }
        };
        let who = member_name(hello.member, &from.to_string());
        let place = usize::from(hello.member.index);
        {
            let store = lock(&self.store);
            let mut links = lock(&self.links);
            let free = links.get(place).is_some_and(Option::is_none);
            let known =
                hello.member.role == MemberRole::Worker && hello.session == self.cluster.session;
            if !known || !free {
                log::warn!("{who} is refused: it is not the worker that is expected");
                let text = "this cluster does not expect you".to_owned();
                link.send(Arc::new(Message::text(MessageKind::Abort, 0, text)));
                return;
            }
            links[place] = Some(link);
            drop(links);
            // Still under the lock of the store: a step in between would be broadcast before these
            // weights are sent, and the worker would see its weights go back.
            for message in store.weights() {
                self.send(Recipients::Worker(place), message, &store);
            }
        }
        // No update is read before all workers are connected. A worker that connects after a step
        // would miss its broadcast. Under `onebit` the sums of all steps are needed, and the server
        // does not keep them.
        while !self.shutdown.has_begun() && lock(&self.links).iter().any(Option::is_none) {
            std::thread::sleep(LOOK_EVERY);
        }
        while !self.shutdown.has_begun() {
            match incoming.next() {
                Ok(message) if message.kind == MessageKind::Bye => {
                    self.left.fetch_add(1, Relaxed);
                    return;
                }
                Ok(message) => {
                    if let Err(error) = self.handle_update(message, &hello, &who) {
                        return self.shutdown.fail(error);
                    }
                }
                Err(why) => return self.shutdown.fail(connection_error(&who, why)),
            }
        }
    }

    /// Handles one message of a worker: adds its update, and commits the steps that this completes.
    ///
    /// The store stays locked from the update to the last broadcast. So steps leave in the order in
    /// which they are made, also those that two workers' threads complete one after the other.
    fn handle_update(
        &self,
        mut message: Message,
        from: &MemberHello,
        who: &str,
    ) -> Result<(), PoseidonError> {
        self.traffic.received(&message);
        match message.kind {
            MessageKind::Alive => return Ok(()),
            MessageKind::Abort => {
                let (who, why) = (who.to_owned(), message.as_text().to_owned());
                return Err(PoseidonError::Aborted { who, why });
            }
            _ => {}
        }
        // The connection tells who sends; the header's sender is not trusted.
        message.sender = from.member.index;
        let mut store = lock(&self.store);
        let out =
            store
                .receive(message, &self.math)
                .map_err(|why| PoseidonError::ProtocolViolation {
                    who: who.to_owned(),
                    why,
                })?;
        // The checkpoint is on the disk before any worker sees the step that completes it. So no
        // member gets more than one checkpoint ahead of another, and the two that each member keeps
        // include one that all have.
        while let Some(checkpoint) = store.take_checkpoint() {
            if let Some(folder) = &self.folder {
                folder.save(&checkpoint, self.identity.clone())?;
            }
        }
        for message in out {
            self.send(Recipients::All, message, &store);
        }
        Ok(())
    }

    /// Sends at once, or when the budget allows. First weights go before steps: a worker cannot
    /// begin without them.
    fn send(&self, to: Recipients, message: Message, store: &MutexGuard<'_, KvStore>) {
        let Some(budget) = &self.budget else {
            return self.put(to, &Arc::new(message));
        };
        let mut priority = store.priority_of(message.subject);
        let copies = match to {
            Recipients::All => lock(&self.links).iter().flatten().count(),
            Recipients::Worker(_) => {
                priority.magnitude = f32::INFINITY;
                1
            }
        };
        budget.push(to, Arc::new(message), copies, priority);
    }

    fn put(&self, to: Recipients, message: &Arc<Message>) {
        let links = lock(&self.links);
        let to = match to {
            Recipients::All => &links[..],
            Recipients::Worker(place) => links.get(place..=place).unwrap_or_default(),
        };
        for link in to.iter().flatten() {
            self.traffic.sent(message);
            link.send(message.clone());
        }
    }
}

/// Logs a step that has waited for the same workers for long.
struct StepWatch {
    seen: Option<(u64, Vec<u16>)>,
    since: Instant,
}

impl StepWatch {
    fn new() -> Self {
        Self {
            seen: None,
            since: Instant::now(),
        }
    }

    fn look(&mut self, store: &Mutex<KvStore>) {
        if self.since.elapsed() < LATE / 2 {
            return;
        }
        let late = lock(store).late();
        if let (Some((step, workers)), true) = (&late, late == self.seen) {
            let names: Vec<_> = workers.iter().map(|w| format!("worker {w}")).collect();
            log::info!("step {step} is waiting for {}", names.join(", "));
        }
        self.seen = late;
        self.since = Instant::now();
    }
}
