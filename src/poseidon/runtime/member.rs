//! What servers and workers have in common: how they join, and how they end.

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

/// Time between two looks at sockets and flags.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time between two lines that say who is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Time given to last words to arrive.
const LINGER: Duration = Duration::from_millis(500);

/// What a server or a worker is started with.
#[derive(Clone, Debug)]
pub struct MemberJob {
    /// Which of its kind.
    pub index: u16,
    /// Where the coordinator is.
    pub coordinator: String,
    /// Where to listen for others.
    pub listen: SocketAddr,
    /// Folder of its checkpoints.
    pub checkpoints: Option<PathBuf>,
    /// Go on from the newest checkpoint that all members have.
    pub resume: bool,
    /// Authenticates and encrypts all connections.
    pub key: Option<ClusterKey>,
    /// File for what was sent and received, as JSON.
    pub report: Option<PathBuf>,
    /// Bytes per second it sends at most.
    pub bandwidth_bytes_per_s: Option<f64>,
}

impl MemberJob {
    /// Its checkpoints, if it makes any; cleared unless it resumes.
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

    /// Its budget, if it has one; it must be positive.
    pub(super) fn bandwidth(&self) -> Result<Option<f64>, PoseidonError> {
        match self.bandwidth_bytes_per_s {
            Some(rate) if rate <= 0.0 || rate.is_nan() => Err(PoseidonError::Bandwidth(rate)),
            rate => Ok(rate),
        }
    }

    pub(super) fn listener(&self) -> Result<TcpListener, PoseidonError> {
        listen(self.listen)
    }

    /// Writes what was sent and received.
    pub(super) fn write_report(&self, report: &TrafficReport) -> Result<(), PoseidonError> {
        let Some(path) = &self.report else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(report).unwrap_or_default();
        write_whole(path, &(text + "\n"))
    }
}

/// Writes a file that appears whole or not at all.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), PoseidonError> {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|why| PoseidonError::Write {
        path: path.into(),
        why,
    })
}

/// Listens without blocking.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, PoseidonError> {
    let error = |why| PoseidonError::Listen {
        address: address.to_string(),
        why,
    };
    let listener = TcpListener::bind(address).map_err(error)?;
    listener.set_nonblocking(true).map_err(error)?;
    Ok(listener)
}

/// A connection that has come, if one has.
pub(super) fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    let (stream, address) = listener.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    Some((stream, address))
}

/// Who a message is from, for people.
pub(super) fn member_name(member: Member, address: &str) -> String {
    format!("{member} ({address})")
}

/// What to say of a connection that ended.
pub(super) fn connection_error(who: &str, why: LinkError) -> PoseidonError {
    let who = who.to_owned();
    match why {
        LinkError::Parse(_)
        | LinkError::NotHello(_)
        | LinkError::UnreadableHello(_)
        | LinkError::Key => PoseidonError::InvalidMessage { who, why },
        why => PoseidonError::ConnectionLost { who, why },
    }
}

/// The first message of somebody who has connected.
pub(super) fn read_hello(incoming: &mut Incoming) -> Result<MemberHello, LinkError> {
    let first = incoming.next()?;
    if first.kind != MessageKind::Hello {
        return Err(LinkError::NotHello(first.kind));
    }
    serde_json::from_str(first.as_text()).map_err(LinkError::UnreadableHello)
}

/// Connects and greets.
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

/// A member that has been let in.
pub(super) struct Joined {
    pub(super) cluster: ClusterInfo,
    pub(super) hello: MemberHello,
    pub(super) link: Link,
    pub(super) incoming: Incoming,
    /// The coordinator, for messages.
    pub(super) who: String,
}

/// Joins the cluster: waits for the coordinator to be there, then for everybody else. `None` if it
/// was told to stop meanwhile. The address in `hello` is filled in.
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
                let read = serde_json::from_str::<ClusterInfo>(message.as_text())
                    .map_err(LinkError::UnreadableHello);
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

/// Connects as soon as somebody listens there; `None` if told to stop meanwhile.
fn connect_when_listening(
    address: &str,
    stop: &AtomicBool,
) -> Result<Option<TcpStream>, PoseidonError> {
    let mut say = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(Some(stream)),
            Err(why) if why.kind() == ErrorKind::InvalidInput => {
                let address = address.to_owned();
                return Err(PoseidonError::Address { address, why });
            }
            Err(why) if Instant::now() >= say => {
                say = Instant::now() + SAY_EVERY;
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

/// What a checkpoint must have been made of to be taken up.
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

/// Ends all connections: after a failure with the reason for it, which is given a moment to
/// arrive; `readers_left` says how many reading threads still run.
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
    while readers_left() > 0 && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    links.iter().for_each(Link::cut);
}
