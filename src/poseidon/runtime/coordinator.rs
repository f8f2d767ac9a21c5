//! The coordinator's process: admits members, sends them the description of the cluster, and passes
//! on at which clock the run ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::error::PoseidonError;
use super::link::{Incoming, Link};
use super::member::{LOOK_EVERY, close_all, connection_error, listen, member_name, write_whole};
use super::model::ModelJob;
use super::reception::{Guest, Reception};
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::sync::lock;
use crate::poseidon::{
    ClusterInfo, ClusterSpec, Coordinator, Member, MemberRole, Message, MessageKind,
};
use crate::solver::data::Source;

/// Time between two log lines with the members that are missing.
const MISSING_EVERY: Duration = Duration::from_secs(5);

/// Settings of a coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorJob {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// File for the address it listens on: a launcher that asked for any port reads it there.
    pub address_file: Option<PathBuf>,
    /// Number of the job, the same for all members.
    pub session: u64,
    /// The model that all members train.
    pub model: ModelJob,
    /// The workers' pictures, of which only the kind is read; `None`: any kind, but one for all.
    pub data: Option<Source>,
    /// The cluster. Its `images` and `recipe` are ignored: they follow from the model.
    pub cluster: ClusterSpec,
    /// Go on from the newest checkpoint that all members have.
    pub resume: bool,
    /// Authenticates and encrypts all connections.
    pub key: Option<ClusterKey>,
}

impl CoordinatorJob {
    /// A coordinator that listens on `listen`, for a job of that number that begins anew.
    pub fn new(listen: SocketAddr, session: u64, model: ModelJob, cluster: ClusterSpec) -> Self {
        Self {
            listen,
            address_file: None,
            session,
            model,
            data: None,
            cluster,
            resume: false,
            key: None,
        }
    }
}

/// The members that are connected.
struct Members {
    core: Coordinator,
    links: BTreeMap<Member, Link>,
    /// What all members were sent when they had joined.
    started: Option<ClusterInfo>,
    /// The announced end.
    end: Option<Arc<Message>>,
    /// Workers that have not yet confirmed the clock of the end.
    unconfirmed: BTreeSet<Member>,
}

/// Runs until all members have sent `Bye`, or until the first error.
pub fn run_coordinator(job: &CoordinatorJob, stop: &AtomicBool) -> Result<(), PoseidonError> {
    let model = job.model.open()?;
    let plan = job.model.plan(&model, &job.cluster)?;
    for layer in &plan.layers {
        log::info!("{}: {}", layer.name, layer.scheme);
    }
    let core = Coordinator::new(job.session, model.manifest.fingerprint(), plan, job.resume)?;
    let data = job.data.as_ref().and_then(|data| job.model.data(data));
    let core = core.with_data(data.map_or(String::new(), |kind| kind.to_string()));
    let listener = listen(job.listen)?;
    let address = listener.local_addr().map_err(|why| PoseidonError::System {
        what: "learn the own address",
        why,
    })?;
    log::info!("listening on {address}");
    if let Some(file) = &job.address_file {
        write_whole(file, &address.to_string())?;
    }
    let members = Arc::new(Mutex::new(Members {
        core,
        links: BTreeMap::new(),
        started: None,
        end: None,
        unconfirmed: BTreeSet::new(),
    }));
    // It stays open when all are here: who comes too late is told so, and questions are answered.
    let mut reception = Reception::new(listener, job.key.clone(), {
        let members = members.clone();
        move |first| {
            let query = first.kind == MessageKind::Query;
            query.then(|| answer(&lock(&members).core, first.as_text()))
        }
    });
    let members = &*members;
    let (shutdown, readers) = (Shutdown::new(stop), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut log_at = Instant::now() + MISSING_EVERY;
        let done = || lock(members).core.finished() && readers.load(Relaxed) == 0;
        while !shutdown.has_begun() && !done() {
            if let Some(guest) = reception.next() {
                let admitted = admit(members, guest);
                if let Some(refusal) = nothing_in_common(members) {
                    shutdown.fail(PoseidonError::Resume(refusal));
                }
                if let Some((incoming, member, who)) = admitted {
                    readers.fetch_add(1, Relaxed);
                    let (shutdown, readers) = (&shutdown, &readers);
                    scope.spawn(move || {
                        receive_from_member(members, shutdown, incoming, member, &who);
                        readers.fetch_sub(1, Relaxed);
                    });
                }
                continue;
            }
            if Instant::now() >= log_at {
                log_at = Instant::now() + MISSING_EVERY;
                log_missing_members(&lock(members));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        scope.spawn(|| reception.end(shutdown.reason()));
        let links = std::mem::take(&mut lock(members).links).into_values();
        close_all(links.collect(), &shutdown, || readers.load(Relaxed));
    });
    shutdown.into_result()
}

fn log_missing_members(members: &Members) {
    let named = |members: &[Member]| {
        let names: Vec<String> = members.iter().map(Member::to_string).collect();
        names.join(", ")
    };
    let missing = members.core.missing();
    if !missing.is_empty() {
        log::info!("waiting for {}", named(&missing));
    }
    if !members.unconfirmed.is_empty() {
        let silent: Vec<Member> = members.unconfirmed.iter().copied().collect();
        log::info!("the end of the run is known to all but {}", named(&silent));
    }
}

/// Admits a member, or sends it the reason why not. When it is the last, sends all members the
/// description of the cluster. Gives the reading half of its connection, and its name.
fn admit(members: &Mutex<Members>, guest: Guest) -> Option<(Incoming, Member, String)> {
    let Guest {
        link,
        incoming,
        hello,
        from,
    } = guest;
    let mut members = lock(members);
    let member = hello.member;
    let who = member_name(member, &from.to_string());
    if let Err(refusal) = members.core.join(hello) {
        log::warn!("{who} is refused: {refusal}");
        let text = refusal.to_string();
        link.send(Arc::new(Message::text(MessageKind::Abort, 0, text)));
        return None;
    }
    log::info!("{who} is here");
    members.links.insert(member, link);
    if members.started.is_some() {
        members.tell_late(member);
    } else if members.core.nothing_in_common().is_none()
        && let Some(cluster) = members.core.cluster_info()
    {
        members.log_start(cluster.start);
        let message = description(&cluster);
        members.started = Some(cluster);
        members
            .links
            .values()
            .for_each(|link| link.send(message.clone()));
    }
    Some((incoming, member, who))
}

fn description(cluster: &ClusterInfo) -> Arc<Message> {
    let text = serde_json::to_string(cluster).unwrap_or_default();
    Arc::new(Message::text(MessageKind::ClusterInfo, 0, text))
}

/// Why the run cannot be gone on with, once all are here.
fn nothing_in_common(members: &Mutex<Members>) -> Option<String> {
    let members = lock(members);
    if members.started.is_some() {
        return None;
    }
    let refusal = members.core.nothing_in_common()?;
    log::warn!("{refusal}");
    Some(refusal.to_string())
}

/// Receive loop of a member's connection, until its `Bye` or an error.
fn receive_from_member(
    members: &Mutex<Members>,
    shutdown: &Shutdown<'_>,
    mut incoming: Incoming,
    member: Member,
    who: &str,
) {
    loop {
        let message = match incoming.next() {
            Ok(message) => message,
            Err(why) => {
                lock(members).gone(member, who, connection_error(who, why), shutdown);
                return;
            }
        };
        let mut members = lock(members);
        match message.kind {
            MessageKind::Bye => {
                members.core.leave(member);
                members.end_is_known_to(member);
                members.say_bye_when_finished();
                return;
            }
            MessageKind::Query => {
                let answer = members.answer(member, message.as_text());
                if let Some(link) = members.links.get(&member) {
                    link.send(Arc::new(answer));
                }
            }
            MessageKind::Finish => members.announce_end(message),
            MessageKind::FinishKnown => members.end_is_known_to(member),
            MessageKind::Abort => {
                let (name, why) = (who.to_owned(), message.as_text().to_owned());
                let error = PoseidonError::Aborted { who: name, why };
                members.gone(member, who, error, shutdown);
                return;
            }
            _ => {}
        }
    }
}

impl Members {
    /// Says where the run begins, and which newer checkpoints are passed over.
    fn log_start(&self, start: u64) {
        for (clock, [one, other]) in self.core.passed_over(start) {
            log::warn!(
                "the checkpoint after {clock} steps is passed over: {one} and {other} hold other weights"
            );
        }
        log::info!("all are here; beginning after {start} steps");
    }

    /// Handles the end of a member's connection without `Bye`. Before the start a member may go and
    /// come back: it is started again after a wrong argument, for example, and no other member
    /// depends on it yet. Afterwards all others wait for its updates, so the run ends, and a
    /// launcher starts all members again: they rejoin at the newest checkpoint that all of them
    /// have. Where late updates are dropped, the others go on without a worker while enough are
    /// left.
    fn gone(&mut self, member: Member, who: &str, why: PoseidonError, shutdown: &Shutdown<'_>) {
        if shutdown.has_begun() {
            // It follows from the error that is kept already, or was asked for.
            return;
        }
        if self.started.is_none() {
            log::warn!("{who} went away before the start: {why}");
            self.core.forget(member);
        } else if self.core.lose(member) {
            log::warn!("{why}; the others go on, and another one may take its place");
        } else {
            return shutdown.fail(why);
        }
        if let Some(link) = self.links.remove(&member) {
            link.cut();
        }
        self.end_is_known_to(member);
        self.say_bye_when_finished();
    }

    /// Describes the cluster to a worker that takes the place of a dead one.
    fn tell_late(&mut self, member: Member) {
        let (Some(cluster), Some(link)) = (&self.started, self.links.get(&member)) else {
            return;
        };
        let late = ClusterInfo {
            late: true,
            ..cluster.clone()
        };
        link.send(description(&late));
        if let Some(end) = &self.end {
            link.send(end.clone());
        }
    }

    fn say_bye_when_finished(&self) {
        if self.core.finished() {
            let bye = Arc::new(Message::bare(MessageKind::Bye, 0, 0));
            self.links.values().for_each(|link| link.send(bye.clone()));
        }
    }

    /// Answers a member's question, or takes its word that it has written a checkpoint.
    fn answer(&mut self, member: Member, text: &str) -> Message {
        let saved = text.strip_prefix("saved:");
        match saved.and_then(|clock| clock.parse().ok()) {
            Some(clock) => {
                let common = self.core.saved(member, clock);
                Message::text(MessageKind::Answer, 0, common.to_string())
            }
            None => answer(&self.core, text),
        }
    }

    fn workers(&self) -> impl Iterator<Item = (&Member, &Link)> {
        let members = self.links.iter();
        members.filter(|(member, _)| member.role == MemberRole::Worker)
    }

    /// Sends the clock of the end to all workers, which confirm it. One that has left is not read
    /// any more, and passes no clock.
    fn announce_end(&mut self, message: Message) {
        let message = Arc::new(message);
        self.end = Some(message.clone());
        self.workers()
            .for_each(|(_, link)| link.send(message.clone()));
        let there = self.workers().map(|(member, _)| *member);
        self.unconfirmed = there
            .filter(|member| !self.core.has_left(*member))
            .collect();
    }

    /// Notes that a worker has confirmed the end. When all have, tells the workers so: until then
    /// the one that asked for the end stands still, so that no worker can pass the clock of the
    /// end.
    fn end_is_known_to(&mut self, member: Member) {
        if self.unconfirmed.remove(&member) && self.unconfirmed.is_empty() {
            let message = Arc::new(Message::bare(MessageKind::FinishKnown, 0, 0));
            self.workers()
                .for_each(|(_, link)| link.send(message.clone()));
        }
    }
}

fn answer(core: &Coordinator, key: &str) -> Message {
    match core.query(key) {
        Ok(value) => Message::text(MessageKind::Answer, 0, value.to_string()),
        Err(refusal) => Message::text(MessageKind::Abort, 0, refusal.to_string()),
    }
}
