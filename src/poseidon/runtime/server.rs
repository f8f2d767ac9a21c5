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

/// A step that waits for so long is worth a line.
const LATE: Duration = Duration::from_secs(5);

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerJob {
    /// Its place in the cluster.
    pub member: MemberJob,
    /// Which job.
    pub session: u64,
    /// The model.
    pub model: ModelJob,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug)]
enum Recipients {
    /// All workers that are there.
    All,
    /// One of them.
    Worker(usize),
}

/// Everything the threads of a server share.
struct Server<'s> {
    cluster: ClusterInfo,
    hello: MemberHello,
    sizes: Arc<Sizes>,
    store: Mutex<KvStore>,
    /// By worker; those who have said goodbye stay.
    links: Mutex<Vec<Option<Link>>>,
    left: AtomicUsize,
    readers: AtomicUsize,
    budget: Option<Budget<Recipients>>,
    /// Nothing more will be sent.
    done: AtomicBool,
    math: SolverArithmetic,
    folder: Option<CheckpointFolder>,
    identity: std::collections::BTreeMap<String, String>,
    traffic: Traffic,
    key: Option<ClusterKey>,
    shutdown: &'s Shutdown<'s>,
}

/// Serves until all workers have said goodbye, or the first error.
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
        // It holds weights and looks at no pictures.
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
                    budget.keep(over, self.shutdown, |to, message| self.put(to, &message));
                });
            }
            let (mut listener, mut late) = (Some(listener), StepWatch::new());
            while !self.shutdown.has_begun() && self.left.load(Relaxed) < workers {
                if let Some((stream, from)) = listener.as_ref().and_then(accept) {
                    self.readers.fetch_add(1, Relaxed);
                    scope.spawn(move || {
                        self.serve(stream, from);
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
                // The coordinator says goodbye when all others have.
                while !self.shutdown.has_begun() && self.readers.load(Relaxed) > 0 {
                    std::thread::sleep(LOOK_EVERY);
                }
            }
            close_all(links, self.shutdown, || self.readers.load(Relaxed));
        });
    }

    /// One worker, from greeting to goodbye.
    fn serve(&self, stream: TcpStream, from: SocketAddr) {
        let opened =
            link::open(stream, self.key.as_ref(), false).and_then(|(link, mut incoming)| {
                let hello = read_hello(&mut incoming)?;
                incoming.expect(self.sizes.clone());
                Ok((link, incoming, hello))
            });
        let (link, mut incoming, hello) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                log::warn!("somebody at {from} is dropped: {why}");
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
            // Under the lock of the store: no step may come between these weights and the next.
            for message in store.weights() {
                self.send(Recipients::Worker(place), message, &store);
            }
        }
        // No step before all are here: who came later would miss it, and bits cannot be caught up with.
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
                    if let Err(error) = self.take(message, &hello, &who) {
                        return self.shutdown.fail(error);
                    }
                }
                Err(why) => return self.shutdown.fail(connection_error(&who, why)),
            }
        }
    }

    /// One message of a worker.
    fn take(
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
        // Whatever it says: a worker speaks for itself.
        message.sender = from.member.index;
        let mut store = lock(&self.store);
        let out =
            store
                .receive(message, &self.math)
                .map_err(|why| PoseidonError::ProtocolViolation {
                    who: who.to_owned(),
                    why,
                })?;
        // Before anybody sees the step: who has seen it may count on the checkpoint.
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

    /// Sends at once, or when the budget allows: first weights, which all wait for, before steps.
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

/// Notices that the same step has been waiting for the same workers for long, and names them.
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
