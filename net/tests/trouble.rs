//! What happens to the host under a running transport: a smaller MTU, an interface that is taken
//! away, a neighbour on the same host.

use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use dogwild_net::{Link, Receive, To, packet_mmap, udp};

const LONG: Duration = Duration::from_secs(60);

fn udp_on(lab: &Lab, host: usize, segmentation: bool) -> Link {
    let config = udp::UdpConfig {
        iface: Some("eth0".to_owned()),
        segmentation,
        same_host: true,
        ..udp::UdpConfig::default()
    };
    lab.in_host(host, || udp::open(&config).expect("udp"))
        .expect("enter the host")
}

fn packet_mmap_on(lab: &Lab, host: usize) -> Link {
    let config = packet_mmap::PacketMmapConfig {
        tx_frames: Some(64),
        tx_batch_frames: 16,
        ..packet_mmap::PacketMmapConfig::default()
    };
    lab.in_host(host, || packet_mmap::open(&config).expect("packet_mmap"))
        .expect("enter the host")
}

fn ip(lab: &Lab, host: usize, args: &[&str]) {
    let status = lab.command(host, "ip").args(args).status();
    assert!(status.expect("run ip").success(), "ip {args:?}");
}

fn send(link: &mut Link, count: usize, len: usize) {
    for _ in 0..count {
        link.tx
            .send(To::Group, len, &mut |slot| slot.fill(len as u8));
    }
    link.tx.flush().expect("flush");
}

/// Receives until a frame of this length comes; returns how many others came before.
fn until(rx: &mut dyn Receive, len: usize) -> usize {
    let mut others = 0;
    loop {
        let mut found = false;
        rx.recv(1, &mut |_, frame| {
            found = frame.len() == len;
            assert!(frame.iter().all(|&byte| byte == frame.len() as u8));
        })
        .expect("receive");
        if found {
            return others;
        }
        others += 1;
        assert!(rx.wait(LONG).expect("wait"), "no frame of {len} bytes");
    }
}

#[test]
fn packet_mmap_goes_on_after_frames_that_the_kernel_refuses() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let (mut one, mut two) = (packet_mmap_on(&lab, 0), packet_mmap_on(&lab, 1));
    send(&mut one, 5, 1500);
    for _ in 0..5 {
        until(&mut *two.rx, 1500);
    }
    ip(&lab, 0, &["link", "set", "eth0", "mtu", "1000"]);
    // More than the ring holds: each is refused, none blocks the ring for good.
    for _ in 0..300 {
        send(&mut one, 1, 1500);
        // A block that waits to be read is a block, even if it holds but one frame.
        two.rx
            .recv(9, &mut |_, _| panic!("refused, but received"))
            .expect("receive");
    }
    let stats = one.tx.stats();
    assert!(
        stats.dropped > 0 && stats.errors >= stats.dropped,
        "{stats:?}"
    );
    for _ in 0..stats.buffer_bytes / 1500 + 10 {
        one.tx.flush().expect("flush");
    }
    send(&mut one, 1, 900);
    until(&mut *two.rx, 900);
    let stats = one.tx.stats();
    assert_eq!(
        stats.frames - stats.dropped,
        two.rx.stats().frames,
        "{stats:?}"
    );
    ip(&lab, 0, &["link", "set", "eth0", "mtu", "1500"]);
    send(&mut one, 1, 1499);
    until(&mut *two.rx, 1499);
}

#[test]
fn udp_goes_on_when_the_mtu_is_lowered() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let (mut one, mut two) = (udp_on(&lab, 0, true), udp_on(&lab, 1, true));
    send(&mut one, 50, 1472);
    until(&mut *two.rx, 1472);
    ip(&lab, 0, &["link", "set", "eth0", "mtu", "1000"]);
    send(&mut one, 50, 1471);
    // IP fragments what was too long; with or without that, small frames arrive.
    send(&mut one, 1, 800);
    until(&mut *two.rx, 800);
    let stats = one.tx.stats();
    assert!(
        two.rx.stats().frames >= stats.frames - stats.dropped - 100,
        "{stats:?}"
    );
}

#[test]
fn an_interface_that_is_taken_away_is_an_error() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let mut one = packet_mmap_on(&lab, 0);
    ip(&lab, 0, &["link", "delete", "eth0"]);
    one.tx.send(To::Group, 10, &mut |slot| slot.fill(0));
    one.tx
        .flush()
        .expect_err("there is no interface to send on");
    let error = one.rx.wait(LONG).expect_err("nothing will ever come");
    assert_eq!(error.raw_os_error(), Some(100), "ENETDOWN, not {error}");
}

#[test]
fn a_full_ring_says_so_and_empties_when_the_link_is_back() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let (mut one, mut two) = (packet_mmap_on(&lab, 0), packet_mmap_on(&lab, 1));
    ip(&lab, 0, &["link", "set", "eth0", "down"]);
    send(&mut one, 500, 100);
    let stats = one.tx.stats();
    assert!(
        stats.no_slot > 0 && stats.frames >= 64 && stats.errors > 0,
        "{stats:?}"
    );
    ip(&lab, 0, &["link", "set", "eth0", "up"]);
    loop {
        send(&mut one, 1, 101);
        two.rx.wait(Duration::from_millis(10)).expect("wait");
        let mut heard = false;
        two.rx
            .recv(usize::MAX, &mut |_, frame| heard |= frame.len() == 101)
            .expect("receive");
        if heard {
            break;
        }
    }
}

#[test]
fn two_nodes_of_one_host_meet_on_its_ethernet() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    for segmentation in [true, false] {
        let mut links = [0, 0, 1].map(|host| udp_on(&lab, host, segmentation));
        for sender in 0..3 {
            let len = 700 + sender;
            send(&mut links[sender], 3, len);
            for (node, link) in links.iter_mut().enumerate() {
                if node == sender {
                    assert!(!link.rx.wait(Duration::from_millis(20)).expect("wait"));
                    assert_eq!(link.rx.stats().kernel_drops, 0, "own frames are not losses");
                } else {
                    for _ in 0..3 {
                        until(&mut *link.rx, len);
                    }
                }
            }
        }
    }
}
