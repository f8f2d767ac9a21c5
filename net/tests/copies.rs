//! Frames to the group where multicast does not reach all nodes: copies to some, and to addresses
//! where nodes may be.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dogwild_net::{Link, Source, To, Transmit, Way, udp};

/// A link on loopback, in group `group` of this process.
fn open(group: u8, seeds: Vec<SocketAddr>) -> Link {
    let port = 30_000 + (std::process::id() % 20_000) as u16;
    let config = udp::UdpConfig {
        group: ([239, 68, 200, group], port).into(),
        iface: Some("lo".to_owned()),
        mtu: Some(1500),
        seeds,
        ..udp::UdpConfig::default()
    };
    udp::open(&config).expect("a link on loopback")
}

fn send(tx: &mut dyn Transmit, to: To, text: &str) {
    let went = tx.send(to, text.len(), &mut |slot| {
        slot.copy_from_slice(text.as_bytes());
    });
    assert!(went, "{to:?} {text}");
    tx.flush().expect("a link that works");
}

/// What comes within a moment, and whether it came by multicast.
fn received(link: &mut Link) -> Vec<(bool, String)> {
    let mut all = Vec::new();
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        let _ = link.rx.wait(Duration::from_millis(20));
        let mut take = |source: Source, frame: &[u8]| {
            let by_multicast = matches!(source, Source::Multicast(_));
            all.push((by_multicast, String::from_utf8_lossy(frame).into_owned()));
        };
        link.rx.recv(64, &mut take).expect("a link that works");
    }
    all
}

/// The address that frames of `link` come from, as `other` of its group sees it.
fn address(link: &mut Link, other: &mut Link) -> SocketAddr {
    send(link.tx.as_mut(), To::Group, "here");
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut from = None;
        let _ = other.rx.wait(Duration::from_millis(20));
        let mut take = |source: Source, _: &[u8]| from = Some(source.sender());
        other.rx.recv(1, &mut take).expect("a link that works");
        match from {
            Some(Source::Socket(at)) => return at,
            _ => assert!(Instant::now() < end, "nothing came in 10 s"),
        }
    }
}

#[test]
fn each_way_reaches_a_node_once() {
    let mut links = [1, 1, 1, 1].map(|group| open(group, Vec::new()));
    let [sender, others @ ..] = &mut links;
    for (node, other) in (1..).zip(others.iter_mut()) {
        let at = address(other, sender);
        sender.tx.learn(node, Source::Socket(at));
    }
    others.iter_mut().for_each(|other| drop(received(other)));
    for (node, way) in [(1, Way::Multicast), (2, Way::Copy), (3, Way::Rest)] {
        sender.tx.set_way(node, way);
    }
    // On loopback multicast reaches all of them; only what goes out is chosen.
    let before = sender.tx.stats();
    assert_eq!(sender.tx.copies(To::Group), 2);
    send(sender.tx.as_mut(), To::Group, "group");
    let by_multicast = || (true, "group".to_owned());
    assert_eq!(received(&mut others[0]), [by_multicast()]);
    let mut both = received(&mut others[1]);
    both.sort();
    assert_eq!(both, [(false, "group".to_owned()), by_multicast()]);
    assert_eq!(received(&mut others[2]), [by_multicast()]);
    let sent = sender.tx.stats();
    assert_eq!(
        (sent.frames, sent.bytes),
        (before.frames + 2, before.bytes + 10)
    );
    // None is reached by multicast: positions do not go out by it, what is for all tries it.
    sender.tx.set_way(1, Way::Copy);
    send(sender.tx.as_mut(), To::Group, "group");
    send(sender.tx.as_mut(), To::All, "all");
    for other in &mut others[..2] {
        let mut came = received(other);
        came.sort();
        let wanted = [(false, "all"), (false, "group"), (true, "all")];
        assert_eq!(came, wanted.map(|(by, text)| (by, text.to_owned())));
    }
    let mut came = received(&mut others[2]);
    came.sort();
    assert_eq!(came, [(false, "all".to_owned()), (true, "all".to_owned())]);
}

#[test]
fn who_may_be_somewhere_is_asked_there_until_it_is_known() {
    let mut other = open(2, Vec::new());
    let mut neighbour = open(2, Vec::new());
    let seed = address(&mut other, &mut neighbour);
    // In another group: as if multicast did not come through.
    let mut joins = open(3, vec![seed]);
    send(joins.tx.as_mut(), To::Group, "group");
    send(joins.tx.as_mut(), To::All, "all");
    assert_eq!(received(&mut other), [(false, "all".to_owned())]);
    joins.tx.learn(7, Source::Socket(seed));
    send(joins.tx.as_mut(), To::All, "hello");
    assert_eq!(received(&mut other), [(false, "hello".to_owned())]);
    joins.tx.set_way(7, Way::Multicast);
    send(joins.tx.as_mut(), To::All, "all");
    assert_eq!(received(&mut other), []);
    joins.tx.forget(7);
    assert!(!joins.tx.knows(7));
    send(joins.tx.as_mut(), To::All, "again");
    assert_eq!(received(&mut other), [(false, "again".to_owned())]);
}

/// More nodes than there are batches at first: a frame that is taken goes to all of them, in order.
#[test]
fn copies_for_many_nodes_go_together() {
    const NODES: u16 = 60;
    const FRAMES: usize = 40;
    let mut other = open(4, Vec::new());
    let mut sender = open(4, Vec::new());
    let at = address(&mut other, &mut sender);
    for node in 0..NODES {
        sender.tx.learn(node, Source::Socket(at));
        sender.tx.set_way(node, Way::Copy);
    }
    let mut counts = vec![0; FRAMES];
    let mut take = |_: Source, frame: &[u8]| counts[usize::from(frame[0])] += 1;
    for number in 0..FRAMES {
        while !sender
            .tx
            .send(To::Group, 1000, &mut |slot| slot.fill(number as u8))
        {
            sender.tx.flush().expect("a link that works");
            other.rx.recv(1000, &mut take).expect("a link that works");
        }
    }
    let end = Instant::now() + Duration::from_secs(10);
    let all = FRAMES as u64 * u64::from(NODES);
    while other.rx.stats().frames < all && Instant::now() < end {
        sender.tx.flush().expect("a link that works");
        let _ = other.rx.wait(Duration::from_millis(1));
        other.rx.recv(1000, &mut take).expect("a link that works");
    }
    assert_eq!(counts, vec![NODES; FRAMES]);
    assert_eq!(sender.tx.stats().frames, all);
}
