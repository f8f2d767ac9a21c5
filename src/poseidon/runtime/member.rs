//! What servers and workers have in common: how they join the cluster, and how they leave it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::checkpoint::CheckpointFolder;
use super::error::PoseidonError;
use super::link::{self, Incoming, Link, LinkError};
use super::model::Model;
use super::secure::ClusterKey;
use super::shutdown::Shutdown;
use super::traffic::TrafficReport;
use crate::poseidon::{ClusterInfo, Member, MemberHello, Message, MessageKind};

/// Time between two polls of listening sockets and flags.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time between two log lines while the coordinator does not listen yet.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Time in which an `Abort` can still reach the other members.
const LINGER: Duration = Duration::from_millis(500);

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

/// Writes a file so that it appears complete or not at all.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), PoseidonError> {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|why| PoseidonError::Write {
        path: path.into(),
        why,
    })
}

/// Opens a listening socket for [`accept`], which does not block.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, PoseidonError> {
    let error = |why| PoseidonError::Listen {
        address: address.to_string(),
        why,
    };
    let listener = TcpListener::bind(address).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(listener)
}

/// A new connection, if there is one.
pub(super) fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    let (stream, address) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    Some((stream, address))
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

/// Reads the first message of a new connection, which must be `Hello`.
pub(super) fn read_hello(incoming: &mut Incoming) -> Result<MemberHello, LinkError> {
    let first = incoming.next()?;
    if first.kind != MessageKind::Hello {
        return Err(LinkError::NotHello(first.kind));
    }
    serde_json::from_str(first.as_text()).map_err(LinkError::Json)
}

/// Connects to a member and sends it `Hello`.
pub(super) fn connect_to_member(
    who: &str,
    address: &str,
    key: Option<&ClusterKey>,
    hello: &MemberHello,
) -> Result<(Link, Incoming), PoseidonError> {
    let opened = TcpStream::connect(address)
        .map_err(LinkError::from)
        .and_then(|stream| link::open(stream, key, true));
    let (link, incoming) = opened.map_err(|why| connection_error(who, why))?;
    link.send(Arc::new(hello_message(hello)));
    Ok((link, incoming))
}

fn hello_message(hello: &MemberHello) -> Message {
    let text = serde_json::to_string(hello).unwrap_or_default();
    Message::text(MessageKind::Hello, hello.member.index, text)
}

/// What a member has once it has joined.
pub(super) struct Joined {
    pub(super) cluster: ClusterInfo,
    pub(super) hello: MemberHello,
    pub(super) link: Link,
    pub(super) incoming: Incoming,
    /// Name of the coordinator, for messages.
    pub(super) who: String,
}

/// Joins the cluster: waits until the coordinator listens, then until all members have joined.
/// `None` if `stop` was set meanwhile. Fills in the address in `hello`.
pub(super) fn join(
    job: &MemberJob,
    mut hello: MemberHello,
    listener: &TcpListener,
    stop: &AtomicBool,
) -> Result<Option<Joined>, PoseidonError> {
    let who = format!("the coordinator ({})", job.coordinator);
    let Some(stream) = connect_when_listening(&job.coordinator, stop)? else {
        return Ok(None);
    };
    let addresses = listener
        .local_addr()
        .and_then(|own| Ok((own, stream.local_addr()?)));
    let (own, local) = addresses.map_err(|why| PoseidonError::System {
        what: "learn the own address",
        why,
    })?;
    // A member that listens on all interfaces does not know the address at which others reach it.
    // The address of its own end towards the coordinator is one that leads to the cluster.
    let ip: IpAddr = if own.ip().is_unspecified() {
        local.ip()
    } else {
        own.ip()
    };
    hello.address = SocketAddr::new(ip, own.port()).to_string();
    let (link, mut incoming) =
        link::open(stream, job.key.as_ref(), true).map_err(|why| connection_error(&who, why))?;
    link.send(Arc::new(hello_message(&hello)));
    let cluster = loop {
        if stop.load(Relaxed) {
            return Ok(None);
        }
        let message = incoming.next().map_err(|why| connection_error(&who, why))?;
        match message.kind {
            MessageKind::ClusterInfo => {
                let read =
                    serde_json::from_str::<ClusterInfo>(message.as_text()).map_err(LinkError::Json);
                break read.map_err(|why| connection_error(&who, why))?;
            }
            MessageKind::Abort => {
                let why = message.as_text().to_owned();
                return Err(PoseidonError::Refused { who, why });
            }
            _ => {}
        }
    };
    cluster.plan.check()?;
    Ok(Some(Joined {
        cluster,
        hello,
        link,
        incoming,
        who,
    }))
}

/// Connects as soon as `address` accepts connections; `None` if `stop` was set meanwhile.
fn connect_when_listening(
    address: &str,
    stop: &AtomicBool,
) -> Result<Option<TcpStream>, PoseidonError> {
    let mut log_at = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(Some(stream)),
            Err(why) if why.kind() == ErrorKind::InvalidInput => {
                let address = address.to_owned();
                return Err(PoseidonError::Address { address, why });
            }
            Err(why) if Instant::now() >= log_at => {
                log_at = Instant::now() + LOG_EVERY;
                log::info!("waiting for a coordinator at {address} ({why})");
            }
            Err(_) => {}
        }
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            if stop.load(Relaxed) {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Notes that a checkpoint must have in common with this run to be loaded.
pub(super) fn identity(cluster: &ClusterInfo, model: &Model) -> BTreeMap<String, String> {
    let plan = &cluster.plan;
    let schemes = plan
        .layers
        .iter()
        .map(|l| format!("{}: {:?}", l.name, l.scheme));
    [
        ("session", format!("{:016x}", cluster.session)),
        ("model", format!("{:016x}", model.manifest.fingerprint())),
        ("workers", plan.workers.to_string()),
        ("servers", plan.servers.to_string()),
        ("images per iteration", plan.images.to_string()),
        ("scheme", schemes.collect::<Vec<_>>().join(", ")),
        (
            "partition",
            format!("{:?} of {} bytes", plan.partition, plan.pair_bytes),
        ),
        ("staleness", plan.staleness.to_string()),
        ("solver", plan.recipe.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
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

/// Closes all connections. After a failure it first sends the reason as `Abort`, and waits up to
/// [`LINGER`] while `readers_left` reading threads still run.
pub(super) fn close_all(
    links: Vec<Link>,
    shutdown: &Shutdown<'_>,
    readers_left: impl Fn() -> usize,
) {
    let mut links = links;
    if let Some(words) = shutdown.reason() {
        let abort = Arc::new(Message::text(MessageKind::Abort, 0, words));
        links.iter().for_each(|link| link.send(abort.clone()));
    }
    links.iter_mut().for_each(Link::finish);
    let end = Instant::now() + LINGER;
    // Closing both directions at once could reset the connection before the others have read the
    // reason, and they would report a lost connection instead of its cause.
    while readers_left() > 0 && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    links.iter().for_each(Link::cut);
}
