//! Which module may name which: the arrows of docs/architecture.md.

use crate::no_complaints;
use crate::rust::has_word;
use crate::source::{Source, file, files};

/// Modules of the crate `dogwild`, the lowest layer first. A module names none of a higher layer,
/// and no other of its own; the program (`cli`, `main.rs`) stands above all.
const LAYERS: [&[&str]; 3] = [
    &["weights", "wire", "watch"],
    &[
        "stream",
        "poseidon/cost",
        "poseidon/protocol",
        "solver",
        "device",
        "accumulate",
        "snapshot",
    ],
    &["node", "poseidon", "settings", "job", "sim"],
];

/// Parts of a module that are in a lower layer than the rest of it.
const PARTS: [&str; 2] = ["poseidon/cost", "poseidon/protocol"];

/// Modules of the top layer may name each other; those of the two below may not, but for these.
const SAME_LAYER: [(&str, &str); 5] = [
    ("watch", "weights"),
    ("watch", "wire"),
    ("solver", "device"),
    ("accumulate", "device"),
    ("poseidon/protocol", "poseidon/cost"),
];

/// State machines: time, randomness and frames are arguments. And the plain types of the network
/// that they share with it.
const NO_IO: [&str; 6] = [
    "src/wire/",
    "src/stream/",
    "src/poseidon/cost.rs",
    "src/poseidon/protocol/",
    PLAIN_NET_FILE,
    "net/src/bucket.rs",
];

/// What a state machine may name of `dogwild-net`, and where it stands.
const PLAIN_NET: &str = "dogwild_net::outbox";
const PLAIN_NET_FILE: &str = "net/src/outbox.rs";

const IO: [&str; 13] = [
    "std::net",
    "std::fs",
    "std::process",
    "std::os",
    "Instant::now",
    "SystemTime",
    "thread",
    "dogwild_net",
    "rand::rng",
    "rand::random",
    "from_os_rng",
    "socket2",
    // The half of `poseidon` with sockets and threads, which `super` would reach.
    "runtime",
];

/// Transports of `dogwild-net`: siblings.
const TRANSPORTS: [&str; 5] = ["memory", "udp", "packet_mmap", "af_xdp", "verbs"];

/// The module that a file of the crate `dogwild` is in.
fn module(path: &str) -> Option<&str> {
    let below = path.strip_prefix("src/")?;
    let part = PARTS.into_iter().find(|part| {
        let rest = below.strip_prefix(part);
        rest.is_some_and(|rest| rest.starts_with(['/', '.']))
    });
    part.or_else(|| below.split(['/', '.']).next())
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Names that follow `crate::` in `line`; those in braces too.
fn named(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let before = &line[..at];
        if before.ends_with('$') {
            continue;
        }
        let rest = &line[at + "crate::".len()..];
        let group = rest
            .strip_prefix('{')
            .map_or(rest, |group| group.split('}').next().unwrap_or(group));
        let names = if rest.starts_with('{') {
            group.split(',').collect()
        } else {
            vec![rest]
        };
        found.extend(names.into_iter().map(|name| {
            let name = name.trim();
            let inside = |c: char| c.is_alphanumeric() || c == '_';
            let part = PARTS.into_iter().find(|part| {
                let rest = name.strip_prefix(&part.replace('/', "::"));
                rest.is_some_and(|rest| !rest.starts_with(inside))
            });
            let end = name.find(|c: char| !inside(c));
            part.unwrap_or(&name[..end.unwrap_or(name.len())])
        }));
    }
    found
}

/// True if a file of `from` may name `to`.
fn may_name(from: &str, to: &str) -> bool {
    let (Some(own), Some(other)) = (layer(from), layer(to)) else {
        // The program may name everything; no module below names the program.
        return layer(from).is_none() || to != "cli";
    };
    from == to || other < own || own == 2 && other == 2 || SAME_LAYER.contains(&(from, to))
}

#[test]
fn modules_name_only_lower_modules() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        let Some(from) = module(&file.path) else {
            continue;
        };
        for (i, line) in file.product_lines() {
            for to in named(line).into_iter().filter(|to| !may_name(from, to)) {
                complaints.push(format!(
                    "{}:{i}: module `{from}` names module `{to}`: arrows point down only \
                     (docs/architecture.md); pass what is needed as an argument",
                    file.path
                ));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn state_machines_do_no_io() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        if !NO_IO.iter().any(|start| file.path.starts_with(start)) {
            continue;
        }
        for (i, line) in file.product_lines() {
            let line = line.replace(PLAIN_NET, "");
            for word in IO.iter().filter(|word| has_word(&line, word)) {
                complaints.push(format!(
                    "{}:{i}: `{word}` in a state machine: time, randomness and frames come as \
                     arguments, so that the simulator runs the same code",
                    file.path
                ));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn the_network_knows_no_weights() {
    let mut complaints = Vec::new();
    for file in files("rs")
        .iter()
        .filter(|file| file.path.starts_with("net/"))
    {
        for (i, line) in file.code.lines().enumerate() {
            if has_word(line, "dogwild") {
                complaints.push(format!(
                    "{}:{}: names the crate `dogwild`: net moves frames and knows no weights",
                    file.path,
                    i + 1
                ));
            }
        }
    }
    let manifest = file("net/Cargo.toml").expect("net/Cargo.toml");
    if let Some(i) = manifest
        .text
        .lines()
        .position(|line| depends_on(line, "dogwild"))
    {
        complaints.push(format!(
            "net/Cargo.toml:{}: depends on `dogwild`: turn it round",
            i + 1
        ));
    }
    no_complaints(complaints);
}

/// True if this line of a Cargo.toml makes the crate depend on `name`.
fn depends_on(line: &str, name: &str) -> bool {
    line.trim_start()
        .strip_prefix(name)
        .is_some_and(|rest| rest.trim_start().starts_with(['.', '=']))
}

#[test]
fn transports_are_siblings() {
    let mut complaints = Vec::new();
    let transport = |file: &Source| -> Option<&str> {
        let below = file.path.strip_prefix("net/src/")?;
        let first = below.split(['/', '.']).next()?.to_owned();
        TRANSPORTS.into_iter().find(|&name| name == first)
    };
    for file in files("rs") {
        let Some(own) = transport(&file) else {
            continue;
        };
        for (i, line) in file.product_lines() {
            let others = TRANSPORTS.into_iter().filter(|&other| other != own);
            for other in others.filter(|other| named(line).contains(other)) {
                complaints.push(format!(
                    "{}:{i}: transport `{own}` names transport `{other}`: what both need belongs \
                     next to them in net/src",
                    file.path
                ));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn arrows_point_down_only() {
    assert!(may_name("stream", "wire") && !may_name("wire", "stream"));
    assert!(!may_name("stream", "solver") && may_name("node", "solver"));
    assert!(!may_name("poseidon/protocol", "solver") && may_name("poseidon/protocol", "weights"));
    assert!(!may_name("poseidon/protocol", "poseidon") && may_name("poseidon", "node"));
    assert!(may_name("cli", "node") && !may_name("weights", "cli"));
    assert!(may_name("main", "cli") && may_name("stream", "Error"));
    assert_eq!(named("use crate::wire::Frame;"), ["wire"]);
    assert_eq!(
        named("use crate::{wire, stream::Master};"),
        ["wire", "stream"]
    );
    assert_eq!(
        named("use crate::poseidon::protocol::Plan;"),
        ["poseidon/protocol"]
    );
    assert_eq!(named("use crate::poseidon::protocols;"), ["poseidon"]);
    assert_eq!(module("src/wire/frame.rs"), Some("wire"));
    assert_eq!(module("src/poseidon/cost.rs"), Some("poseidon/cost"));
    assert_eq!(
        module("src/poseidon/protocol/plan/tests.rs"),
        Some("poseidon/protocol")
    );
    assert_eq!(module("src/poseidon/runtime/worker.rs"), Some("poseidon"));
    assert!(depends_on("dogwild.workspace = true", "dogwild"));
    assert!(!depends_on("dogwild-lab.workspace = true", "dogwild"));
}
