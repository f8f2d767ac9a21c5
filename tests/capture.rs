//! Captured frames as tshark shows them with the dissector of `tools/wireshark/dogwild.lua`.

#![cfg(feature = "program")]

use std::path::Path;
use std::process::Command;

use dogwild::wire::{Dtype, Header, Hello, Kind, NodeSeen, Stay, VERSION};
use dogwild_net::{Link, Source, To, capture, memory::Hub, seal};

const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/wireshark/dogwild.lua");

/// The frames: kind, payload bytes, acks.
const FRAMES: [(Kind, u32, u8); 9] = [
    (Kind::Position, 1408, 2),
    (Kind::Delta, 64, 0),
    (Kind::Hello, 84, 0),
    (Kind::Restore, 4, 2),
    (Kind::Ask, 8, 0),
    (Kind::Offer, 16, 0),
    (Kind::Contacts, 40, 0),
    (Kind::Check, 1408, 0),
    (Kind::Seek, 12, 0),
];

/// Node 1 of three, which leaves; two nodes are seen from node 1 on.
fn hello() -> Hello {
    let seen = |life, epoch| NodeSeen {
        life,
        epoch,
        held: 40,
        iterations: 1_000 * life,
        ..NodeSeen::default()
    };
    let silent = NodeSeen {
        silent: true,
        ..seen(8, 0x0201)
    };
    let by_multicast = NodeSeen {
        by_multicast: true,
        ..seen(7, 0x0100)
    };
    Hello {
        fingerprint: 1,
        data: 2,
        first_weights: 3,
        incarnation: 4,
        chunk_weights: 352,
        chunks: 1200,
        nodes: 3,
        later: 5,
        stay: Stay::Leaves,
        settled: true,
        masters: 2,
        trained_ms: 60_000,
        first: 1,
        seen: vec![by_multicast, silent],
    }
}

/// Captures [`FRAMES`] as a node at `local` would send them to `group`.
fn record(path: &Path, local: Source, group: Source, key: Option<seal::Key>) {
    let link = Hub::new(1, 1600, 4).remove(0);
    let config = capture::CaptureConfig {
        path: path.to_owned(),
        bytes_max: 1 << 20,
        local,
        group,
    };
    let mut link: Link = capture::wrap(link, &config).expect("a file");
    if let Some(key) = key {
        let windows = seal::ReplayWindows::in_memory().expect("memory");
        link = seal::wrap(link, seal::SealConfig { key, windows }).expect("a random number");
    }
    for (i, (kind, payload_len, acks)) in FRAMES.into_iter().enumerate() {
        let dtype = match kind {
            kind if kind.has_weights() => Dtype::F32,
            _ => Dtype::None,
        };
        let header = Header {
            kind,
            flags: 2,
            dtype,
            acks,
            seq: 9,
            session: 0x0102_0304_0506_0708,
            epoch: 3,
            sender: 1,
            range: 1,
            chunk: 70_000 + i as u32,
            chunk_version: 42,
            iterations: 123_456_789_012,
            payload_len,
            content: 513,
            part: i as u8,
            held: 40 + i as u8,
        };
        let sent = link.tx.send(To::Group, header.frame_len(), &mut |slot| {
            let (acks, payload) = header.emit(slot);
            acks.fill(7);
            payload.fill(1);
            if kind == Kind::Hello {
                hello().emit(payload);
            }
        });
        assert!(sent, "{kind:?}");
    }
}

/// The fields of each packet, tab-separated; `None` where there is no tshark.
fn show(path: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{DISSECTOR}"));
    command.arg("-r").arg(path).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let Ok(output) = command.output() else {
        dogwild_lab::skip::skip("tshark (Debian: apt-get install tshark)");
        return None;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains("dogwild.lua:"), "{stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().map(str::to_owned).collect())
}

const FIELDS: [&str; 16] = [
    "frame.protocols",
    "dogwild.kind",
    "dogwild.session",
    "dogwild.epoch",
    "dogwild.sender",
    "dogwild.chunk",
    "dogwild.chunk_version",
    "dogwild.seq",
    "dogwild.iterations",
    "dogwild.payload_len",
    "dogwild.content",
    "dogwild.part",
    "dogwild.held",
    "dogwild.acks",
    "dogwild.seal.number",
    "_ws.expert.message",
];

fn check(local: Source, group: Source, protocols: &str, sealed: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("frames.pcapng");
    record(
        &path,
        local,
        group,
        sealed.then(|| seal::Key::new(&[5; 32])),
    );
    let Some(lines) = show(&path, &FIELDS) else {
        return;
    };
    assert_eq!(lines.len(), FRAMES.len());
    for (i, (line, (kind, payload_len, acks))) in lines.iter().zip(FRAMES).enumerate() {
        let wanted = [
            protocols.to_owned(),
            (kind as u8).to_string(),
            "0x0102030405060708".to_owned(),
            "3".to_owned(),
            "1".to_owned(),
            (70_000 + i).to_string(),
            "42".to_owned(),
            "9".to_owned(),
            "123456789012".to_owned(),
            payload_len.to_string(),
            "513".to_owned(),
            i.to_string(),
            (40 + i).to_string(),
            "07".repeat(acks.into()),
            if sealed {
                (i + 1).to_string()
            } else {
                String::new()
            },
            // Nothing is strange, cut or badly summed.
            String::new(),
        ];
        let mut shown: Vec<_> = line.split('\t').collect();
        // What the heuristic found is named twice, by it and by the dissector.
        shown[0] = shown[0].strip_suffix(":dogwild").map_or(shown[0], |rest| {
            if rest.ends_with(":dogwild") {
                rest
            } else {
                shown[0]
            }
        });
        assert_eq!(shown, wanted, "{kind:?}");
    }
}

fn socket(text: &str) -> Source {
    Source::Socket(text.parse().expect("an address"))
}

#[test]
fn raw_ethernet_is_dissected() {
    let group = Source::Mac([3, 0x44, 0x57, 1, 2, 3]);
    let local = Source::Mac([2, 0, 0, 0, 0, 1]);
    check(local, group, "eth:ethertype:dogwild", false);
    check(local, group, "eth:ethertype:dogwild", true);
}

#[test]
fn udp_is_dissected() {
    let (local, group) = (socket("10.0.0.1:40000"), socket("239.68.1.2:22345"));
    check(local, group, "eth:ethertype:ip:udp:dogwild", false);
    check(local, group, "eth:ethertype:ip:udp:dogwild", true);
    let (local, group) = (socket("[fe80::1]:40000"), socket("[ff02::44]:22345"));
    check(local, group, "eth:ethertype:ipv6:udp:dogwild", false);
}

#[test]
fn udp_between_other_ports_is_known_by_its_first_bytes() {
    let (local, node) = (socket("10.0.0.1:40000"), socket("10.0.0.2:41000"));
    check(local, node, "eth:ethertype:ip:udp:dogwild", false);
}

#[test]
fn hellos_are_dissected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("frames.pcapng");
    record(
        &path,
        socket("10.0.0.1:40000"),
        socket("239.68.1.2:22345"),
        None,
    );
    let wanted = [
        ("fingerprint", "0x0000000000000001"),
        ("data", "0x0000000000000002"),
        ("first_weights", "0x0000000000000003"),
        ("incarnation", "0x0000000000000004"),
        ("chunk_weights", "352"),
        ("chunks", "1200"),
        ("nodes", "3"),
        ("masters", "2"),
        ("trained_ms", "60000"),
        ("first", "1"),
        ("later", "5"),
        ("stay", "1"),
        ("settled", "1"),
        ("seen.node", "1,2"),
        ("seen.life", "0x00000007,0x00000008"),
        ("seen.epoch", "256,513"),
        ("seen.held", "40,40"),
        ("seen.by_multicast", "1,0"),
        ("seen.gone", "0,0"),
        ("seen.silent", "0,1"),
        ("seen.iterations", "7000,8000"),
    ];
    let fields = wanted.map(|(name, _)| format!("dogwild.hello.{name}"));
    let fields: Vec<_> = fields.iter().map(String::as_str).collect();
    let Some(lines) = show(&path, &fields) else {
        return;
    };
    let at = FRAMES.iter().position(|(kind, ..)| *kind == Kind::Hello);
    let shown: Vec<_> = lines[at.expect("a hello")].split('\t').collect();
    assert_eq!(shown, wanted.map(|(_, value)| value));
}

/// Without tshark too.
#[test]
fn the_dissector_is_of_this_version() {
    let text = std::fs::read_to_string(DISSECTOR).expect("the dissector");
    let sizes = format!(
        "local VERSION, HEADER, SEAL, HELLO, SEEN, SEEK, MAX_PAYLOAD = {VERSION}, 48, 32, {}, {}, ",
        Hello::len(0),
        Hello::len(1) - Hello::len(0),
    );
    assert!(text.contains(&sizes), "{sizes}");
}
