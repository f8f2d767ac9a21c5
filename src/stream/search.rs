//! How a host that has no number comes to one, in a job that runs.
//!
//! It asks all nodes which numbers they know ([`Seek`]), claims a free one, and has it once all
//! that answer say so. It never takes a number that the job begins with. Nodes keep the number for
//! it meanwhile ([`seekers`](super::seekers)). A number whose node has left in order is free if no
//! other is: all that it did is with others. That of a node that is silent is not, for it may be
//! back.
//!
//! Time is an argument, and frames are sent by the caller. Invariant: of two hosts that claim one
//! number at nodes that hear both, one gets it.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{Dtype, Frame, Header, Hello, Kind, NO_NODE, NodeSeen, SEEN_MAX, Seek, Stay};

/// Time between two seeks, ns.
const SEEK_NS: u64 = 40_000_000;
/// A number is claimed once answers have come for so long, and had once none has denied the claim
/// for so long, ns: ten seeks, some of which may be lost.
const LISTEN_NS: u64 = 400_000_000;
/// A node that answered once, or is said to live, is waited for so long, ns.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Why a host gets no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNumber {
    /// All numbers are taken.
    #[error(
        "all {places} places of the job are taken; give the number of a node that never comes back (silent are \
         {silent:?}), or begin the job with more places"
    )]
    Full {
        /// Node numbers that there are.
        places: u16,
        /// Numbers of nodes that none of the others hears.
        silent: Vec<u16>,
    },
    /// The numbers of this host and of the job do not fit each other.
    #[error(
        "the job has {nodes} nodes at its beginning and {places} places: give these two numbers here too"
    )]
    OtherJob {
        /// Nodes that it begins with.
        nodes: u16,
        /// Node numbers that there are.
        places: u16,
    },
    /// The number that this host had is another's now.
    #[error(
        "this buffer was that of node {node}, which has left, and another host has that number now: make the buffer \
         anew, and this host gets another"
    )]
    Taken {
        /// The number.
        node: u16,
    },
}

/// A search for a node number. See the head of this file.
#[derive(Clone, Debug)]
pub struct Search {
    session: u64,
    pub(super) incarnation: u64,
    nodes: u16,
    places: u16,
    /// What each node that answers said last, by the number that it is about.
    said: BTreeMap<u16, BTreeMap<u16, NodeSeen>>,
    claimed: Option<u16>,
    /// The number that this host had before.
    had: Option<u16>,
    /// Since when something is heard, or the claim stands, ns.
    since_ns: Option<u64>,
    /// Nodes that keep the number for this host.
    agree: BTreeSet<u16>,
    /// When the next seek is due, ns, and what it asks for first.
    due_ns: u64,
    first: u16,
}

impl Search {
    /// A search in the job `session` that begins with `nodes` and has `places`, of a host whose
    /// memory is `incarnation`. `had`: the number that it had.
    pub fn new(
        session: u64,
        incarnation: u64,
        (nodes, places): (u16, u16),
        had: Option<u16>,
    ) -> Self {
        Self {
            session,
            incarnation,
            nodes,
            places,
            said: BTreeMap::new(),
            claimed: had,
            had,
            since_ns: None,
            agree: BTreeSet::new(),
            due_ns: 0,
            first: 0,
        }
    }

    /// The next seek, if it is time for one: to all nodes.
    pub fn poll(&mut self, now_ns: u64) -> Option<(Header, Seek)> {
        if now_ns < self.due_ns {
            return None;
        }
        self.due_ns = now_ns + SEEK_NS;
        let seek = Seek {
            incarnation: self.incarnation,
            first: self.claimed.unwrap_or(self.first),
            claimed: self.claimed,
        };
        let next = self.first + SEEN_MAX;
        self.first = if next < self.places { next } else { 0 };
        Some((self.header(), seek))
    }

    fn header(&self) -> Header {
        Header {
            kind: Kind::Seek,
            flags: 0,
            dtype: Dtype::None,
            acks: 0,
            seq: 0,
            session: self.session,
            epoch: 0,
            sender: NO_NODE,
            range: NO_NODE,
            chunk: 0,
            chunk_version: 0,
            iterations: 0,
            payload_len: Seek::LEN as u32,
            content: 0,
            part: 0,
            held: 0,
        }
    }

    /// Takes a frame that came; false: it is not of the job.
    ///
    /// # Errors
    /// The job is another one than this host takes it for.
    pub fn hear(&mut self, now_ns: u64, frame: &Frame<'_>) -> Result<bool, NoNumber> {
        let sender = frame.header.sender;
        if frame.header.session != self.session || sender == NO_NODE {
            return Ok(false);
        }
        let hello = (frame.header.kind == Kind::Hello).then(|| Hello::parse(frame.payload));
        let Some(hello) = hello.flatten() else {
            return Ok(true);
        };
        let (nodes, places) = (hello.nodes, hello.places());
        if (nodes, places) != (self.nodes, self.places) {
            return Err(NoNumber::OtherJob { nodes, places });
        }
        self.since_ns.get_or_insert(now_ns);
        let said = self.said.entry(sender).or_default();
        said.extend((hello.first..places).zip(hello.seen.iter().copied()));
        let itself = NodeSeen {
            life: hello.incarnation as u32,
            gone: hello.stay == Stay::Gone,
            ..NodeSeen::default()
        };
        said.insert(sender, itself);
        self.weigh(now_ns, sender)?;
        Ok(true)
    }

    /// What the answer of `sender` means for the claim.
    fn weigh(&mut self, now_ns: u64, sender: u16) -> Result<(), NoNumber> {
        let Some(claimed) = self.claimed else {
            return Ok(());
        };
        let Some(of_it) = self.said[&sender].get(&claimed) else {
            return Ok(());
        };
        let has_it = of_it.life != 0 && !of_it.gone;
        if has_it && of_it.life != self.incarnation as u32 {
            if self.had.is_some() {
                return Err(NoNumber::Taken { node: claimed });
            }
            self.agree.clear();
            self.claimed = None;
            self.since_ns = Some(now_ns);
        } else if has_it || self.had.is_some() {
            self.agree.insert(sender);
        }
        Ok(())
    }

    /// The number that this host has now; `None`: not yet.
    ///
    /// # Errors
    /// There is none for it.
    pub fn number(&mut self, now_ns: u64) -> Result<Option<u16>, NoNumber> {
        let Some(since_ns) = self.since_ns else {
            return Ok(None);
        };
        if now_ns.saturating_sub(since_ns) < LISTEN_NS {
            return Ok(None);
        }
        if let Some(claimed) = self.claimed {
            let agree = |node: &u16| self.agree.contains(node);
            let all = self.said.keys().all(agree) && !self.awaits(agree);
            // Those that do not answer any more may be dead. Who denies the claim ends it at once.
            let waited = now_ns.saturating_sub(since_ns) >= PATIENCE_NS;
            return Ok((all || waited && !self.agree.is_empty()).then_some(claimed));
        }
        if !self.knows_all() {
            return Ok(None);
        }
        self.claimed = Some(self.choose()?);
        self.since_ns = Some(now_ns);
        self.due_ns = now_ns;
        Ok(None)
    }

    /// Whether a node that another hears has yet to `agree`.
    fn awaits(&self, agree: impl Fn(&u16) -> bool) -> bool {
        let mut said = self.said.values().flatten();
        said.any(|(node, seen)| {
            let lives = seen.life != 0 && !seen.silent && !seen.gone;
            lives && self.claimed != Some(*node) && !agree(node)
        })
    }

    /// Whether a node has spoken of each number.
    fn knows_all(&self) -> bool {
        let told = |node: u16| self.said.values().any(|said| said.contains_key(&node));
        (self.nodes..self.places).all(told)
    }

    /// The first number that no node has; else the first whose node has left.
    fn choose(&self) -> Result<u16, NoNumber> {
        let known = |node: u16| {
            let of_it = self.said.values().filter_map(move |said| said.get(&node));
            of_it.filter(|seen| seen.life != 0)
        };
        let later = self.nodes..self.places;
        let unused = later.clone().find(|node| known(*node).next().is_none());
        let left = || {
            let mut later = later.clone();
            later.find(|node| known(*node).all(|seen| seen.gone))
        };
        let silent = |node: &u16| known(*node).next().is_some() && known(*node).all(|s| s.silent);
        unused.or_else(left).ok_or_else(|| NoNumber::Full {
            places: self.places,
            silent: later.clone().filter(silent).collect(),
        })
    }

    /// Nodes that answer.
    pub fn heard(&self) -> usize {
        self.said.len()
    }
}
