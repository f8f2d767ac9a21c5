//! Sealed links against an attacker who sees, cuts, damages, repeats and invents frames.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;
use crate::memory::Hub;

const MTU: usize = 256;

fn config(key: u8) -> SealConfig {
    SealConfig {
        key: Key::new(&[key; 32]),
        windows: ReplayWindows::in_memory().expect("memory"),
    }
}

fn sealed(link: Link, key: u8) -> Link {
    wrap(link, config(key)).expect("a random number")
}

/// A sealed sender, the attacker's bare link, a sealed receiver.
struct Wire {
    sender: Link,
    attacker: Link,
    receiver: Link,
}

impl Wire {
    fn new() -> Self {
        let mut links = Hub::new(3, MTU, 4096).into_iter();
        let mut next = || links.next().expect("three links");
        Wire {
            sender: sealed(next(), 1),
            attacker: next(),
            receiver: sealed(next(), 1),
        }
    }

    /// Sends one payload and returns the sealed frame, as it was on the wire.
    fn sealed(&mut self, payload: &[u8]) -> Vec<u8> {
        assert!(self.sender.tx.send(To::Group, payload.len(), &mut |slot| {
            slot.copy_from_slice(payload)
        }));
        let mut frame = Vec::new();
        let count = self
            .attacker
            .rx
            .recv(1, &mut |_, seen| frame = seen.to_vec());
        assert_eq!(count.expect("receive"), 1);
        frame
    }

    fn attack(&mut self, frame: &[u8]) {
        assert!(self.attacker.tx.send(To::Group, frame.len(), &mut |slot| {
            slot.copy_from_slice(frame)
        }));
    }

    /// What the receiver lends now.
    fn lent(&mut self) -> Vec<Vec<u8>> {
        let mut lent = Vec::new();
        let each = &mut |_, frame: &[u8]| lent.push(frame.to_vec());
        self.receiver.rx.recv(usize::MAX, each).expect("receive");
        self.sender
            .rx
            .recv(usize::MAX, &mut |_, _| {})
            .expect("receive");
        lent
    }

    fn stats(&mut self) -> SealStats {
        self.receiver.rx.stats().seal
    }
}

#[test]
fn every_length_comes_through_and_no_frame_is_short() {
    let mut wire = Wire::new();
    assert_eq!(wire.sender.tx.mtu(), MTU - OVERHEAD_BYTES);
    for len in 0..=MTU - OVERHEAD_BYTES {
        let payload: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
        let frame = wire.sealed(&payload);
        assert_eq!(frame.len(), (len + OVERHEAD_BYTES).max(SHORTEST_BYTES));
        assert_eq!(wire.lent(), [payload]);
    }
    assert_eq!(wire.stats(), SealStats::default());
    let sent = wire.sender.tx.stats();
    assert_eq!(sent.bytes, (0..=224).sum::<u64>());
}

#[test]
fn every_single_bit_counts() {
    let mut wire = Wire::new();
    for len in [0, 1, 13, 14, 15, 100] {
        let frame = wire.sealed(&vec![0x3C; len]);
        assert_eq!(wire.lent().len(), 1);
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let before = wire.stats().bad_tag;
            wire.attack(&bad);
            assert!(wire.lent().is_empty(), "bit {bit} of {len} bytes");
            assert_eq!(wire.stats().bad_tag, before + 1);
        }
    }
}

#[test]
fn cut_and_lengthened_frames_are_refused() {
    let mut wire = Wire::new();
    let frame = wire.sealed(&[9; 100]);
    assert_eq!(wire.lent().len(), 1);
    for len in 0..frame.len() {
        wire.attack(&frame[..len]);
        wire.attack(&frame[frame.len() - len..]);
        assert!(wire.lent().is_empty(), "{len} bytes");
    }
    let longer = [&frame[..], &[0; 4]].concat();
    wire.attack(&longer);
    assert!(wire.lent().is_empty());
    let stats = wire.stats();
    assert_eq!(stats.truncated, 2 * SHORTEST_BYTES as u64);
    assert_eq!(stats.refused(), 2 * frame.len() as u64 + 1);
}

#[test]
fn a_frame_is_taken_once_in_any_order() {
    let mut wire = Wire::new();
    let frames: Vec<_> = (0..200u8)
        .map(|number| wire.sealed(&[number; 20]))
        .collect();
    assert_eq!(wire.lent().len(), 200);
    for frame in frames.iter().rev() {
        wire.attack(frame);
    }
    assert!(wire.lent().is_empty());
    assert_eq!(wire.stats().replayed, 200);

    // A receiver that starts now has nothing to compare with: each comes once, in this order.
    let mut late = Hub::new(2, MTU, 512).into_iter();
    let (mut attacker, receiver) = (late.next().expect("a link"), late.next().expect("a link"));
    let mut receiver = sealed(receiver, 1);
    let mut count = 0;
    for frame in frames.iter().rev().chain(&frames) {
        assert!(attacker.tx.send(To::Group, frame.len(), &mut |slot| {
            slot.copy_from_slice(frame)
        }));
        count += receiver.rx.recv(9, &mut |_, _| {}).expect("receive");
    }
    assert_eq!((count, receiver.rx.stats().seal.replayed), (200, 200));
}

#[test]
fn our_own_frames_thrown_back_are_refused() {
    let mut wire = Wire::new();
    let frame = wire.sealed(b"mine");
    wire.lent();
    wire.attack(&frame);
    let count = wire.sender.rx.recv(9, &mut |_, _| {}).expect("receive");
    assert_eq!((count, wire.sender.rx.stats().seal.replayed), (0, 1));
}

#[test]
fn another_key_is_a_stranger() {
    let mut links = Hub::new(2, MTU, 16).into_iter();
    let mut next = |key| sealed(links.next().expect("a link"), key);
    let (mut stranger, mut receiver) = (next(2), next(1));
    assert!(stranger.tx.send(To::Group, 4, &mut |slot| slot.fill(1)));
    let count = receiver.rx.recv(9, &mut |_, _| {}).expect("receive");
    assert_eq!((count, receiver.rx.stats().seal.bad_tag), (0, 1));
}

#[test]
fn a_node_that_starts_again_is_heard_at_once() {
    let mut wire = Wire::new();
    for _ in 0..100 {
        wire.sealed(b"before");
    }
    assert_eq!(wire.lent().len(), 100);
    // The same wire, a new link: what it sends goes by way of the attacker.
    let mut again = Hub::new(2, MTU, 16).into_iter();
    let mut sender = sealed(again.next().expect("a link"), 1);
    let mut tap = again.next().expect("a link");
    assert!(
        sender
            .tx
            .send(To::Group, 5, &mut |slot| slot.copy_from_slice(b"after"))
    );
    let mut frame = Vec::new();
    tap.rx
        .recv(1, &mut |_, seen| frame = seen.to_vec())
        .expect("receive");
    wire.attack(&frame);
    assert_eq!(wire.lent(), [b"after"]);
}

#[test]
fn a_link_with_no_room_for_a_seal_sends_nothing() {
    for mtu in [0, 31, 32, 45] {
        let mut links = Hub::new(2, mtu, 4).into_iter();
        let mut tx = sealed(links.next().expect("a link"), 1).tx;
        assert!(!tx.send(To::Group, 0, &mut |_| panic!("no room in {mtu}")));
        assert_eq!(tx.stats().too_long, 1);
    }
}

/// `DOGWILD_HOSTILE_FRAMES` sets how many; docs/measurements has a run of 100 million.
#[test]
fn hostile_frames_are_all_refused_and_harm_nothing() {
    let count: u64 = std::env::var("DOGWILD_HOSTILE_FRAMES")
        .ok()
        .map_or(1_000_000, |text| text.parse().expect("a number of frames"));
    let seed = 31;
    println!("seed {seed}, {count} frames");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut wire = Wire::new();
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let (mut genuine, mut lent) = (0u64, 0u64);
    for number in 0..count {
        if number % 4096 == 0 {
            // Genuine ones in between: they must go on coming through.
            let len = rng.random_range(0..=MTU - OVERHEAD_BYTES);
            let mut payload = vec![0; len];
            rng.fill_bytes(&mut payload);
            let frame = wire.sealed(&payload);
            genuine += 1;
            assert_eq!(wire.lent(), [payload]);
            lent += 1;
            if seen.len() < 1000 {
                seen.push(frame);
            }
        }
        let mut frame = seen[rng.random_range(0..seen.len())].clone();
        match rng.random_range(0..5) {
            0 => {
                frame = vec![0; rng.random_range(0..=MTU)];
                rng.fill_bytes(&mut frame);
            }
            1 => {}
            2 => frame.truncate(rng.random_range(0..frame.len())),
            3 => {
                let bit = rng.random_range(0..frame.len() * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {
                // A number that has not come yet, under the old tag.
                let at = frame.len() - TAG_BYTES - 8;
                frame[at..at + 8].copy_from_slice(&(genuine + number + 1).to_le_bytes());
            }
        }
        wire.attack(&frame);
        if number % 512 == 511 {
            lent += wire.lent().len() as u64;
        }
    }
    lent += wire.lent().len() as u64;
    assert_eq!(lent, genuine);
    let stats = wire.stats();
    assert_eq!(stats.refused(), count, "{stats:?}");
    for by_reason in [stats.bad_tag, stats.replayed, stats.truncated] {
        assert!(by_reason > count / 20, "{stats:?}");
    }
    assert_eq!(wire.receiver.rx.stats().kernel_drops, 0);
    wire.sealed(b"still here");
    assert_eq!(wire.lent(), [b"still here"]);
}

/// A transport that lets each frame be written, keeps it, and says every other time that it did not
/// take it, against the trait's contract.
struct Fickle {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Transmit for Fickle {
    fn mtu(&self) -> usize {
        MTU
    }
    fn send(&mut self, _: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let mut frame = vec![0; len];
        fill(&mut frame);
        fill(&mut frame);
        let mut frames = self.frames.lock().expect("no panic before");
        frames.push(frame);
        frames.len().is_multiple_of(2)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn learn(&mut self, _: u16, _: Source) {}
    fn knows(&self, _: u16) -> bool {
        true
    }
    fn stats(&self) -> TransmitStats {
        TransmitStats::default()
    }
}

/// Two frames of one nonce would give the key away.
#[test]
fn no_nonce_comes_twice_whatever_the_transport_does() {
    let frames = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..3 {
        let link = Hub::new(1, MTU, 1).remove(0);
        let link = Link {
            tx: Box::new(Fickle {
                frames: frames.clone(),
            }),
            rx: link.rx,
        };
        let mut tx = sealed(link, 1).tx;
        for len in [0, 100, 3, 100, 100, 13, 14] {
            tx.send(To::Group, len, &mut |slot| slot.fill(5));
        }
    }
    let frames = frames.lock().expect("no panic before");
    let nonce = |frame: &Vec<u8>| frame[frame.len() - OVERHEAD_BYTES..][..NONCE_BYTES].to_vec();
    let mut nonces: Vec<_> = frames.iter().map(nonce).collect();
    // The lengths of paddings apart: numbers alone are enough.
    nonces
        .iter_mut()
        .for_each(|nonce| nonce[NONCE_BYTES - 1] = 0);
    let all: HashSet<_> = nonces.iter().collect();
    assert_eq!((nonces.len(), all.len()), (21, 21));
    let links: HashSet<_> = nonces.iter().map(|nonce| &nonce[..8]).collect();
    assert_eq!(links.len(), 3);
}

#[test]
fn frames_are_as_long_as_the_key_at_most() {
    let mut links = Hub::new(2, 100_000, 4).into_iter();
    let mut next = || links.next().expect("a link");
    let (mut attacker, mut receiver) = (next(), sealed(next(), 1));
    let mut wide = Hub::new(2, 100_000, 4).into_iter();
    let mut sender = sealed(wide.next().expect("a link"), 1);
    let mut tap = wide.next().expect("a link");
    assert_eq!(sender.tx.mtu(), MESSAGE_BYTES_MAX);
    assert!(
        !sender
            .tx
            .send(To::Group, MESSAGE_BYTES_MAX + 1, &mut |_| {})
    );
    assert_eq!(sender.tx.stats().too_long, 1);
    let payload = &mut |slot: &mut [u8]| slot.fill(7);
    assert!(sender.tx.send(To::Group, MESSAGE_BYTES_MAX, payload));
    let mut frame = Vec::new();
    tap.rx
        .recv(1, &mut |_, seen| frame = seen.to_vec())
        .expect("receive");
    // One byte more than any key has words for, then the frame as it was.
    for sent in [[&[7], &frame[..]].concat(), vec![7; 100_000], frame] {
        assert!(attacker.tx.send(To::Group, sent.len(), &mut |slot| {
            slot.copy_from_slice(&sent)
        }));
    }
    let mut lent = Vec::new();
    let each = &mut |_, frame: &[u8]| lent.push(frame.len());
    receiver.rx.recv(9, each).expect("receive");
    assert_eq!(lent, [MESSAGE_BYTES_MAX]);
    assert_eq!(receiver.rx.stats().seal.bad_tag, 2);
}
