//! What only `verbs` must do. Runs where there is an RDMA port, in CI in the machine of
//! `tools/tests/soft_roce.rs`.

#[path = "suite/ports.rs"]
mod ports;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use dogwild_net::{Link, To, verbs};
use ports::rdma_ports;

fn config(port: &str) -> verbs::VerbsConfig {
    verbs::VerbsConfig {
        port: Some(port.to_owned()),
        ..verbs::VerbsConfig::default()
    }
}

fn open(port: &str) -> Link {
    verbs::open(&config(port)).expect("verbs")
}

fn say(link: &mut Link, text: &[u8]) {
    let fill = &mut |slot: &mut [u8]| slot.copy_from_slice(text);
    assert!(link.tx.send(To::Group, text.len(), fill));
    link.tx.flush().expect("flush");
}

/// The next frame, if one comes within this time.
fn receive(link: &mut Link, within: Duration) -> Option<Vec<u8>> {
    let mut heard = None;
    while link.rx.wait(within).expect("wait") {
        let got = link
            .rx
            .recv(1, &mut |_, frame| heard = Some(frame.to_vec()));
        if got.expect("receive") > 0 {
            break;
        }
    }
    heard
}

const SOON: Duration = Duration::from_secs(60);

#[test]
fn the_adapter_reads_lent_words_when_it_sends() {
    let Some(ports) = rdma_ports(1) else { return };
    let (mut one, mut two) = (open(&ports[0]), open(&ports[0]));
    let words: Vec<AtomicU32> = (0..64).map(AtomicU32::new).collect();
    assert!(one.tx.lend(&words).expect("lend"));
    let ticket = one.tx.send_lent(To::Group, 4, 32..64, &mut |head, tail| {
        assert!(tail.is_none(), "nothing is to be copied");
        head.copy_from_slice(b"head");
    });
    // Nothing has left before `flush`: what is stored now is sent.
    let ticket = ticket.expect("a slot");
    assert!(!one.tx.has_read(ticket));
    words[32].store(7777, Relaxed);
    one.tx.flush().expect("flush");
    let frame = receive(&mut two, SOON).expect("a frame");
    assert_eq!(frame.len(), 4 + 4 * 32);
    assert_eq!(frame[4..8], 7777u32.to_le_bytes());
    assert_eq!(frame[128..], 63u32.to_le_bytes());
    while !one.tx.has_read(ticket) {
        std::thread::yield_now();
    }
}

#[test]
fn another_key_is_not_heard() {
    let Some(ports) = rdma_ports(1) else { return };
    let with_key = |key: u32| {
        let config = verbs::VerbsConfig {
            group: [239, 68, 255, 1].into(),
            key,
            ..config(&ports[0])
        };
        verbs::open(&config).expect("verbs")
    };
    let (mut one, mut same, mut other) = (with_key(1), with_key(1), with_key(2));
    say(&mut one, b"a secret of two");
    assert!(receive(&mut same, SOON).is_some());
    assert_eq!(receive(&mut other, Duration::from_millis(50)), None);
}

#[test]
fn many_links_come_and_go() {
    let Some(ports) = rdma_ports(1) else { return };
    // More than any device has of protection domains or locked memory, if one were left behind.
    for _ in 0..200 {
        say(&mut open(&ports[0]), b"hello and goodbye");
    }
}

#[test]
fn what_cannot_work_is_refused_with_what_to_do() {
    let refused =
        |config: verbs::VerbsConfig| verbs::open(&config).expect_err("refused").to_string();
    let single = verbs::VerbsConfig {
        group: [10, 0, 0, 1].into(),
        ..verbs::VerbsConfig::default()
    };
    let message = refused(single);
    assert!(
        message.contains("10.0.0.1") && message.contains("multicast"),
        "{message}"
    );
    let unknown = verbs::VerbsConfig {
        port: Some("nosuch0".into()),
        ..verbs::VerbsConfig::default()
    };
    let message = refused(unknown);
    let words = match verbs::ports() {
        Ok(_) => ["`nosuch0`", "there are"],
        Err(verbs::VerbsError::NoLibrary { .. }) => ["libibverbs.so.1", "apt-get install"],
        Err(_) => ["RDMA", "/"],
    };
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    let Some(ports) = rdma_ports(1) else { return };
    for mtu in [0, 56, 183] {
        let small = verbs::VerbsConfig {
            mtu: Some(mtu),
            ..config(&ports[0])
        };
        let message = refused(small);
        assert!(message.contains("184 at least"), "{message}");
    }
    let vast = verbs::VerbsConfig {
        mtu: Some(100_000),
        send_slots: 1 << 20,
        ..config(&ports[0])
    };
    verbs::open(&vast).expect("what the device has");
}
