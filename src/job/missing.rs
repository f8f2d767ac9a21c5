//! What a job waits for before its first iteration, in words: which component, whose range.
//!
//! Reads counters and nothing else.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::watch::StreamMeter;
use crate::weights::{Role, SharedWeights, SlotInfo};

/// Which path keeps the nodes in step, for what is shown of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Streamers, without waiting.
    Stream,
    /// The reliable path, step by step.
    Poseidon,
}

/// The nodes of a job.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    /// How many there are.
    pub(super) all: u16,
    /// Those that run here, by whose counters the others are known.
    pub(super) here: Range<u16>,
}

#[cfg(test)]
impl Nodes {
    /// So many, all of them here.
    pub(super) fn all(all: u16) -> Self {
        Self { all, here: 0..all }
    }
}

/// What keeps the job of these buffers, one for each node that runs here, from its first iteration.
pub(super) fn missing(buffers: &[SharedWeights], path: Path, of: &Nodes) -> String {
    let nodes: Vec<Node> = buffers
        .iter()
        .map(|shared| Node {
            slots: shared.slots(),
            ready: shared.globals().ready.load(Relaxed) != 0,
        })
        .collect();
    match path {
        Path::Stream => of_nodes(&nodes, of),
        Path::Poseidon => of_workers(&nodes),
    }
}

/// What can be seen of a node.
struct Node {
    slots: Vec<SlotInfo>,
    ready: bool,
}

impl Node {
    fn slot(&self, role: Role) -> Option<&SlotInfo> {
        self.slots.iter().find(|slot| slot.role == role)
    }
}

fn of_nodes(nodes: &[Node], of: &Nodes) -> String {
    let which = |found: &dyn Fn(&Node) -> bool| {
        let nodes = of.here.clone().zip(nodes);
        list(nodes.filter(|(_, node)| found(node)).map(|(k, _)| k))
    };
    if of.all > 1 {
        if let Some(nodes) = which(&|node| node.slot(Role::Stream).is_none()) {
            return format!("the streamer of node {nodes} to open its transport");
        }
        let behind = nodes
            .iter()
            .zip(of.here.clone())
            .find(|(node, _)| !node.ready);
        if let Some((node, k)) = behind {
            let nodes_in = |meter: StreamMeter| {
                let mask = node
                    .slot(Role::Stream)
                    .map_or(0, |slot| meter.of(&slot.meters));
                list((0..of.all.min(64)).filter(|j| mask >> j & 1 == 1))
            };
            let Some(unseen) = nodes_in(StreamMeter::UnseenRanges) else {
                return format!("the streamer of node {k} to begin its own range");
            };
            let waits = format!("node {k} to receive the range of node {unseen}");
            return match nodes_in(StreamMeter::LongFramesLost) {
                None => waits,
                Some(short) => format!("{waits} (MTU? no long frame of node {short} comes)"),
            };
        }
    }
    match which(&|node| node.slot(Role::Solver).is_none()) {
        Some(nodes) => format!("the solver of node {nodes} to read its data"),
        None => "the first test and the first iteration".to_owned(),
    }
}

fn of_workers(workers: &[Node]) -> String {
    let started = |node: &Node| node.slot(Role::Solver).is_some();
    let numbered = (0..).zip(workers);
    match list(numbered.filter(|(_, node)| !started(node)).map(|(k, _)| k)) {
        Some(workers) => format!("worker {workers} to read its data and meet the servers"),
        None => "the first step of all workers (worker*.log, coordinator.log)".to_owned(),
    }
}

/// Numbers as `0, 3 and 5`; none if there are none.
fn list(found: impl Iterator<Item = u16>) -> Option<String> {
    let numbers: Vec<String> = found.map(|k| k.to_string()).collect();
    let (last, before) = numbers.split_last()?;
    Some(match before {
        [] => last.clone(),
        _ => format!("{} and {last}", before.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::METERS;

    fn slot(role: Role, unseen: u64) -> SlotInfo {
        let mut meters = [0; METERS];
        meters[StreamMeter::UnseenRanges as usize] = unseen;
        // Node 2 is behind a switch that carries no long frames.
        meters[StreamMeter::LongFramesLost as usize] = unseen & 0b100;
        SlotInfo {
            role,
            index: 0,
            pid: 1,
            alive: true,
            started_unix_ns: 0,
            heartbeat_unix_ns: 0,
            meters,
        }
    }

    fn node(roles: &[Role], unseen: u64, ready: bool) -> Node {
        let slots = roles.iter().map(|role| slot(*role, unseen));
        Node {
            slots: slots.collect(),
            ready,
        }
    }

    #[test]
    fn the_component_and_the_range_are_named() {
        use Role::{Solver, Stream};
        let both = [Stream, Solver];
        let of = |a, b, c| of_nodes(&[a, b, c], &Nodes::all(3));
        let ready = || node(&both, 0, true);
        let said = of(ready(), node(&[Solver], 0, false), node(&[], 0, false));
        assert_eq!(said, "the streamer of node 1 and 2 to open its transport");
        let said = of(ready(), node(&both, 0b101, false), ready());
        let beyond = "(MTU? no long frame of node 2 comes)";
        let waits = format!("node 1 to receive the range of node 0 and 2 {beyond}");
        assert_eq!(said, waits);
        let said = of(ready(), node(&both, 0b1, false), ready());
        assert_eq!(said, "node 1 to receive the range of node 0");
        let said = of(ready(), ready(), node(&[Stream], 0, true));
        assert_eq!(said, "the solver of node 2 to read its data");
        let said = of(ready(), ready(), ready());
        assert_eq!(said, "the first test and the first iteration");
        // A node alone has no streamer and waits for none.
        let said = of_nodes(&[node(&[], 0, true)], &Nodes::all(1));
        assert_eq!(said, "the solver of node 0 to read its data");
        // The others run elsewhere.
        let second = Nodes { all: 3, here: 1..2 };
        let said = of_nodes(&[node(&both, 0b100, false)], &second);
        assert_eq!(
            said,
            format!("node 1 to receive the range of node 2 {beyond}")
        );
        let said = of_workers(&[node(&[Solver], 0, true), node(&[], 0, true)]);
        assert!(said.starts_with("worker 1 to read its data"), "{said}");
    }
}
