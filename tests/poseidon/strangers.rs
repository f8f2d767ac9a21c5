//! Connections of strangers, silent or a byte at a time, on every port of a cluster: the run goes
//! on as if they were not there, and each is cut off.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dogwild::poseidon::{Message, MessageKind, Scheme};

use crate::cluster::{Cluster, LOOPBACK, force, setup};
use crate::support::wait::wait_for;

/// An address of loopback that is free now.
fn free() -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK).expect("a port");
    listener.local_addr().expect("its address")
}

/// A connection to `address`, as soon as something listens there.
fn connect(address: SocketAddr) -> TcpStream {
    let mut made = None;
    wait_for("a listening socket", || {
        made = TcpStream::connect(address).ok();
        made.is_some()
    });
    made.expect("a connection")
}

/// Announces a long first message and sends it byte by byte, until it is cut off or the run ends.
fn drip(mut stream: TcpStream, over: &AtomicBool) {
    let hello = Message::text(MessageKind::Hello, 0, " ".repeat(1 << 20));
    let mut more = hello.header().to_vec().into_iter();
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a time limit");
    while !over.load(Relaxed) {
        let sent = stream.write_all(&[more.next().unwrap_or(b' ')]);
        let cut = matches!(stream.read(&mut [0; 100]), Ok(0)) || sent.is_err();
        if cut {
            return;
        }
    }
}

/// Runs two workers and a server, while strangers drip at `place`: they are there before the
/// cluster is complete.
fn strangers_do_no_harm(place: &str) {
    let mut cluster = Cluster::new(setup(force(Scheme::Sfb), 2, 1, 5));
    let worker = free();
    cluster.server_listens = free();
    let server = cluster.server_listens;
    let over = Arc::new(AtomicBool::new(false));
    let (silent, dripping) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let ended = cluster.run_with(false, |job| {
        if job.member.index == 0 {
            job.member.listen = worker;
            return;
        }
        let at = match place {
            "worker" => worker,
            "server" => server,
            _ => job.member.coordinator.parse().expect("an address"),
        };
        for _ in 0..3 {
            silent.lock().expect("no panic").push(connect(at));
            let (stranger, over) = (connect(at), over.clone());
            let thread = std::thread::spawn(move || drip(stranger, &over));
            dripping.lock().expect("no panic").push(thread);
        }
    });
    over.store(true, Relaxed);
    for (name, ended) in ended {
        ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for stranger in dripping.into_inner().expect("no panic") {
        stranger.join().expect("no panic");
    }
    assert_eq!(cluster.weights(0), cluster.weights(1));
}

#[test]
fn at_the_port_of_a_worker() {
    strangers_do_no_harm("worker");
}

#[test]
fn at_the_port_of_a_server() {
    strangers_do_no_harm("server");
}

#[test]
fn at_the_port_of_the_coordinator() {
    strangers_do_no_harm("coordinator");
}
