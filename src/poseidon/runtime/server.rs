//! A server's process: its share of the KV pairs, and a thread for each worker.

mod places;
mod step_watch;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::arithmetic::PlanArithmetic;
use super::budget::Budget;
use super::checkpoint::CheckpointFolder;
use super::error::PoseidonError;
use super::join::{Joined, join};
use super::link::{Incoming, Link};
use super::member::{
    LOOK_EVERY, MemberJob, close_all, connection_error, identity, keep_common, member_name,
    receive_until_bye, save,
};
use super::model::ModelJob;
use super::queue::Queued;
use super::reception::{Guest, Reception};
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::sync::lock;
use super::traffic::{Traffic, TrafficReport};
use crate::poseidon::{
    ClusterInfo, KvStore, Made, Member, MemberHello, MemberRole, Message, MessageKind, Pool, Sizes,
    Stragglers,
};
use crate::weights::WeightsView;
use places::{Entered, Places, Recipients};
use step_watch::StepWatch;

/// Time between two reports while it runs.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerJob {
    /// Its place in the cluster.
    pub member: MemberJob,
    /// Number of the job, the same for all members.
    pub session: u64,
    /// The model that all members train.
    pub model: ModelJob,
    /// Where it tells what it has sent and received, twice a second.
    pub told: Option<Arc<Mutex<Option<TrafficReport>>>>,
}

impl ServerJob {
    /// A server of the job of that number.
    pub fn new(member: MemberJob, session: u64, model: ModelJob) -> Self {
        Self {
            member,
            session,
            model,
            told: None,
        }
    }
}

/// What the threads of a server share. Locks are taken in this order: a unit of the store, then
/// places; `coordinator` after the store.
struct Server<'s> {
    cluster: ClusterInfo,
    hello: MemberHello,
    sizes: Arc<Sizes>,
    store: KvStore,
    pool: Pool,
    places: Places,
    coordinator: Mutex<Option<Link>>,
    readers: AtomicUsize,
    budget: Option<Budget<Recipients>>,
    /// True once nothing more will be sent.
    done: AtomicBool,
    math: PlanArithmetic,
    folder: Option<CheckpointFolder>,
    identity: std::collections::BTreeMap<String, String>,
    traffic: Traffic,
    queued: Mutex<Queued>,
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
    let (checkpoints, _) = job.member.whole(folder.as_ref())?;
    let listener = job.member.listener()?;
    let hello = MemberHello {
        member,
        session: job.session,
        fingerprint: model.manifest.fingerprint(),
        recipe: job.model.recipe(),
        weights: model.first_hash(&weights),
        images: model.images,
        // A server reads no pictures.
        data: String::new(),
        address: String::new(),
        checkpoints,
        replicas: Vec::new(),
    };
    let Some(joined) = join(&job.member, hello, &listener, stop)? else {
        return Ok(());
    };
    let (cluster, start) = (joined.cluster.clone(), joined.cluster.start);
    let (pool, first) = (Pool::default(), WeightsView::of(&weights));
    let mut store = KvStore::new(&cluster.plan, member, start, first, &pool);
    drop(weights);
    let identity = identity(&cluster, model.manifest.fingerprint());
    if let (Some(folder), 1.., false) = (&folder, start, store.is_empty()) {
        let saved = folder.load(start, &identity)?;
        store.restore(|name, len| saved.array(name, len))?;
    }
    let shutdown = Shutdown::new(stop);
    let server = Server {
        sizes: Arc::new(cluster.plan.sizes()),
        store,
        pool,
        places: Places::new(cluster.plan.workers),
        coordinator: Mutex::default(),
        readers: AtomicUsize::new(0),
        budget,
        done: AtomicBool::new(false),
        math: PlanArithmetic::new(&joined.cluster.plan),
        traffic: Traffic::new(&cluster.plan, start),
        queued: Mutex::default(),
        hello: joined.hello.clone(),
        folder,
        identity,
        key: job.member.key.clone(),
        shutdown: &shutdown,
        cluster,
    };
    server.run(joined, listener, job.told.as_deref());
    let report = server.report();
    if report.dropped_updates.iter().any(|dropped| *dropped > 0) {
        let by_worker = &report.dropped_updates;
        log::info!("updates that came too late and were dropped, by worker: {by_worker:?}");
    }
    drop(server);
    shutdown.into_result()?;
    job.member.write_report(&report)
}

impl Server<'_> {
    /// What it has sent and received.
    fn report(&self) -> TrafficReport {
        let queued = *lock(&self.queued);
        TrafficReport {
            dropped_updates: self.store.dropped(),
            queued_bytes_max: queued.bytes_max,
            replaced_weights: queued.replaced,
            ..self.traffic.report()
        }
    }

    fn run(
        &self,
        joined: Joined,
        listener: TcpListener,
        told: Option<&Mutex<Option<TrafficReport>>>,
    ) {
        let Joined {
            link,
            mut incoming,
            who,
            ..
        } = joined;
        *lock(&self.coordinator) = Some(link);
        std::thread::scope(|scope| {
            self.readers.fetch_add(1, Relaxed);
            scope.spawn(move || {
                receive_until_bye(&mut incoming, &who, self.shutdown, |message| {
                    keep_common(self.folder.as_ref(), &message);
                });
                self.readers.fetch_sub(1, Relaxed);
            });
            if let Some(budget) = &self.budget {
                let over = || self.done.load(Relaxed);
                scope.spawn(move || {
                    budget.send_until(over, self.shutdown, |to, message| self.put(to, &message));
                });
            }
            let mut reception = Some(Reception::new(listener, self.key.clone(), |_| None));
            let mut late = StepWatch::new();
            let mut tell_at = Instant::now();
            while !self.shutdown.has_begun() && !self.places.all_left() {
                if let Some(guest) = reception.as_mut().and_then(Reception::next) {
                    if let Some((incoming, hello, who)) = self.admit(guest) {
                        self.readers.fetch_add(1, Relaxed);
                        scope.spawn(move || {
                            self.serve_worker(incoming, &hello, &who);
                            self.readers.fetch_sub(1, Relaxed);
                        });
                    }
                    continue;
                }
                if self.is_complete() {
                    reception = None;
                }
                late.look(self);
                if let Some(told) = told.filter(|_| Instant::now() >= tell_at) {
                    tell_at = Instant::now() + TELL_EVERY;
                    *lock(told) = Some(self.report());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            scope.spawn(|| reception.map(|reception| reception.end(self.shutdown.reason())));
            self.done.store(true, Relaxed);
            let coordinator = lock(&self.coordinator).take();
            let links: Vec<Link> = self.places.take().into_iter().chain(coordinator).collect();
            links.iter().for_each(|link| self.note_queue(link));
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

    /// Takes a worker that has connected, and sends it the first weights; or sends it the reason
    /// why not.
    fn admit(&self, guest: Guest) -> Option<(Incoming, MemberHello, String)> {
        let Guest {
            link,
            mut incoming,
            hello,
            from,
        } = guest;
        let who = member_name(hello.member, &from.to_string());
        let worker = hello.member.index;
        let known =
            hello.member.role == MemberRole::Worker && hello.session == self.cluster.session;
        let store = &self.store;
        let taken = match known {
            true => self.places.enter(worker, link, store.has_all_weights()),
            false => Err(link),
        };
        match taken {
            Ok(Entered::First) => {}
            Ok(Entered::AfterAnother) => {
                log::info!("{who} takes the place of the one that died");
                store.forget(worker);
            }
            Err(link) => {
                log::warn!("{who} is refused: it is not a worker that is expected");
                let text = "this cluster does not expect you".to_owned();
                link.send(Arc::new(Message::text(MessageKind::Abort, 0, text)));
                return None;
            }
        }
        incoming.expect(self.sizes.clone(), self.pool.clone());
        // It is entered already. So a step that was broadcast to it before these weights is in
        // them, and one that is made later comes after them: it never sees its weights go back.
        store.weights(|made| self.send(Recipients::Worker(worker), &made));
        Some((incoming, hello, who))
    }

    /// Serves one worker until its `Bye`.
    fn serve_worker(&self, mut incoming: Incoming, hello: &MemberHello, who: &str) {
        // No update is read before all workers are connected. A worker that connects after a step
        // would miss its broadcast. Under `onebit` the sums of all steps are needed, and the server
        // does not keep them.
        while !self.shutdown.has_begun() && !self.places.absent().is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
        while !self.shutdown.has_begun() {
            match incoming.next() {
                Ok(message) if message.kind == MessageKind::Bye => {
                    return self.places.leave(hello.member.index);
                }
                Ok(message) if message.kind == MessageKind::Abort => {
                    let (who, why) = (who.to_owned(), message.as_text().to_owned());
                    return self.lose(hello, PoseidonError::Aborted { who, why });
                }
                Ok(message) => {
                    if let Err(error) = self.handle_update(message, hello, who) {
                        return self.shutdown.fail(error);
                    }
                }
                Err(why) => return self.lose(hello, connection_error(who, why)),
            }
        }
    }

    /// Handles the end of a worker's connection without `Bye`: where late updates are dropped, the
    /// others go on while enough are left; else the run ends.
    fn lose(&self, hello: &MemberHello, why: PoseidonError) {
        let worker = hello.member.index;
        let goes_on = |left| !self.shutdown.has_begun() && self.cluster.plan.goes_on_with(left);
        let Some(link) = self.places.lose(worker, goes_on) else {
            return self.shutdown.fail(why);
        };
        self.note_queue(&link);
        link.cut();
        log::warn!("{why}; the others go on, and another one may take its place");
    }

    /// True if no other worker can come.
    fn is_complete(&self) -> bool {
        let may_come = self.cluster.plan.stragglers != Stragglers::Wait;
        !may_come && self.places.absent().is_empty()
    }

    /// Handles one message of a worker: adds its update, and commits the steps that this completes.
    ///
    /// The pair stays locked from the update to the broadcast. So its steps leave in the order in
    /// which they are made, also those that two workers' threads complete one after the other.
    fn handle_update(
        &self,
        mut message: Message,
        from: &MemberHello,
        who: &str,
    ) -> Result<(), PoseidonError> {
        self.traffic.received(&message);
        if message.kind == MessageKind::Alive {
            return Ok(());
        }
        // The connection tells who sends; the header's sender is not trusted.
        message.sender = from.member.index;
        let commit = |made: Made<'_>| self.commit(&made);
        match self.store.receive(message, &self.math, commit) {
            Ok(committed) => committed.unwrap_or(Ok(())),
            Err(why) => Err(PoseidonError::ProtocolViolation {
                who: who.to_owned(),
                why,
            }),
        }
    }

    /// The checkpoint is on the disk before any worker sees the step that completes it. So no
    /// member gets more than one checkpoint ahead of another, and the two that each member keeps
    /// include one that all have.
    fn commit(&self, made: &Made<'_>) -> Result<(), PoseidonError> {
        if let Some(folder) = &self.folder {
            for checkpoint in &made.checkpoints {
                let notes = self.identity.clone();
                save(folder, checkpoint, notes, &self.traffic, |message| {
                    self.to_coordinator(message);
                })?;
            }
        }
        self.send(Recipients::All, made);
        Ok(())
    }

    fn to_coordinator(&self, message: Message) {
        if let Some(link) = &*lock(&self.coordinator) {
            link.send(Arc::new(message));
        }
    }

    /// Adds what has waited for a connection to what the report says of all.
    fn note_queue(&self, link: &Link) {
        let (one, mut all) = (link.queued(), lock(&self.queued));
        all.bytes_max = all.bytes_max.max(one.bytes_max);
        all.replaced += one.replaced;
    }

    /// Sends at once, or when the budget allows. First weights go before steps: a worker cannot
    /// begin without them.
    fn send(&self, to: Recipients, made: &Made<'_>) {
        for message in &made.messages {
            let Some(budget) = &self.budget else {
                self.put(to, message);
                continue;
            };
            let mut priority = made.priority(message.subject);
            let copies = match to {
                Recipients::All => self.places.connected(),
                Recipients::Worker(_) => {
                    priority.magnitude = f32::INFINITY;
                    1
                }
            };
            budget.push(to, message.clone(), copies, priority);
        }
    }

    fn put(&self, to: Recipients, message: &Arc<Message>) {
        self.places.each(to, |link| {
            self.traffic.sent(message);
            link.send(message.clone());
        });
    }
}
