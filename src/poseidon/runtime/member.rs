//! What servers and workers have in common: their place in the cluster, their connections to other
//! members, their checkpoints, and how they leave. `join` has how they come.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::{CheckpointError, CheckpointFolder};
use super::connect::connect;
use super::error::PoseidonError;
use super::link::{self, Incoming, Link, LinkError, SILENCE};
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::traffic::{Traffic, TrafficReport};
use crate::poseidon::{Checkpoint, ClusterInfo, Member, MemberHello, Message, MessageKind, Plan};

/// Time between two polls of listening sockets and flags.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Looks, [`LOOK_EVERY`] apart, in which an `Abort` can still reach the other members: two seconds,
/// or more where this process gets no processor. On a busy machine a shorter time can cut a
/// connection whose thread has not run yet, and its other end blames the wrong member.
const LINGER_LOOKS: u32 = 400;

/// Settings of a server or a worker: its place in the cluster, and its connections.
#[derive(Clone, Debug)]
pub struct MemberJob {
    /// Its number among the members of its role, from 0.
    pub index: u16,
    /// Address of the coordinator, as HOST:PORT.
    pub coordinator: String,
    /// Address to listen on for other members.
    pub listen: SocketAddr,
    /// Folder for its checkpoints; `None`: it writes none.
    pub checkpoints: Option<PathBuf>,
    /// Go on from the newest checkpoint that all members have.
    pub resume: bool,
    /// Authenticates and encrypts all connections.
    pub key: Option<ClusterKey>,
    /// File for the [`TrafficReport`], as JSON.
    pub report: Option<PathBuf>,
    /// Most bytes per second to send; `None`: no limit.
    pub bandwidth_bytes_per_s: Option<f64>,
}

impl MemberJob {
    /// Member `index` of its role, which finds the coordinator at HOST:PORT, listens on any port
    /// and writes neither checkpoints nor a report.
    pub fn new(index: u16, coordinator: &str) -> Self {
        Self {
            index,
            coordinator: coordinator.into(),
            listen: SocketAddr::from(([0, 0, 0, 0], 0)),
            checkpoints: None,
            resume: false,
            key: None,
            report: None,
            bandwidth_bytes_per_s: None,
        }
    }

    /// The folder of its checkpoints, if it writes any. Removes old ones unless the run resumes.
    pub(super) fn folder(&self, member: Member) -> Result<Option<CheckpointFolder>, PoseidonError> {
        let Some(folder) = &self.checkpoints else {
            return Ok(None);
        };
        let folder = CheckpointFolder::new(folder, member)?;
        if !self.resume {
            folder.clear()?;
        }
        Ok(Some(folder))
    }

    /// The whole checkpoints that a run may go on from: their clocks, and hashes of their weights.
    pub(super) fn whole(
        &self,
        folder: Option<&CheckpointFolder>,
    ) -> Result<(Vec<u64>, Vec<u64>), PoseidonError> {
        let whole = match folder {
            Some(folder) if self.resume => folder.whole()?,
            _ => Vec::new(),
        };
        Ok(whole.iter().map(|one| (one.clock, one.weights)).unzip())
    }

    /// The limit of what it sends, checked.
    pub(super) fn bandwidth(&self) -> Result<Option<f64>, PoseidonError> {
        match self.bandwidth_bytes_per_s {
            Some(rate) if rate <= 0.0 || rate.is_nan() => Err(PoseidonError::Bandwidth(rate)),
            rate => Ok(rate),
        }
    }

    pub(super) fn listener(&self) -> Result<TcpListener, PoseidonError> {
        listen(self.listen)
    }

    /// Writes the report, if one is asked for.
    pub(super) fn write_report(&self, report: &TrafficReport) -> Result<(), PoseidonError> {
        let Some(path) = &self.report else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(report).unwrap_or_default();
        write_whole(path, &(text + "\n"))
    }
}

/// Writes a checkpoint, and tells the coordinator so. Without room for it training goes on: the
/// older ones stay, and the next one is tried.
pub(super) fn save(
    folder: &CheckpointFolder,
    checkpoint: &Checkpoint,
    notes: BTreeMap<String, String>,
    traffic: &Traffic,
    to_coordinator: impl FnOnce(Message),
) -> Result<(), PoseidonError> {
    match folder.save(checkpoint, notes) {
        Ok(()) => {
            let text = format!("saved:{}", checkpoint.clock);
            to_coordinator(Message::text(MessageKind::Query, 0, text));
            Ok(())
        }
        Err(why @ CheckpointError::DiskFull { .. }) => {
            log::warn!("{why}. Training goes on, and the next checkpoint is tried");
            traffic.lacks_checkpoint();
            Ok(())
        }
        Err(why) => Err(why.into()),
    }
}

/// Takes the coordinator's answer to [`save`]: the newest checkpoint that all members have.
pub(super) fn keep_common(folder: Option<&CheckpointFolder>, message: &Message) {
    if let (Some(folder), MessageKind::Answer, Ok(clock)) =
        (folder, message.kind, message.as_text().parse())
    {
        folder.keep(clock);
    }
}

/// Writes a file so that it appears complete or not at all.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), PoseidonError> {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|why| PoseidonError::Write {
        path: path.into(),
        why,
    })
}

/// Opens a listening socket that does not block.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, PoseidonError> {
    let error = |why| PoseidonError::Listen {
        address: address.to_string(),
        why,
    };
    let listener = TcpListener::bind(address).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(listener)
}

/// A member and its address, for messages to users.
pub(super) fn member_name(member: Member, address: &str) -> String {
    format!("{member} ({address})")
}

/// The error for a connection to `who` that ended.
pub(super) fn connection_error(who: &str, why: LinkError) -> PoseidonError {
    let who = who.to_owned();
    match why {
        LinkError::Parse(_) | LinkError::NotHello(_) | LinkError::Json(_) | LinkError::Key => {
            PoseidonError::InvalidMessage { who, why }
        }
        why => PoseidonError::ConnectionLost { who, why },
    }
}

/// Connects to a member and sends it `Hello`. `None` if the shutdown began meanwhile.
pub(super) fn connect_to_member(
    who: &str,
    address: &str,
    key: Option<&ClusterKey>,
    hello: &MemberHello,
    shutdown: &Shutdown<'_>,
) -> Result<Option<(Link, Incoming)>, PoseidonError> {
    let Some(connected) = connect(who, address, SILENCE, || shutdown.has_begun()) else {
        return Ok(None);
    };
    let opened = connected
        .map_err(|why| match why.kind() {
            ErrorKind::TimedOut => LinkError::Unreachable,
            _ => why.into(),
        })
        .and_then(|stream| link::open(stream, key, true));
    let (link, incoming) = opened.map_err(|why| connection_error(who, why))?;
    link.send(Arc::new(hello_message(hello)));
    Ok(Some((link, incoming)))
}

pub(super) fn hello_message(hello: &MemberHello) -> Message {
    let text = serde_json::to_string(hello).unwrap_or_default();
    Message::text(MessageKind::Hello, hello.member.index, text)
}

/// Notes that a checkpoint must have in common with this run to be loaded.
pub(super) fn identity(cluster: &ClusterInfo, fingerprint: u64) -> BTreeMap<String, String> {
    let plan = &cluster.plan;
    let schemes = plan
        .layers
        .iter()
        .map(|l| format!("{}: {:?}", l.name, l.scheme));
    [
        ("session", format!("{:016x}", cluster.session)),
        ("model", format!("{fingerprint:016x}")),
        ("workers", plan.workers.to_string()),
        ("servers", plan.servers.to_string()),
        ("images per iteration", plan.images.to_string()),
        ("scheme", schemes.collect::<Vec<_>>().join(", ")),
        (
            "partition",
            format!("{:?} of {} bytes", plan.partition, plan.pair_bytes),
        ),
        ("staleness", staleness(plan)),
        ("solver", plan.recipe.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The staleness of a plan, and what workers read in place of what is missing.
fn staleness(plan: &Plan) -> String {
    match (plan.staleness, plan.reads) {
        (0, _) => "0".into(),
        (steps, reads) => format!("{steps}, reads {reads:?}"),
    }
}

/// Receive loop of a connection to `who`, until its `Bye` or an error, which begins the shutdown.
/// `other` gets the messages that are neither signs of life nor about the end.
pub(super) fn receive_until_bye(
    incoming: &mut Incoming,
    who: &str,
    shutdown: &Shutdown<'_>,
    mut other: impl FnMut(Message),
) {
    loop {
        match incoming.next() {
            Ok(message) => match message.kind {
                MessageKind::Bye => return,
                MessageKind::Abort => {
                    let (who, why) = (who.to_owned(), message.as_text().to_owned());
                    return shutdown.fail(PoseidonError::Aborted { who, why });
                }
                MessageKind::Alive => {}
                _ => other(message),
            },
            Err(why) => return shutdown.fail(connection_error(who, why)),
        }
    }
}

/// Closes all connections. After a failure it first sends the reason as `Abort`, and waits for
/// [`LINGER_LOOKS`] while `readers_left` reading threads still run. After a failure no connection keeps
/// this process longer than that, whether or not its other end reads.
pub(super) fn close_all(
    links: Vec<Link>,
    shutdown: &Shutdown<'_>,
    readers_left: impl Fn() -> usize,
) {
    let mut links = links;
    let mut looks = LINGER_LOOKS;
    let mut wait_while = |holds: &dyn Fn() -> bool| {
        while holds() && looks > 0 {
            looks -= 1;
            std::thread::sleep(LOOK_EVERY);
        }
    };
    if let Some(words) = shutdown.reason() {
        let abort = Arc::new(Message::text(MessageKind::Abort, 0, words));
        std::thread::scope(|scope| {
            // A full connection would keep this thread: it is sent from others.
            for link in &links {
                let abort = abort.clone();
                scope.spawn(move || {
                    link.send(abort);
                    link.close();
                });
            }
            wait_while(&|| !links.iter().all(Link::is_closed));
            let stuck = links.iter().filter(|link| !link.is_closed());
            stuck.for_each(Link::cut);
        });
    }
    links.iter_mut().for_each(Link::finish);
    // Closing both directions at once could reset the connection before the others have read the
    // reason, and they would report a lost connection instead of its cause.
    wait_while(&|| readers_left() > 0);
    links.iter().for_each(Link::cut);
}
