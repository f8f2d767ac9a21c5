//! Hosts of a lab talk, lose and are limited as asked; as root and as an ordinary user alike.

use dogwild_lab::{Cable, Lab, Spec};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 1);

/// A socket bound in host `i` that waits for `patience` at most.
fn socket(lab: &Lab, i: usize, port: u16, patience: Duration) -> UdpSocket {
    let address = lab.host(i).ipv4();
    let socket = lab
        .in_host(i, || UdpSocket::bind((address, port)))
        .unwrap()
        .unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket
}

/// Sends `frames` datagrams of `bytes` from host 0 to host 1, reading along: how many arrived.
fn arrived(lab: &Lab, frames: usize, bytes: usize) -> usize {
    let receiver = socket(lab, 1, 4000, Duration::from_millis(500));
    let sender = socket(lab, 0, 0, Duration::from_secs(1));
    let to = (lab.host(1).ipv4(), 4000);
    let mut buffer = vec![0; 65536];
    let mut count = 0;
    receiver.set_nonblocking(true).unwrap();
    for _ in 0..frames {
        sender.send_to(&buffer[..bytes], to).unwrap();
        while receiver.recv(&mut buffer).is_ok() {
            count += 1;
        }
    }
    receiver.set_nonblocking(false).unwrap();
    while receiver.recv(&mut buffer).is_ok() {
        count += 1;
    }
    count
}

#[test]
fn two_hosts_exchange_datagrams_both_ways() {
    dogwild_lab::enter_or_return!();
    for cable in [Cable::Direct, Cable::Bridge] {
        let lab = Lab::up(&Spec {
            cable,
            ..Spec::of(2)
        })
        .unwrap();
        let patience = Duration::from_secs(10);
        let (a, b) = (
            socket(&lab, 0, 4000, patience),
            socket(&lab, 1, 4000, patience),
        );
        let mut buffer = [0; 16];
        a.send_to(b"ping", (lab.host(1).ipv4(), 4000)).unwrap();
        let (n, from) = b.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"ping");
        assert_eq!(from.ip(), lab.host(0).ipv4());
        b.send_to(b"pong", from).unwrap();
        assert_eq!(a.recv(&mut buffer).unwrap(), 4);
    }
}

#[test]
fn three_hosts_share_a_multicast_group() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(3)).unwrap();
    let receivers: Vec<UdpSocket> = [1, 2]
        .map(|i| {
            let interface = lab.host(i).ipv4();
            lab.in_host(i, || {
                let socket = UdpSocket::bind((GROUP, 4000)).unwrap();
                socket.join_multicast_v4(&GROUP, &interface).unwrap();
                socket
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                socket
            })
            .unwrap()
        })
        .into();
    let sender = socket(&lab, 0, 0, Duration::from_secs(1));
    sender.send_to(b"all", (GROUP, 4000)).unwrap();
    for receiver in receivers {
        let mut buffer = [0; 16];
        let (n, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..n], from.ip()),
            (&b"all"[..], lab.host(0).ipv4().into())
        );
    }
}

#[test]
fn jumbo_frames_pass_whole_where_asked_for() {
    dogwild_lab::enter_or_return!();
    for hosts in [2, 3] {
        let lab = Lab::up(&Spec {
            mtu: 9000,
            ..Spec::of(hosts)
        })
        .unwrap();
        assert_eq!(arrived(&lab, 10, 8972), 10);
        let packets = statistics(&lab, "rx_packets");
        assert!(
            (10..20).contains(&packets),
            "{packets} packets: were they fragmented?"
        );
    }
}

/// A receive counter of host 1's interface.
fn statistics(lab: &Lab, counter: &str) -> u64 {
    let text = lab
        .in_host(1, || std::fs::read_to_string("/proc/thread-self/net/dev"))
        .unwrap();
    let text = text.unwrap();
    let line = text
        .lines()
        .find(|line| line.trim().starts_with("eth0:"))
        .unwrap();
    let mut fields = line.split(':').nth(1).unwrap().split_whitespace();
    let at = ["rx_bytes", "rx_packets"]
        .iter()
        .position(|&name| name == counter)
        .unwrap();
    fields.nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_tenth_of_the_frames_is_lost_when_asked_for() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec {
        loss: Some(0.1),
        ..Spec::of(2)
    })
    .unwrap();
    let frames = 20_000;
    let lost = frames - arrived(&lab, frames, 100);
    // Standard deviation 42: six of them, and a few the receiving socket may have dropped.
    assert!(
        (1_740..=2_400).contains(&lost),
        "{lost} of {frames} lost, expected 2000"
    );
}

#[test]
fn a_rate_limit_holds() {
    dogwild_lab::enter_or_return!();
    for cable in [Cable::Direct, Cable::Auto] {
        let lab = Lab::up(&Spec {
            rate: Some("20mbit".into()),
            cable,
            ..Spec::of(2)
        })
        .unwrap();
        let start = Instant::now();
        let bytes = arrived(&lab, 600, 1_400) * (1_400 + 42);
        // Lower bound on the time (the last wait of 0.5 s included): what fits into the bucket
        // goes at once, the rest at 2.5 MB/s.
        let fits = 2.5e6 * start.elapsed().as_secs_f64() + 131_072.0;
        assert!((bytes as f64) < fits, "{bytes} bytes arrived, {fits} may");
        assert!(bytes > 300_000, "only {bytes} bytes arrived");
    }
}

#[test]
fn receive_steering_is_set() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec {
        steer_receive: true,
        ..Spec::of(2)
    })
    .unwrap();
    let script = "mount -t sysfs sysfs /sys && cat /sys/class/net/eth0/queues/rx-0/rps_cpus";
    let out = lab
        .command(1, "unshare")
        .args(["-m", "sh", "-c", script])
        .output()
        .unwrap();
    let mask = String::from_utf8(out.stdout).unwrap();
    assert!(
        mask.trim().chars().any(|c| !"0,".contains(c)),
        "mask {mask:?}: {:?}",
        out.stderr
    );
}

#[test]
fn a_host_that_is_not_there_is_refused() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).unwrap();
    let error = lab.in_host(2, || ()).unwrap_err();
    assert_eq!(error.to_string(), "the lab has hosts 0 to 1, not 2");
}

#[test]
fn what_a_tool_says_is_in_the_error() {
    dogwild_lab::enter_or_return!();
    let spec = Spec {
        rate: Some("fast".into()),
        ..Spec::of(2)
    };
    let error = Lab::up(&spec).unwrap_err().to_string();
    assert!(error.contains("tbf rate fast"), "{error}");
    assert!(
        error.to_lowercase().contains("illegal") || error.contains("rate"),
        "{error}"
    );
}

#[test]
fn a_command_runs_in_its_host() {
    // Needs no privilege: processes may be sent into a lab that threads may not enter.
    let lab = match Lab::up(&Spec::of(2)) {
        Err(e @ dogwild_lab::LabError::Forbidden(_)) => {
            return dogwild_lab::skip::skip(&e.to_string());
        }
        other => other.unwrap(),
    };
    for host in lab.hosts() {
        let out = lab
            .command(host.index(), "/sbin/ip")
            .args(["-o", "addr"])
            .output()
            .unwrap();
        let seen = String::from_utf8(out.stdout).unwrap();
        assert!(seen.contains(&format!("{}/24", host.ipv4())), "{seen}");
        assert!(!seen.contains("inet6"), "{seen}");
    }
}

#[test]
fn a_lab_outlives_the_thread_that_made_it() {
    dogwild_lab::enter_or_return!();
    let lab = std::thread::spawn(|| Lab::up(&Spec::of(2)).unwrap())
        .join()
        .unwrap();
    assert_eq!(arrived(&lab, 10, 100), 10);
    for host in lab.hosts() {
        let path = format!("/proc/{}/ns/net", host.pid());
        assert!(
            std::fs::read_link(&path).is_ok(),
            "the holder of {} ended",
            host.name()
        );
    }
}

#[test]
fn an_inner_run_without_its_test_is_a_failure() {
    if dogwild_lab::enter::privileged() {
        return;
    }
    match dogwild_lab::inside("hosts::no_such_test") {
        Ok(_) => dogwild_lab::skip::skip("this kernel makes no user namespaces"),
        Err(error) => assert!(
            error.to_string().contains("no test of that name"),
            "{error}"
        ),
    }
}

/// All tests of this file again, as a user without any privilege.
#[test]
fn an_ordinary_user_can_do_all_this() {
    const NOBODY_IN_PARTICULAR: u32 = 23_456;
    let root = std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !root || std::env::var_os("DOGWILD_LAB_INSIDE").is_some() {
        // The others just showed it, or this is the inner run of an ordinary user.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open.clone()).unwrap();
    let program = folder.path().join("hosts");
    // By another process: what tests on other threads start meanwhile would inherit the copy, open
    // for writing, and a program that is open for writing cannot be run (ETXTBSY).
    let copied = Command::new("cp")
        .arg(std::env::current_exe().unwrap())
        .arg(&program)
        .status()
        .unwrap();
    assert!(copied.success(), "cp: {copied}");
    std::fs::set_permissions(&program, open).unwrap();
    let status = Command::new(&program)
        .args(["--skip", "an_ordinary_user"])
        .current_dir("/")
        .uid(NOBODY_IN_PARTICULAR)
        .gid(NOBODY_IN_PARTICULAR)
        .status()
        .unwrap();
    assert!(status.success(), "as an ordinary user: {status}");
}
