//! Files read back with the same crate; `tests/capture.rs` of `dogwild` has tshark read them.

use std::fs;

use pcap_file::pcapng::{Block, PcapNgReader};

use super::*;
use crate::memory::Hub;

fn config(path: &Path, bytes_max: u64) -> CaptureConfig {
    CaptureConfig {
        path: path.to_owned(),
        bytes_max,
        local: Source::Memory(0),
        group: Source::Memory(u16::MAX),
    }
}

/// The packets of a file with their directions.
fn packets(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let bytes = fs::read(path).expect("the file");
    let mut reader = PcapNgReader::new(&bytes[..]).expect("a pcapng file");
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a whole block") {
            let direction = packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Flags(flags) => Some(*flags),
                _ => None,
            });
            assert!(packet.timestamp > Duration::from_secs(1_700_000_000));
            found.push((direction.expect("a direction"), packet.data.into_owned()));
        }
    }
    found
}

#[test]
fn both_directions_are_written_once_with_what_was_in_the_frames() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("frames.pcapng");
    let mut links = Hub::new(2, 100, 16).into_iter();
    let mut link = wrap(links.next().expect("a link"), &config(&path, 1 << 20)).expect("a file");
    let mut other = links.next().expect("a link");
    for len in 0..10usize {
        assert!(
            link.tx
                .send(To::Group, len, &mut |slot| slot.fill(len as u8))
        );
    }
    // What is refused is not on the wire.
    assert!(!link.tx.send(To::Group, 101, &mut |_| {}));
    assert!(!link.tx.send(To::Node(1), 1, &mut |_| {}));
    assert!(
        other
            .tx
            .send(To::Group, 3, &mut |slot| slot.copy_from_slice(b"hey"))
    );
    assert_eq!(
        link.rx
            .recv(9, &mut |_, frame| assert_eq!(frame, b"hey"))
            .expect("receive"),
        1
    );
    let stats = link.rx.stats().capture;
    assert_eq!((stats.written, stats.skipped), (11, 0));
    drop(link);
    let packets = packets(&path);
    assert_eq!(packets.len(), 11);
    for (len, (direction, packet)) in packets[..10].iter().enumerate() {
        assert_eq!(*direction, 2);
        assert_eq!(packet[..6], [2, 0x44, 0x57, 0, 255, 255]);
        assert_eq!(packet[6..14], [2, 0x44, 0x57, 0, 0, 0, 0x88, 0xB5]);
        assert_eq!(packet[14..], vec![len as u8; len]);
    }
    assert_eq!(packets[10].0, 1);
    assert_eq!(
        packets[10].1[..14],
        [2, 0x44, 0x57, 0, 0, 0, 2, 0x44, 0x57, 0, 0, 1, 0x88, 0xB5]
    );
    assert_eq!(packets[10].1[14..], *b"hey");
}

#[test]
fn the_file_stays_within_its_size_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("frames.pcapng");
    let mut links = Hub::new(2, 100, 16).into_iter();
    let mut link = wrap(links.next().expect("a link"), &config(&path, 5000)).expect("a file");
    drop(links);
    for _ in 0..200 {
        assert!(link.tx.send(To::Group, 77, &mut |slot| slot.fill(1)));
    }
    let stats = link.rx.stats().capture;
    assert_eq!(stats.written + stats.skipped, 200);
    drop(link);
    assert!(fs::metadata(&path).expect("the file").len() <= 5000);
    assert!(stats.written > 20);
    assert_eq!(packets(&path).len() as u64, stats.written);
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let link = Hub::new(1, 100, 1).remove(0);
    let error = wrap(link, &config(Path::new("/nowhere/x.pcapng"), 9)).expect_err("no folder");
    assert!(error.to_string().contains("/nowhere/x.pcapng"), "{error}");
}

#[test]
fn an_idle_link_settles_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("frames.pcapng");
    let mut link = wrap(Hub::new(1, 100, 1).remove(0), &config(&path, 1 << 20)).expect("a file");
    assert!(link.tx.send(To::Group, 1, &mut |slot| slot.fill(1)));
    for _ in 0..2 {
        link.rx.wait(FLUSH_EVERY).expect("wait");
    }
    assert_eq!(packets(&path).len(), 1, "while the link is open");
}

#[test]
fn ip_headers_have_their_checksums() {
    let socket = |text: &str| Source::Socket(text.parse().expect("an address"));
    let mut packet = Vec::new();
    let (from, to) = (socket("10.1.2.3:4000"), socket("239.68.1.2:22340"));
    packet::build(from, to, b"payload", &mut packet);
    assert_eq!(packet[..6], [1, 0, 0x5E, 68, 1, 2]);
    assert_eq!(packet.len(), 14 + 20 + 8 + 7);
    assert_eq!(ones_complement_sum(&packet[14..34]), 0xFFFF);
    // A destination of another kind cannot be told.
    packet::build(from, Source::Memory(3), b"", &mut packet);
    assert_eq!(packet[30..34], [0; 4]);
    packet::build(
        socket("[fe80::1]:4000"),
        socket("[ff02::44]:22340"),
        b"payload",
        &mut packet,
    );
    assert_eq!(packet[..6], [0x33, 0x33, 0, 0, 0, 0x44]);
    // Version, length, protocol, hop limit.
    assert_eq!(packet[14..22], [0x60, 0, 0, 0, 0, 15, 17, 64]);
    assert_ne!(packet[14 + 40 + 6..14 + 40 + 8], [0, 0]);
    // Addresses, length and protocol (the pseudo-header), then the datagram with its checksum.
    let mut summed = packet[22..54].to_vec();
    summed.extend_from_slice(&[0, 15, 0, 17]);
    summed.extend_from_slice(&packet[54..]);
    // The payload's length is odd.
    summed.push(0);
    assert_eq!(ones_complement_sum(&summed), 0xFFFF);
}

/// The sum that is 0xFFFF where a checksum is right. Adds in another way than the code does.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    bytes.chunks_exact(2).fold(0, |sum: u16, pair| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([pair[0], pair[1]]));
        sum + u16::from(carry)
    })
}
