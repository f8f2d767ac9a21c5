//! Frames per second of each transport, next to memcpy of the same bytes in the same run.
//!
//! `cargo bench -p dogwild-net --bench transports -- [--secs S] [WORD...]`: only rows whose name
//! holds every WORD (`udp`, `packet_mmap`, `veth`, `one-way`, `8972`, ...). Between hosts of a lab,
//! which needs root or user namespaces (`unshare -Ur`).
//!
//! One-way: one thread sends as fast as slots are free, one receives and copies every frame out.
//! Both-ways: one thread per node does both, as a streamer does.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dogwild_lab::{Lab, Spec};
use dogwild_net::{Link, Receive, To, Transmit, af_xdp, memory, packet_mmap, seal, udp};

/// Frames per turn of a both-ways node.
const TURN: usize = 256;

struct Args {
    secs: f64,
    words: Vec<String>,
}

/// Links, payload in bytes, time to run.
type Run = fn(Vec<Link>, usize, Duration) -> Vec<Tally>;

/// What one node did.
#[derive(Default)]
struct Tally {
    sent: u64,
    received: u64,
    drops: u64,
    no_slot: u64,
}

fn main() {
    let args = arguments();
    println!(
        "{:<40} {:>9} {:>9} {:>8} {:>8} {:>9} {:>8}",
        "", "sent Mf/s", "recv Mf/s", "Gb/s", "lost %", "memcpy", "share %"
    );
    for payload in [1472, 8972] {
        let mtu = payload + 28;
        measure(&args, "memory", payload, || {
            memory::Hub::new(2, payload, 1024)
        });
        loopback(&args, payload);
        let lab = match Lab::up(&Spec {
            mtu: mtu as u32,
            ..Spec::of(2)
        }) {
            Ok(lab) => lab,
            Err(error) => {
                println!("veth left out: {error}");
                continue;
            }
        };
        for (name, segmentation) in [("udp veth", true), ("udp veth unsegmented", false)] {
            measure(&args, name, payload, || {
                links_in(&lab, || {
                    udp::open(&udp::UdpConfig {
                        iface: Some("eth0".to_owned()),
                        segmentation,
                        ..udp::UdpConfig::default()
                    })
                    .expect("udp in the lab")
                })
            });
        }
        raw_ethernet(&args, &lab, "veth", payload);
        if mtu > af_xdp::MTU_MAX {
            drop(lab);
            // The largest that all raw transports carry.
            let payload = af_xdp::MTU_MAX - 28;
            let spec = Spec {
                mtu: af_xdp::MTU_MAX as u32,
                ..Spec::of(2)
            };
            match Lab::up(&spec) {
                Ok(lab) => raw_ethernet(&args, &lab, "veth", payload),
                Err(error) => println!("veth left out: {error}"),
            }
        }
    }
}

/// udp, plain and sealed.
fn loopback(args: &Args, payload: usize) {
    let open = || {
        let config = udp::UdpConfig {
            iface: Some("lo".to_owned()),
            mtu: Some(payload + 28),
            ..udp::UdpConfig::default()
        };
        udp::open(&config).expect("udp on lo")
    };
    measure(args, "udp lo", payload, || vec![open(), open()]);
    // The seal takes its bytes out of the same packets.
    let payload = payload - seal::OVERHEAD_BYTES;
    measure(args, "udp lo sealed", payload, || {
        let sealed = || {
            let config = seal::SealConfig {
                key: seal::Key::new(&[7; seal::KEY_BYTES]),
                windows: seal::ReplayWindows::in_memory().expect("memory"),
            };
            seal::wrap(open(), config).expect("a random number")
        };
        vec![sealed(), sealed()]
    });
}

/// The raw transports, alone and combined, one after the other.
fn raw_ethernet(args: &Args, lab: &Lab, cable: &str, payload: usize) {
    let ring = packet_mmap::PacketMmapConfig {
        iface: "eth0".to_owned(),
        ..packet_mmap::PacketMmapConfig::default()
    };
    measure(args, &format!("packet_mmap {cable}"), payload, || {
        links_in(lab, || {
            packet_mmap::open(&ring).expect("packet_mmap in the lab")
        })
    });
    if payload > af_xdp::MTU_MAX {
        return;
    }
    let xdp = af_xdp::AfXdpConfig {
        iface: "eth0".to_owned(),
        ..af_xdp::AfXdpConfig::default()
    };
    let generic = af_xdp::AfXdpConfig {
        driver_mode: false,
        ..xdp.clone()
    };
    measure(args, &format!("xdp_mmap {cable}"), payload, || {
        links_in(lab, || Link {
            tx: af_xdp::open_transmit(&xdp).expect("af_xdp transmit in the lab"),
            rx: packet_mmap::open_receive(&ring).expect("packet_mmap receive in the lab"),
        })
    });
    for (name, config) in [("af_xdp", &xdp), ("af_xdp generic", &generic)] {
        if let Err(error) = lab
            .in_host(0, || af_xdp::open_receive(config).map(drop))
            .expect("enter the host")
        {
            println!("{name} left out: {error}");
            continue;
        }
        measure(args, &format!("{name} {cable}"), payload, || {
            links_in(lab, || af_xdp::open(config).expect("af_xdp in the lab"))
        });
    }
}

fn arguments() -> Args {
    let mut args = Args {
        secs: 1.0,
        words: Vec::new(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--bench" => {}
            "--secs" => {
                let value = given.next().and_then(|value| value.parse().ok());
                args.secs = value.expect("--secs takes a number of seconds");
            }
            _ => args.words.push(arg),
        }
    }
    args
}

fn links_in(lab: &Lab, open: impl Fn() -> Link + Sync) -> Vec<Link> {
    (0..2)
        .map(|host| lab.in_host(host, &open).expect("enter the host"))
        .collect()
}

fn measure(args: &Args, name: &str, payload: usize, open: impl Fn() -> Vec<Link>) {
    let runs: [(&str, Run); 2] = [("one-way", one_way), ("both-ways", both_ways)];
    for (direction, run) in runs {
        let title = format!("{name} {payload} {direction}");
        if !args.words.iter().all(|word| title.contains(word.as_str())) {
            continue;
        }
        let before = memcpy_bytes_per_s(payload);
        let start = Instant::now();
        let tallies = run(open(), payload, Duration::from_secs_f64(args.secs));
        let secs = start.elapsed().as_secs_f64();
        let memcpy = f64::midpoint(before, memcpy_bytes_per_s(payload));
        report(&title, &tallies, payload, secs, memcpy);
    }
}

fn report(title: &str, tallies: &[Tally], payload: usize, secs: f64, memcpy: f64) {
    let sum = |get: fn(&Tally) -> u64| tallies.iter().map(get).sum::<u64>() as f64;
    let (sent, received) = (sum(|t| t.sent), sum(|t| t.received));
    let bytes_per_s = received * payload as f64 / secs;
    println!(
        "{title:<40} {:>9.3} {:>9.3} {:>8.2} {:>8.2} {:>8.1}G {:>8.1}   (drops counted {}, no slot {})",
        sent / secs / 1e6,
        received / secs / 1e6,
        bytes_per_s * 8.0 / 1e9,
        100.0 * (1.0 - received / sent.max(1.0)),
        memcpy * 8.0 / 1e9,
        100.0 * bytes_per_s / memcpy,
        sum(|t| t.drops),
        sum(|t| t.no_slot),
    );
}

/// memcpy of `payload` bytes at a time between two buffers of 16 MB, for a tenth of a second.
fn memcpy_bytes_per_s(payload: usize) -> f64 {
    let from = vec![1u8; 16 << 20];
    let mut to = vec![0u8; 16 << 20];
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < Duration::from_millis(100) {
        for (to, from) in to.chunks_exact_mut(payload).zip(from.chunks_exact(payload)) {
            to.copy_from_slice(black_box(from));
            bytes += payload;
        }
        black_box(&mut to);
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn send_some(tx: &mut dyn Transmit, from: &[u8], count: usize) -> bool {
    for _ in 0..count {
        if !tx.send(To::Group, from.len(), &mut |slot| {
            slot.copy_from_slice(from)
        }) {
            return false;
        }
    }
    true
}

fn receive_some(rx: &mut dyn Receive, sink: &mut [u8]) -> usize {
    rx.recv(TURN, &mut |_, frame| {
        sink[..frame.len()].copy_from_slice(frame);
        black_box(&mut *sink);
    })
    .expect("receive")
}

/// Node 0 sends, node 1 receives.
fn one_way(mut links: Vec<Link>, payload: usize, time: Duration) -> Vec<Tally> {
    let mut to = links.pop().expect("two links").rx;
    // The sender's receiving half goes: it is not read.
    let mut from = links.pop().expect("two links").tx;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut sink = vec![0; payload];
            loop {
                let finished = done.load(Ordering::Acquire);
                if receive_some(&mut *to, &mut sink) == 0 {
                    if finished {
                        break;
                    }
                    to.wait(Duration::from_millis(20)).expect("wait");
                }
            }
            to.stats()
        });
        let bytes = vec![7u8; payload];
        let start = Instant::now();
        while start.elapsed() < time {
            if !send_some(&mut *from, &bytes, TURN) {
                from.flush().expect("flush");
                thread::yield_now();
            }
        }
        from.flush().expect("flush");
        // Frames in blocks of a ring come to light a few milliseconds later.
        thread::sleep(Duration::from_millis(20));
        done.store(true, Ordering::Release);
        let received = receiver.join().expect("receiver");
        let sent = from.stats();
        vec![Tally {
            sent: sent.frames,
            received: received.frames,
            drops: received.kernel_drops,
            no_slot: sent.no_slot,
        }]
    })
}

/// Every node sends and receives in turn.
fn both_ways(links: Vec<Link>, payload: usize, time: Duration) -> Vec<Tally> {
    let start = Instant::now();
    let node = |mut link: Link| {
        let (mut sink, bytes) = (vec![0; payload], vec![7u8; payload]);
        while start.elapsed() < time {
            let sent = send_some(&mut *link.tx, &bytes, TURN);
            if !sent {
                link.tx.flush().expect("flush");
            }
            if receive_some(&mut *link.rx, &mut sink) == 0 && !sent {
                thread::yield_now();
            }
        }
        link.tx.flush().expect("flush");
        let end = Instant::now();
        while end.elapsed() < Duration::from_millis(20) {
            receive_some(&mut *link.rx, &mut sink);
        }
        let (sent, received) = (link.tx.stats(), link.rx.stats());
        Tally {
            sent: sent.frames,
            received: received.frames,
            drops: received.kernel_drops,
            no_slot: sent.no_slot,
        }
    };
    thread::scope(|scope| {
        let nodes: Vec<_> = links
            .into_iter()
            .map(|link| scope.spawn(move || node(link)))
            .collect();
        nodes
            .into_iter()
            .map(|node| node.join().expect("node"))
            .collect()
    })
}
