//! The coordinator's process: admits members, sends them the description of the cluster, and passes
//! on at which clock the run ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::error::PoseidonError;
use super::link::{self, Incoming, Link, LinkError};
use super::member::{
    LOOK_EVERY, accept, close_all, connection_error, listen, member_name, write_whole,
};
use super::model::ModelJob;
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::sync::lock;
use crate::poseidon::{
    ClusterSpec, Coordinator, Member, MemberHello, MemberRole, Message, MessageKind,
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

/// The members that are connected.
struct Members {
    core: Coordinator,
    links: BTreeMap<Member, Link>,
    /// True once all members have the description of the cluster.
    started: bool,
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
    let members = Mutex::new(Members {
        core,
        links: BTreeMap::new(),
        started: false,
        unconfirmed: BTreeSet::new(),
    });
    let (shutdown, readers) = (Shutdown::new(stop), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut log_at = Instant::now() + MISSING_EVERY;
        let done = || lock(&members).core.finished() && readers.load(Relaxed) == 0;
        while !shutdown.has_begun() && !done() {
            if let Some((stream, from)) = accept(&listener) {
                readers.fetch_add(1, Relaxed);
                let (members, shutdown, readers) = (&members, &shutdown, &readers);
                scope.spawn(move || {
                    serve(members, shutdown, stream, from, job.key.as_ref());
                    readers.fetch_sub(1, Relaxed);
                });
                continue;
            }
            if Instant::now() >= log_at {
                log_at = Instant::now() + MISSING_EVERY;
                log_missing_members(&lock(&members));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let links = std::mem::take(&mut lock(&members).links).into_values();
        close_all(links.collect(), &shutdown, || readers.load(Relaxed));
    });
    shutdown.into_result()
}

fn log_missing_members(members: &Members) {
    let missing = members.core.missing();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(Member::to_string).collect();
        log::info!("waiting for {}", names.join(", "));
    }
}

/// Serves one connection, from its first message to `Bye`.
fn serve(
    members: &Mutex<Members>,
    shutdown: &Shutdown<'_>,
    stream: TcpStream,
    from: SocketAddr,
    key: Option<&ClusterKey>,
) {
    let opened = link::open(stream, key, false);
    let first = opened.and_then(|(link, mut incoming)| {
        let first = incoming.next()?;
        match first.kind {
            MessageKind::Query => {
                link.send(Arc::new(answer(&lock(members).core, first.as_text())));
                Ok(None)
            }
            MessageKind::Hello => {
                let hello = serde_json::from_str(first.as_text()).map_err(LinkError::Json)?;
                Ok(Some((link, incoming, hello)))
            }
            other => Err(LinkError::NotHello(other)),
        }
    });
    match first {
        Ok(Some((link, incoming, hello))) => {
            let hello: MemberHello = hello;
            let who = member_name(hello.member, &from.to_string());
            let member = hello.member;
            if admit(members, link, hello, &who) {
                receive_from_member(members, shutdown, incoming, member, &who);
            }
        }
        Ok(None) => {}
        Err(why) => log::warn!("the connection from {from} is dropped: {why}"),
    }
}

/// Admits a member, or sends it the reason why not. When it is the last, sends all members the
/// description of the cluster.
fn admit(members: &Mutex<Members>, link: Link, hello: MemberHello, who: &str) -> bool {
    let mut members = lock(members);
    let member = hello.member;
    if let Err(refusal) = members.core.join(hello) {
        log::warn!("{who} is refused: {refusal}");
        let text = refusal.to_string();
        link.send(Arc::new(Message::text(MessageKind::Abort, 0, text)));
        return false;
    }
    log::info!("{who} is here");
    members.links.insert(member, link);
    if let Some(cluster) = members.core.cluster_info() {
        members.started = true;
        log::info!("all are here; beginning after {} steps", cluster.start);
        let text = serde_json::to_string(&cluster).unwrap_or_default();
        let message = Arc::new(Message::text(MessageKind::ClusterInfo, 0, text));
        members
            .links
            .values()
            .for_each(|link| link.send(message.clone()));
    }
    true
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
                let mut members = lock(members);
                // Before the start a member may go and come back: it is started again after a wrong
                // argument, for example, and no other member depends on it yet. Afterwards all
                // others wait for its updates, so the run ends, and a launcher starts all members
                // again: they rejoin at the newest checkpoint that all of them have.
                if members.started {
                    shutdown.fail(connection_error(who, why));
                } else {
                    log::warn!("{who} went away before the start: {why}");
                    members.core.forget(member);
                    members.links.remove(&member);
                }
                return;
            }
        };
        let mut members = lock(members);
        match message.kind {
            MessageKind::Bye => {
                members.core.leave(member);
                if members.core.finished() {
                    let bye = Arc::new(Message::bare(MessageKind::Bye, 0, 0));
                    members
                        .links
                        .values()
                        .for_each(|link| link.send(bye.clone()));
                }
                return;
            }
            MessageKind::Query => {
                let answer = Arc::new(answer(&members.core, message.as_text()));
                members.links[&member].send(answer);
            }
            MessageKind::Finish => members.announce_end(message),
            MessageKind::FinishKnown => members.end_is_known_to(member),
            MessageKind::Abort => {
                let (who, why) = (who.to_owned(), message.as_text().to_owned());
                shutdown.fail(PoseidonError::Aborted { who, why });
                return;
            }
            _ => {}
        }
    }
}

impl Members {
    fn workers(&self) -> impl Iterator<Item = (&Member, &Link)> {
        let members = self.links.iter();
        members.filter(|(member, _)| member.role == MemberRole::Worker)
    }

    /// Sends the clock of the end to all workers, which confirm it.
    fn announce_end(&mut self, message: Message) {
        let message = Arc::new(message);
        self.workers()
            .for_each(|(_, link)| link.send(message.clone()));
        self.unconfirmed = self.workers().map(|(member, _)| *member).collect();
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
