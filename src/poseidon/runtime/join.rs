//! How a server or a worker joins the cluster: it connects to the coordinator, and waits until all
//! others have.
//!
//! Touches sockets. Invariant: it returns at once when it must stop, whatever it waits for.

use std::io::ErrorKind;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::connect::connect;
use super::error::PoseidonError;
use super::link::{self, Incoming, Link, LinkError};
use super::member::{LOOK_EVERY, MemberJob, connection_error, hello_message};
use crate::poseidon::{ClusterInfo, MemberHello, Message, MessageKind};
use serde::de::DeserializeOwned;

/// Time for one attempt to connect to the coordinator.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Time between two log lines while the coordinator does not listen yet.
const LOG_EVERY: Duration = Duration::from_secs(10);

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
    let raw = stream.try_clone().map_err(|why| PoseidonError::System {
        what: "copy a socket",
        why,
    })?;
    let admitted = unless_stopped(&raw, stop, || -> Result<_, PoseidonError> {
        let (link, mut incoming) = link::open(stream, job.key.as_ref(), true)
            .map_err(|why| connection_error(&who, why))?;
        link.send(Arc::new(hello_message(&hello)));
        let cluster: ClusterInfo = wait_for_text(&mut incoming, MessageKind::ClusterInfo, &who)?;
        Ok((link, incoming, cluster))
    });
    let Some((link, incoming, cluster)) = admitted.transpose()? else {
        return Ok(None);
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

/// Asks the coordinator, as soon as it listens; `None` if `stop` was set meanwhile.
pub(super) fn ask<T: DeserializeOwned>(
    job: &MemberJob,
    question: &str,
    stop: &AtomicBool,
) -> Result<Option<T>, PoseidonError> {
    let who = format!("the coordinator ({})", job.coordinator);
    let Some(stream) = connect_when_listening(&job.coordinator, stop)? else {
        return Ok(None);
    };
    let raw = stream.try_clone().map_err(|why| PoseidonError::System {
        what: "copy a socket",
        why,
    })?;
    let answered = unless_stopped(&raw, stop, || {
        let (mut link, mut incoming) = link::open(stream, job.key.as_ref(), true)
            .map_err(|why| connection_error(&who, why))?;
        link.send(Arc::new(Message::text(
            MessageKind::Query,
            job.index,
            question.to_owned(),
        )));
        let answer = wait_for_text(&mut incoming, MessageKind::Answer, &who);
        link.cut();
        link.finish();
        answer
    });
    answered.transpose()
}

/// Waits for a text of the coordinator: what an answer holds, or the description of the cluster,
/// which comes when all members have joined.
fn wait_for_text<T: DeserializeOwned>(
    incoming: &mut Incoming,
    kind: MessageKind,
    who: &str,
) -> Result<T, PoseidonError> {
    loop {
        let message = incoming.next().map_err(|why| connection_error(who, why))?;
        if message.kind == kind {
            let read = serde_json::from_str::<T>(message.as_text()).map_err(LinkError::Json);
            return read.map_err(|why| connection_error(who, why));
        }
        if message.kind == MessageKind::Abort {
            let (who, why) = (who.to_owned(), message.as_text().to_owned());
            return Err(PoseidonError::Refused { who, why });
        }
    }
}

/// Runs `talk` on the connection `raw`, which is cut as soon as `stop` is set: `None` then.
fn unless_stopped<R>(raw: &TcpStream, stop: &AtomicBool, talk: impl FnOnce() -> R) -> Option<R> {
    let (over, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(LOOK_EVERY) {
                if stop.load(Relaxed) {
                    // It fails if the connection is closed already, which is as good.
                    let _ = raw.shutdown(Shutdown::Both);
                    return true;
                }
            }
            false
        });
        let result = talk();
        drop(over);
        let cut = watch.join().unwrap_or(true);
        (!cut).then_some(result)
    })
}

/// Connects as soon as `address` accepts connections; `None` if `stop` was set meanwhile.
fn connect_when_listening(
    address: &str,
    stop: &AtomicBool,
) -> Result<Option<TcpStream>, PoseidonError> {
    let mut log_at = Instant::now();
    let stopped = || stop.load(Relaxed);
    loop {
        let Some(tried) = connect("the coordinator", address, ATTEMPT, stopped) else {
            return Ok(None);
        };
        match tried {
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
            if stopped() {
                return Ok(None);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
