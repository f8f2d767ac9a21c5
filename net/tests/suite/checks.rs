//! What every transport has to do.

use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use dogwild_net::{Link, Source, To};

use super::{Net, Sample, collect, introduce, nothing_comes, receive, send};

/// Frames sent before the receivers are emptied: less than any receive buffer holds.
const TURN: u64 = 512;
/// Ethernet makes shorter payloads as long as this.
const ETHERNET_PAYLOAD_MIN: usize = 46;

pub(crate) fn group_reaches_all_but_the_sender(net: &Net) {
    let mut links = net.open();
    for sender in 0..net.nodes {
        let text = format!("from node {sender}");
        send(&mut *links[sender].tx, To::Group, text.as_bytes());
        links[sender].tx.flush().expect("flush");
        for (node, link) in links.iter_mut().enumerate() {
            if node == sender {
                nothing_comes(&mut *link.rx);
            } else {
                let frames = collect(&mut *link.rx, 1);
                assert_eq!(frames.len(), 1, "from {sender} at {node}");
                assert!(frames[0].1.starts_with(text.as_bytes()));
            }
        }
    }
}

pub(crate) fn node_reaches_that_node_alone(net: &Net) {
    let mut links = net.open();
    introduce(&mut links, 1);
    send(&mut *links[0].tx, To::Node(1), b"for you");
    links[0].tx.flush().expect("flush");
    let frames = collect(&mut *links[1].rx, 1);
    assert!(frames.len() == 1 && frames[0].1.starts_with(b"for you"));
    // The answer goes to where the frame came from.
    links[1].tx.learn(0, frames[0].0);
    send(&mut *links[1].tx, To::Node(0), b"and for you");
    links[1].tx.flush().expect("flush");
    let frames = collect(&mut *links[0].rx, 1);
    assert!(frames.len() == 1 && frames[0].1.starts_with(b"and for you"));
    for link in &mut links {
        nothing_comes(&mut *link.rx);
    }
}

pub(crate) fn every_length_arrives_whole(net: &Net) {
    let mut links = net.open();
    let mtu = links[0].tx.mtu();
    // Short ones first, then growing and shrinking: gathered frames have to be of one length.
    let lengths = [
        0,
        1,
        2,
        0,
        59,
        60,
        mtu - 1,
        mtu,
        mtu,
        mtu,
        3,
        3,
        3,
        1,
        1,
        0,
        0,
        mtu,
        7,
    ];
    for (i, len) in lengths.into_iter().enumerate() {
        let bytes = vec![i as u8 + 1; len];
        send(&mut *links[0].tx, To::Group, &bytes);
    }
    links[0].tx.flush().expect("flush");
    for link in &mut links[1..] {
        let mut frames = collect(&mut *link.rx, lengths.len());
        assert_eq!(frames.len(), lengths.len());
        for (i, len) in lengths.into_iter().enumerate() {
            let wanted = vec![i as u8 + 1; len];
            let found = frames
                .iter()
                .position(|(_, frame)| is_padded(frame, &wanted))
                .unwrap_or_else(|| panic!("frame {i} of {len} bytes is missing"));
            frames.swap_remove(found);
        }
    }
}

/// Whether a frame is `wanted`, with zeros up to the shortest frame of Ethernet at most.
fn is_padded(frame: &[u8], wanted: &[u8]) -> bool {
    let padding = frame.strip_prefix(wanted);
    padding.is_some_and(|rest| {
        rest.is_empty() || frame.len() <= ETHERNET_PAYLOAD_MIN && rest.iter().all(|&byte| byte == 0)
    })
}

pub(crate) fn too_long_is_refused(net: &Net) {
    let mut links = net.open();
    let mtu = links[0].tx.mtu();
    for len in [mtu + 1, 65_536, usize::MAX] {
        let sent = links[0].tx.send(To::Group, len, &mut |_| {
            panic!("there is no slot of {len} bytes")
        });
        assert!(!sent);
    }
    assert_eq!(links[0].tx.stats().too_long, 3);
    links[0].tx.flush().expect("flush");
    nothing_comes(&mut *links[1].rx);
}

pub(crate) fn random_frames_arrive_intact(net: &Net) {
    frames_arrive_intact(net, net.frames(100_000), Sample::random);
}

pub(crate) fn equal_frames_arrive_intact(net: &Net) {
    frames_arrive_intact(net, net.frames(20_000), Sample::longest);
}

fn frames_arrive_intact(net: &Net, frames: u64, sample: fn(u64) -> Sample) {
    let mut links = net.open();
    let mtu = links[0].tx.mtu();
    let mut seen = vec![vec![false; frames as usize]; net.nodes];
    let mut bytes = 0;
    for first in (0..frames).step_by(TURN as usize) {
        let turn = first..frames.min(first + TURN);
        for number in turn.clone() {
            let sample = sample(number);
            let len = sample.len(mtu);
            bytes += len as u64;
            let sent = links[0]
                .tx
                .send(To::Group, len, &mut |slot| sample.write(slot));
            assert!(sent, "no slot: {:?}", links[0].tx.stats());
        }
        links[0].tx.flush().expect("flush");
        for (link, seen) in links.iter_mut().zip(&mut seen).skip(1) {
            receive(&mut *link.rx, turn.clone().count(), &mut |_, frame| {
                let number = Sample::check(frame, mtu) as usize;
                assert!(!seen[number], "frame {number} came twice");
                seen[number] = true;
            });
        }
    }
    let sent = links[0].tx.stats();
    assert_eq!((sent.frames, sent.bytes), (frames, bytes));
    assert!(sent.dropped == 0 || net.sees_drops_on_the_way(), "{sent:?}");
    let frames = frames - sent.dropped;
    for link in &mut links[1..] {
        let stats = link.rx.stats();
        if net.counts_single_drops() || stats.kernel_drops == 0 {
            assert_eq!(stats.frames + stats.kernel_drops, frames, "{stats:?}");
        }
        if stats.kernel_drops + sent.dropped == 0 {
            assert!(stats.bytes >= bytes, "{stats:?}");
        }
    }
}

pub(crate) fn an_overrun_is_counted_and_passes(net: &Net) {
    let mut links = net.open();
    let mtu = links[0].tx.mtu();
    let mut refused = 0;
    let frames = net.frames(60_000);
    for number in (0..=u8::MAX).cycle().take(frames as usize) {
        let fill = &mut |slot: &mut [u8]| slot.fill(number);
        refused += u64::from(!links[0].tx.send(To::Group, mtu, fill));
    }
    links[0].tx.flush().expect("flush");
    let sent = links[0].tx.stats();
    assert_eq!(sent.no_slot, refused);
    assert_eq!(sent.frames + sent.no_slot, frames);
    if let Some(back_pressure) = net.has_back_pressure() {
        assert_eq!(refused > 0, back_pressure);
    }
    let left = sent.frames - sent.dropped;
    for link in &mut links[1..] {
        receive(&mut *link.rx, left as usize, &mut |_, frame| {
            assert!(frame.len() >= mtu);
        });
        let stats = link.rx.stats();
        if !net.counts_overruns() {
            assert!(stats.frames <= left, "{stats:?}");
        } else if net.counts_single_drops() || stats.kernel_drops == 0 {
            assert_eq!(stats.frames + stats.kernel_drops, left, "{stats:?}");
        } else {
            assert!(stats.frames + stats.kernel_drops < left, "{stats:?}");
        }
    }
    // And on it goes.
    introduce(&mut links, 0);
}

pub(crate) fn both_ways_at_once(net: &Net) {
    let all_frames = net.frames(20_000);
    let links = net.open();
    let node = |(index, link): (usize, Link)| {
        let Link { mut tx, mut rx } = link;
        let mtu = tx.mtu();
        let mut refused = 0;
        let others = net.nodes - 1;
        thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let frames = all_frames as usize * others;
                receive(&mut *rx, frames, &mut |_, frame| {
                    Sample::check(frame, mtu);
                });
                rx.stats()
            });
            for number in 0..all_frames {
                let sample = Sample::random(number * 8 + index as u64);
                let len = sample.len(mtu);
                while !tx.send(To::Group, len, &mut |slot| sample.write(slot)) {
                    refused += 1;
                    tx.flush().expect("flush");
                    thread::yield_now();
                }
                if number % 64 == 0 {
                    tx.flush().expect("flush");
                    thread::yield_now();
                }
            }
            tx.flush().expect("flush");
            assert_eq!(tx.stats().frames, all_frames);
            assert_eq!(tx.stats().no_slot, refused);
            (tx.stats(), receiver.join().expect("receiver"))
        })
    };
    thread::scope(|scope| {
        let nodes: Vec<_> = links
            .into_iter()
            .enumerate()
            .map(|each| scope.spawn(move || node(each)))
            .collect();
        let ends: Vec<_> = nodes
            .into_iter()
            .map(|node| node.join().expect("node"))
            .collect();
        let dropped: u64 = ends.iter().map(|(sent, _)| sent.dropped).sum();
        assert!(dropped == 0 || net.sees_drops_on_the_way());
        for (sent, stats) in ends {
            // Every node hears all others.
            let wanted = all_frames * (net.nodes as u64 - 1) - (dropped - sent.dropped);
            let seen = stats.frames + stats.kernel_drops;
            if !net.counts_overruns() {
                assert!(seen <= wanted && seen > 0, "{seen} of {wanted}: {stats:?}");
            } else if net.switch_may_drop() {
                assert!(
                    seen <= wanted && seen >= wanted / 2,
                    "{seen} of {wanted}: {stats:?}"
                );
            } else if net.counts_single_drops() || stats.kernel_drops == 0 {
                assert_eq!(seen, wanted, "{stats:?}");
            }
        }
    });
}

pub(crate) fn a_node_starts_again(net: &Net) {
    let mut links = net.open();
    introduce(&mut links, 1);
    let gone = links.remove(1);
    drop(gone);
    // No receiver is there: the sender goes on.
    for _ in 0..200 {
        send(&mut *links[0].tx, To::Node(1), b"is a peer here");
        send(&mut *links[0].tx, To::Group, b"is a peer here");
        links[0].tx.flush().expect("flush");
    }
    let Some(again) = net.open_one(1) else {
        return;
    };
    for link in &mut links[1..] {
        receive(&mut *link.rx, 200, &mut |_, _| {});
    }
    links.insert(1, again);
    introduce(&mut links, 1);
    send(&mut *links[0].tx, To::Node(1), b"welcome back");
    links[0].tx.flush().expect("flush");
    let frames = collect(&mut *links[1].rx, 1);
    assert!(frames.len() == 1 && frames[0].1.starts_with(b"welcome back"));
}

pub(crate) fn the_interface_goes_down_and_up(net: &Net) {
    let mut links = net.open();
    if !net.switch(0, "down") {
        return;
    }
    let mut refused = 0;
    for _ in 0..2000 {
        let lost = [1; 100];
        if !links[0]
            .tx
            .send(To::Group, 100, &mut |slot| slot.copy_from_slice(&lost))
        {
            refused += 1;
        }
        links[0]
            .tx
            .flush()
            .expect("a link that is down recovers by itself");
    }
    assert!(
        !links[0]
            .rx
            .wait(Duration::from_millis(20))
            .expect("wait while down")
    );
    links[0]
        .rx
        .recv(1, &mut |_, _| {})
        .expect("receive while down");
    let stats = links[0].tx.stats();
    assert_eq!(stats.no_slot, refused);
    assert_eq!(stats.frames + refused, 2000);

    net.switch(0, "up");
    // Until the carrier is there frames are lost: say it until it is received.
    let heard = |from: &mut Link, to: &mut Link| {
        loop {
            let hello = b"here again";
            from.tx
                .send(To::Group, 10, &mut |slot| slot.copy_from_slice(hello));
            from.tx.flush().expect("flush");
            to.rx.wait(Duration::from_millis(10)).expect("wait");
            let mut heard = false;
            to.rx
                .recv(usize::MAX, &mut |_, frame| {
                    heard |= frame.starts_with(hello)
                })
                .expect("receive");
            if heard {
                break;
            }
        }
    };
    let (first, others) = links.split_at_mut(1);
    heard(&mut first[0], &mut others[0]);
    heard(&mut others[0], &mut first[0]);
}

pub(crate) fn wait_times_out_and_wakes(net: &Net) {
    let mut links = net.open();
    let mut other = links.pop().expect("two links");
    let timeout = Duration::from_millis(30);
    let start = Instant::now();
    assert!(!links[0].rx.wait(timeout).expect("wait"));
    assert!(start.elapsed() >= timeout);
    assert!(!links[0].rx.wait(Duration::ZERO).expect("wait"));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(timeout);
            send(&mut *other.tx, To::Group, b"wake up");
            other.tx.flush().expect("flush");
        });
        assert!(links[0].rx.wait(Duration::from_secs(60)).expect("wait"));
    });
    assert!(
        links[0].rx.wait(Duration::ZERO).expect("wait"),
        "it is still there"
    );
    assert_eq!(collect(&mut *links[0].rx, 1).len(), 1);
    assert!(
        !links[0].rx.wait(Duration::ZERO).expect("wait"),
        "it is gone"
    );
}

pub(crate) fn addresses_are_learnt(net: &Net) {
    let mut links = net.open();
    assert!(!links[0].tx.knows(1) && !links[0].tx.knows(u16::MAX));
    let unknown = links[0]
        .tx
        .send(To::Node(1), 1, &mut |_| panic!("no node to send to"));
    assert!(!unknown);
    assert_eq!(links[0].tx.stats().no_address, 1);
    // Sources of two other transports: at least one is foreign to this one.
    for foreign in [Source::Memory(u16::MAX), Source::Memory(9999)] {
        links[0].tx.learn(1, foreign);
    }
    assert!(!links[0].tx.knows(1));
    introduce(&mut links, 1);
    assert!(links[0].tx.knows(1) && !links[0].tx.knows(2));
    assert!(!links[1].tx.knows(0));
    // Any node index may be given an address, and a second node the same one.
    let frames = {
        send(&mut *links[1].tx, To::Group, b"again");
        links[1].tx.flush().expect("flush");
        collect(&mut *links[0].rx, 1)
    };
    links[0].tx.learn(u16::MAX, frames[0].0);
    assert!(links[0].tx.knows(u16::MAX));
    for node in [1, u16::MAX] {
        send(&mut *links[0].tx, To::Node(node), b"same place");
    }
    links[0].tx.flush().expect("flush");
    assert_eq!(collect(&mut *links[1].rx, 2).len(), 2);
}

pub(crate) fn lent_words_arrive(net: &Net) {
    let mut links = net.open();
    let words: Vec<AtomicU32> = (0..4096).map(AtomicU32::new).collect();
    links[0].tx.lend(&words).expect("lend");
    // The first and last of the memory, none, and some that were never lent.
    for range in [0..16, 4080..4096, 7..7, 5000..5016] {
        let bytes: Vec<u8> = range
            .clone()
            .flat_map(|i| (i as u32).to_le_bytes())
            .collect();
        let ticket = links[0]
            .tx
            .send_lent(To::Group, 20, range, &mut |head, tail| {
                head.copy_from_slice(b"twenty bytes of head");
                if let Some(tail) = tail {
                    tail.copy_from_slice(&bytes);
                }
            });
        let ticket = ticket.expect("a slot");
        links[0].tx.flush().expect("flush");
        for link in &mut links[1..] {
            let frames = collect(&mut *link.rx, 1);
            assert_eq!(frames.len(), 1);
            assert!(is_padded(
                &frames[0].1,
                &[b"twenty bytes of head", &*bytes].concat()
            ));
        }
        while !links[0].tx.has_read(ticket) {
            thread::yield_now();
        }
    }
    let mtu = links[0].tx.mtu();
    let too_long = links[0]
        .tx
        .send_lent(To::Group, mtu, 0..1, &mut |_, _| panic!("no slot"));
    assert_eq!((too_long, links[0].tx.stats().too_long), (None, 1));
}
