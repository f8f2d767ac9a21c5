//! What only `af_xdp` has to do: leave other traffic alone, leave nothing behind, say what is
//! wrong.
//!
//! Between hosts of a lab; programs need privileges of the machine, so that these tests are
//! skipped, loudly, for ordinary users.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use dogwild_net::af_xdp::{self, AfXdpConfig, AfXdpError};
use dogwild_net::{Link, To, packet_mmap};

/// Says to [`held_by_a_child`] what to do.
const CHILD: &str = "DOGWILD_AF_XDP_CHILD";

macro_rules! lab_or_return {
    ($mtu:expr) => {{
        dogwild_lab::enter_or_return!();
        match lab($mtu) {
            Some(lab) => lab,
            None => return,
        }
    }};
}

/// A lab in which programs can be attached; skips if this process may not.
fn lab(mtu: u32) -> Option<Lab> {
    let spec = Spec { mtu, ..Spec::of(2) };
    let lab = Lab::up(&spec).expect("a lab");
    let config = AfXdpConfig {
        mtu: Some(1500),
        ..AfXdpConfig::default()
    };
    match in_host(&lab, 0, || af_xdp::open_receive(&config).map(drop)) {
        Err(error @ (AfXdpError::NoPrivilege { .. } | AfXdpError::NoKernelSupport)) => {
            dogwild_lab::skip::skip(&error.to_string());
            None
        }
        other => {
            other.expect("af_xdp");
            Some(lab)
        }
    }
}

fn in_host<R: Send>(lab: &Lab, host: usize, f: impl FnOnce() -> R + Send) -> R {
    lab.in_host(host, f).expect("enter the host")
}

fn open(lab: &Lab, host: usize) -> Link {
    in_host(lab, host, || {
        af_xdp::open(&AfXdpConfig::default()).expect("af_xdp")
    })
}

fn refusal(lab: &Lab, config: &AfXdpConfig) -> AfXdpError {
    in_host(lab, 0, || {
        af_xdp::open(config).expect_err("must be refused")
    })
}

fn run(lab: &Lab, host: usize, program: &str, args: &[&str]) -> String {
    let output = lab.command(host, program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn has_program(lab: &Lab, host: usize) -> bool {
    run(lab, host, "ip", &["link", "show", "eth0"]).contains("xdp")
}

/// Older kernels take a program off some time after its link was closed.
fn program_goes(lab: &Lab, host: usize) {
    while has_program(lab, host) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ip(lab: &Lab, host: usize) -> String {
    lab.host(host).ipv4().to_string()
}

/// Sends datagrams until one comes back.
fn udp_ping(lab: &Lab) {
    let at = |host| {
        // Any port: a child that another test is starting holds our sockets until it runs its
        // program, so one of the last time may still be there.
        let address = format!("{}:0", ip(lab, host));
        in_host(lab, host, move || UdpSocket::bind(address).expect("bind"))
    };
    let (here, there) = (at(0), at(1));
    let patience = Some(Duration::from_millis(100));
    here.set_read_timeout(patience).expect("timeout");
    there.set_read_timeout(patience).expect("timeout");
    let to = there.local_addr().expect("its address");
    let mut bytes = [0; 64];
    loop {
        here.send_to(b"ping", to).expect("send");
        if let Ok((4, from)) = there.recv_from(&mut bytes) {
            there.send_to(b"pong", from).expect("answer");
        }
        if let Ok((4, _)) = here.recv_from(&mut bytes) {
            assert_eq!(&bytes[..4], b"pong");
            return;
        }
    }
}

/// Sends until it is heard; each frame that is heard is this one.
fn is_heard(from: &mut Link, to: &mut Link, text: &[u8]) {
    loop {
        from.tx.send(To::Group, text.len(), &mut |slot| {
            slot.copy_from_slice(text)
        });
        from.tx.flush().expect("flush");
        to.rx.wait(Duration::from_millis(20)).expect("wait");
        let heard = to.rx.recv(usize::MAX, &mut |_, frame| {
            assert!(frame.starts_with(text));
        });
        if heard.expect("receive") > 0 {
            return;
        }
    }
}

#[test]
fn other_traffic_passes_untouched() {
    let lab = lab_or_return!(1500);
    udp_ping(&lab);
    let mut links = [open(&lab, 0), open(&lab, 1)];
    assert!(has_program(&lab, 0) && has_program(&lab, 1));
    udp_ping(&lab);
    let [a, b] = &mut links;
    is_heard(a, b, b"ours");
    is_heard(b, a, b"ours");
    udp_ping(&lab);
    // Frames of another EtherType reach who waits for them.
    let other = packet_mmap::PacketMmapConfig {
        ether_type: 0x88B6,
        ..packet_mmap::PacketMmapConfig::default()
    };
    let mut others = [0, 1].map(|host| {
        in_host(&lab, host, || {
            packet_mmap::open(&other).expect("packet_mmap")
        })
    });
    let [c, d] = &mut others;
    is_heard(c, d, b"theirs");
    assert_eq!(b.rx.recv(usize::MAX, &mut |_, _| {}).expect("receive"), 0);
}

#[test]
fn the_program_goes_with_the_receiving_half() {
    let lab = lab_or_return!(1500);
    assert!(!has_program(&lab, 0));
    let Link { tx, rx } = open(&lab, 0);
    assert!(has_program(&lab, 0));
    drop(rx);
    program_goes(&lab, 0);
    drop(tx);
    // The sending half alone has none.
    let tx = in_host(&lab, 0, || af_xdp::open_transmit(&AfXdpConfig::default()));
    let tx = tx.expect("af_xdp transmit");
    assert!(!has_program(&lab, 0));
    drop(tx);
    udp_ping(&lab);
}

/// Not a test by itself: what the child of other tests runs.
#[test]
fn held_by_a_child() {
    match std::env::var(CHILD).as_deref() {
        Ok("hold") => {
            let _link = af_xdp::open(&AfXdpConfig::default()).expect("af_xdp");
            println!("\nchild: open");
            loop {
                std::thread::park();
            }
        }
        Ok("refused") => {
            let error = af_xdp::open(&AfXdpConfig::default()).expect_err("must be refused");
            println!("\nchild: {error}");
        }
        _ => {}
    }
}

/// Runs `held_by_a_child` in a host, under `wrapper`, and waits for what it has to say.
fn child(lab: &Lab, host: usize, task: &str, wrapper: &[&str]) -> (Child, String) {
    let this = std::env::current_exe().expect("this program");
    let this = this.to_str().expect("a path in UTF-8");
    let test = [this, "--exact", "held_by_a_child", "--nocapture"];
    let words: Vec<&str> = wrapper.iter().chain(&test).copied().collect();
    let mut child = lab
        .command(host, words[0])
        .args(&words[1..])
        .env(CHILD, task)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the child");
    let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let said = lines
        .find_map(|line| Some(line.ok()?.strip_prefix("child: ")?.to_owned()))
        .expect("the child says something");
    (child, said)
}

#[test]
fn nothing_is_left_after_a_kill() {
    let lab = lab_or_return!(1500);
    let mut here = open(&lab, 1);
    for _ in 0..3 {
        let (mut held, said) = child(&lab, 0, "hold", &[]);
        assert_eq!(said, "open");
        assert!(has_program(&lab, 0));
        held.kill().expect("kill -9");
        held.wait().expect("wait for it");
        program_goes(&lab, 0);
        udp_ping(&lab);
        // And it can be opened again at once.
        let mut again = open(&lab, 0);
        is_heard(&mut again, &mut here, b"again");
        is_heard(&mut here, &mut again, b"again");
    }
}

#[test]
fn without_privilege_it_says_which() {
    let lab = lab_or_return!(1500);
    let setpriv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    if lab.command(0, "setpriv").arg("--version").output().is_err() {
        dogwild_lab::skip::skip("the program setpriv (util-linux)");
        return;
    }
    let (mut refused, said) = child(&lab, 0, "refused", &setpriv);
    refused.wait().expect("wait for it");
    for word in ["`eth0`", "CAP_NET_RAW", "CAP_BPF", "setcap"] {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn two_queues_are_read_and_one_is_sent_to() {
    let lab = lab_or_return!(1500);
    for host in [0, 1] {
        let mut ethtool = lab.command(host, "ethtool");
        let set = ethtool.args(["-L", "eth0", "rx", "2", "tx", "2"]).status();
        if !set.is_ok_and(|status| status.success()) {
            dogwild_lab::skip::skip("the program ethtool, or veth with two queues");
            return;
        }
    }
    let on = |host, queues: &[u32]| {
        let config = AfXdpConfig {
            queues: Some(queues.to_vec()),
            ..AfXdpConfig::default()
        };
        in_host(&lab, host, || af_xdp::open(&config).expect("af_xdp"))
    };
    let mut all = open(&lab, 1);
    for queues in [&[0][..], &[1], &[1, 0]] {
        let mut one = on(0, queues);
        is_heard(&mut one, &mut all, b"to both queues");
        // Queue 0 is what the other side sends to: who reads queue 1 alone hears nothing.
        if queues.contains(&0) {
            is_heard(&mut all, &mut one, b"from queue 0");
        }
    }
    let error = refusal(
        &lab,
        &AfXdpConfig {
            queues: Some(vec![0, 2]),
            ..AfXdpConfig::default()
        },
    );
    assert!(
        matches!(
            error,
            AfXdpError::NoSuchQueue {
                queue: 2,
                count: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn refusals_say_what_to_do() {
    let lab = lab_or_return!(9000);
    let says = |config: &AfXdpConfig, words: &[&str]| {
        let said = refusal(&lab, config).to_string();
        for word in words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    };
    let config = AfXdpConfig::default();
    says(&config, &["9000", "3506", "eth0", "packet_mmap"]);
    for mtu in [3507, 9000] {
        let mtu = Some(mtu);
        says(
            &AfXdpConfig {
                mtu,
                ..config.clone()
            },
            &["3506", "eth0"],
        );
    }
    for mtu in [0, 45, 9001, usize::MAX] {
        let mtu = Some(mtu);
        says(
            &AfXdpConfig {
                mtu,
                ..config.clone()
            },
            &["46", "9000"],
        );
    }
    run(&lab, 0, "ip", &["link", "set", "eth0", "mtu", "1500"]);
    let with = |change: fn(&mut AfXdpConfig)| {
        let mut config = AfXdpConfig::default();
        change(&mut config);
        config
    };
    says(&with(|c| c.iface = "nosuch0".into()), &["nosuch0", "eth0"]);
    says(&with(|c| c.iface = "lo".into()), &["`lo`", "udp"]);
    says(&with(|c| c.group = [2; 6]), &["multicast", "odd"]);
    says(&with(|c| c.queues = Some(vec![])), &["no queue"]);
    says(&with(|c| c.queues = Some(vec![7])), &["queue 7", "ethtool"]);
    {
        let _held = open(&lab, 0);
        says(&config, &["another XDP program", "eth0"]);
        let transmit = in_host(&lab, 0, || af_xdp::open_transmit(&AfXdpConfig::default()));
        let said = transmit.err().expect("taken").to_string();
        assert!(
            said.contains("queue 0") && said.contains("another"),
            "{said}"
        );
    }
    run(&lab, 0, "ip", &["link", "set", "eth0", "down"]);
    says(&config, &["down", "ip link set eth0 up"]);
}

#[test]
fn an_interface_that_goes_is_an_error() {
    let lab = lab_or_return!(1500);
    let mut link = open(&lab, 0);
    run(&lab, 0, "ip", &["link", "del", "eth0"]);
    while link.rx.wait(Duration::from_millis(50)).is_ok() {}
    link.tx.send(To::Group, 9, &mut |slot| slot.fill(1));
    link.tx.flush().expect_err("there is nothing to send to");
}

#[test]
fn an_overrun_is_told_by_the_fill_ring() {
    let lab = lab_or_return!(1500);
    let mut from = open(&lab, 0);
    let mut to = open(&lab, 1);
    for _ in 0..10_000 {
        from.tx.send(To::Group, 1500, &mut |slot| slot.fill(1));
    }
    from.tx.flush().expect("flush");
    let lent = to.rx.recv(usize::MAX, &mut |_, _| {}).expect("receive");
    let (sent, received) = (from.tx.stats(), to.rx.stats());
    assert!(received.fill_ring_empty > 0, "{received:?}");
    assert_eq!(
        lent as u64 + received.kernel_drops + sent.dropped,
        sent.frames,
        "{received:?}"
    );
}
