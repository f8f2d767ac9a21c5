//! How a client comes to its connections: to all servers, and to the other workers where they talk.
//!
//! Touches sockets. It closes its port when all that it expects are connected.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::error::PoseidonError;
use super::super::link::Incoming;
use super::super::member::MemberJob;
use super::super::member::{LOOK_EVERY, connect_to_member, member_name};
use super::super::reception::{Guest, Reception};
use super::hub::Hub;
use crate::poseidon::{ClusterInfo, Member, MemberHello, MemberRole, Message, MessageKind};

/// Time between two log lines with the workers that have not connected.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The member at the other end of a connection, the reading half, and the member's name for
/// messages.
pub(super) type Connection = (Member, Incoming, String);

/// Connects to all servers and, if workers talk to each other, to all other workers. Of two workers
/// the one with the larger index connects, so that each pair has one connection.
pub(super) fn connect(
    job: &MemberJob,
    cluster: &ClusterInfo,
    hello: &MemberHello,
    listener: TcpListener,
    hub: &Hub,
) -> Result<Vec<Connection>, PoseidonError> {
    let mut made = Vec::new();
    let own = usize::from(job.index);
    let peers = cluster.plan.has_peers();
    let before = if peers { own } else { 0 };
    let servers = cluster
        .servers
        .iter()
        .map(|address| (MemberRole::Server, address))
        .enumerate();
    let workers = cluster
        .workers
        .iter()
        .map(|address| (MemberRole::Worker, address))
        .enumerate();
    for (index, (role, address)) in servers.chain(workers.take(before)) {
        let index = index as u16;
        let member = Member { role, index };
        let who = member_name(member, address);
        let key = job.key.as_ref();
        let connected = connect_to_member(&who, address, key, hello, &hub.shutdown)?;
        let Some((link, mut incoming)) = connected else {
            return Ok(made);
        };
        incoming.expect(hub.sizes(), hub.pool());
        hub.links.add(member, link);
        made.push((member, incoming, who));
    }
    let mut expected: Vec<u16> = (job.index + 1..cluster.plan.workers).collect();
    expected.retain(|_| peers);
    let mut reception = Reception::new(listener, job.key.clone(), |_| None);
    let mut log_at = Instant::now() + LOG_EVERY;
    while !expected.is_empty() && !hub.shutdown.has_begun() {
        if let Some(guest) = reception.next() {
            let (from, claimed) = (guest.from, guest.hello.member);
            match take_peer(guest, hello, &mut expected, hub) {
                Some(peer) => made.push(peer),
                None => log::warn!("{claimed} ({from}) is refused: it is not expected here"),
            }
            continue;
        }
        if Instant::now() >= log_at {
            log_at = Instant::now() + LOG_EVERY;
            let names: Vec<_> = expected.iter().map(|w| format!("worker {w}")).collect();
            log::info!("waiting for {} to connect", names.join(", "));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    reception.end(hub.shutdown.reason());
    Ok(made)
}

/// Registers a connection of one of the `expected` workers; of another one, says so and closes
/// it.
fn take_peer(
    guest: Guest,
    hello: &MemberHello,
    expected: &mut Vec<u16>,
    hub: &Hub,
) -> Option<Connection> {
    let Guest {
        link,
        mut incoming,
        hello: theirs,
        from,
    } = guest;
    let member = theirs.member;
    let known = member.role == MemberRole::Worker && theirs.session == hello.session;
    if !known || !expected.contains(&member.index) {
        let text = "this worker does not expect you".to_owned();
        link.send(Arc::new(Message::text(
            MessageKind::Abort,
            hello.member.index,
            text,
        )));
        return None;
    }
    expected.retain(|other| *other != member.index);
    incoming.expect(hub.sizes(), hub.pool());
    hub.links.add(member, link);
    Some((member, incoming, member_name(member, &from.to_string())))
}
