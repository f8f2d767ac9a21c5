//! Settings that cannot work are refused with a message that says what, where and what to do.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use dogwild_net::{To, packet_mmap, udp};

fn udp_refusal(config: &udp::UdpConfig) -> String {
    udp::open(config).expect_err("must be refused").to_string()
}

fn mmap_refusal(config: &packet_mmap::PacketMmapConfig) -> String {
    let refused = packet_mmap::open(config);
    refused.expect_err("must be refused").to_string()
}

fn on_lo() -> udp::UdpConfig {
    udp::UdpConfig {
        iface: Some("lo".to_owned()),
        ..udp::UdpConfig::default()
    }
}

#[track_caller]
fn holds(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn udp_names_the_interfaces_that_exist() {
    let config = udp::UdpConfig {
        iface: Some("nosuch0".to_owned()),
        ..udp::UdpConfig::default()
    };
    holds(&udp_refusal(&config), &["`nosuch0`", "there are", "lo"]);
    let config = udp::UdpConfig {
        iface: None,
        local: Some([203, 0, 113, 9].into()),
        ..udp::UdpConfig::default()
    };
    holds(&udp_refusal(&config), &["203.0.113.9", "127.0.0.1"]);
}

#[test]
fn udp_wants_a_multicast_group_with_a_port() {
    for group in ["10.0.0.1:4000", "239.68.87.1:0", "[::1]:4000"] {
        let config = udp::UdpConfig {
            group: group.parse::<SocketAddr>().expect("an address"),
            ..on_lo()
        };
        holds(&udp_refusal(&config), &[group, "multicast"]);
    }
}

#[test]
fn udp_wants_an_mtu_that_the_interface_carries() {
    for mtu in [0, 28, 575, 70_000, usize::MAX] {
        let config = udp::UdpConfig {
            mtu: Some(mtu),
            ..on_lo()
        };
        holds(
            &udp_refusal(&config),
            &[&mtu.to_string(), "`lo`", "576", "65536"],
        );
    }
    let config = udp::UdpConfig {
        mtu: Some(65_536),
        ..on_lo()
    };
    let link = udp::open(&config).expect("the MTU of lo");
    assert_eq!(link.tx.mtu(), 65_507);
}

#[test]
fn udp_tells_what_ipv6_multicast_on_loopback_needs() {
    let config = udp::UdpConfig {
        group: "[ff05::6887]:26887".parse().expect("an address"),
        ..on_lo()
    };
    match udp::open(&config) {
        // This host has the route.
        Ok(_) => {}
        Err(udp::UdpError::NoAddress { iface, family }) => {
            assert_eq!((&*iface, family), ("lo", "IPv6"))
        }
        Err(other) => holds(
            &other.to_string(),
            &["ff05::6887", "ip -6 route add ff00::/8 dev lo"],
        ),
    }
}

#[test]
fn udp_goes_over_ipv6() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let config = udp::UdpConfig {
        group: "[ff05::6887]:6887".parse().expect("an address"),
        iface: Some("eth0".to_owned()),
        ..udp::UdpConfig::default()
    };
    let open = |host: usize| {
        let script = format!(
            "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6; ip -6 addr add fd44:57::{}/64 dev eth0 nodad",
            host + 1
        );
        let status = lab.command(host, "sh").args(["-c", &script]).status();
        if !status.expect("run sh").success() {
            return None;
        }
        Some(
            lab.in_host(host, || udp::open(&config).expect("udp over IPv6"))
                .expect("enter"),
        )
    };
    let (Some(mut one), Some(mut two)) = (open(0), open(1)) else {
        dogwild_lab::skip::skip("IPv6 in the lab");
        return;
    };
    assert_eq!(one.tx.mtu(), 1500 - 48);
    let frame = vec![6; one.tx.mtu()];
    let mut from = None;
    for (tx, rx, to) in [
        (&mut one.tx, &mut two.rx, To::Group),
        (&mut two.tx, &mut one.rx, To::Node(0)),
    ] {
        if let (To::Node(node), Some(source)) = (to, from) {
            tx.learn(node, source);
        }
        for _ in 0..3 {
            assert!(tx.send(to, frame.len(), &mut |slot| slot.copy_from_slice(&frame)));
        }
        tx.flush().expect("flush");
        let mut left = 3;
        while left > 0 && rx.wait(Duration::from_secs(60)).expect("wait") {
            left -= rx
                .recv(3, &mut |source, bytes| {
                    assert_eq!(bytes, frame);
                    from = Some(source);
                })
                .expect("receive");
        }
        assert_eq!(left, 0);
    }
}

#[test]
fn packet_mmap_wants_an_ethernet_that_exists() {
    let named = |iface: &str| packet_mmap::PacketMmapConfig {
        iface: iface.to_owned(),
        ..packet_mmap::PacketMmapConfig::default()
    };
    holds(
        &mmap_refusal(&named("nosuch0")),
        &["`nosuch0`", "there are", "lo"],
    );
    holds(&mmap_refusal(&named("lo")), &["`lo`", "udp"]);
}

#[test]
fn packet_mmap_checks_group_mtu_and_state() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let config = packet_mmap::PacketMmapConfig::default();
    let refusal = |config: packet_mmap::PacketMmapConfig| {
        lab.in_host(0, || mmap_refusal(&config))
            .expect("enter the host")
    };
    let group = [2, 0, 0, 0, 0, 1];
    let single = packet_mmap::PacketMmapConfig {
        group,
        ..config.clone()
    };
    holds(&refusal(single), &["02:00:00:00:00:01", "multicast"]);
    for mtu in [0, 45, 1501, usize::MAX] {
        let odd = packet_mmap::PacketMmapConfig {
            mtu: Some(mtu),
            ..config.clone()
        };
        holds(&refusal(odd), &[&mtu.to_string(), "`eth0`", "46", "1500"]);
    }
    let vast = packet_mmap::PacketMmapConfig {
        rx_ring_bytes: usize::MAX / 2,
        ..config.clone()
    };
    holds(&refusal(vast), &["receive ring", "`eth0`", "smaller"]);
    let long = packet_mmap::PacketMmapConfig {
        tx_frames: Some(usize::MAX),
        ..config.clone()
    };
    lab.in_host(0, || {
        packet_mmap::open(&long).expect("a ring of the greatest length")
    })
    .expect("enter the host");
    let status = lab
        .command(0, "ip")
        .args(["link", "set", "eth0", "down"])
        .status();
    assert!(status.expect("run ip").success());
    holds(&refusal(config), &["`eth0`", "down", "ip link set eth0 up"]);
}

/// Runs itself again without capabilities, which even root can drop.
#[test]
fn packet_mmap_tells_which_capability_is_missing() {
    const MARK: &str = "DOGWILD_NET_WITHOUT_CAPABILITIES";
    if std::env::var_os(MARK).is_some() {
        let ethernet = dogwild_net::iface::list()
            .into_iter()
            .find(|iface| iface.up && !iface.loopback && iface.mac != [0; 6]);
        let Some(iface) = ethernet else {
            println!("no Ethernet here");
            return;
        };
        let config = packet_mmap::PacketMmapConfig {
            iface: iface.name.clone(),
            ..packet_mmap::PacketMmapConfig::default()
        };
        holds(
            &mmap_refusal(&config),
            &["CAP_NET_RAW", "setcap", &iface.name],
        );
        println!("refused as it should be");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"])
        .arg(program)
        .args([
            "packet_mmap_tells_which_capability_is_missing",
            "--exact",
            "--nocapture",
        ])
        .env(MARK, "1")
        .output();
    let Ok(output) = output else {
        dogwild_lab::skip::skip("the program setpriv (Debian: util-linux)");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("no Ethernet here") {
        dogwild_lab::skip::skip("an Ethernet interface that is up");
        return;
    }
    let why = String::from_utf8_lossy(&output.stderr);
    if why.contains("setpriv:") {
        // An ordinary user may not shrink the bounding set; it has no capability to begin with.
        dogwild_lab::skip::skip("setpriv may not drop capabilities here");
        return;
    }
    assert!(said.contains("refused as it should be"), "{said}{why}");
}
