//! The counters of buffers at one moment: what is recorded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::job::leftovers::{LeftoverState, leftovers};
use crate::watch::{GpuMeter, PeerMeter, SolverMeter, StreamMeter, SyncMeter, drops};
use crate::weights::{Role, SharedWeights, SlotInfo};

/// All buffers that are looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// Each of them.
    pub buffers: Vec<BufferSample>,
}

/// One buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BufferSample {
    /// The file.
    pub path: PathBuf,
    /// Which job.
    pub session: u64,
    /// Weights in it.
    pub weights: u64,
    /// Iterations of the cluster, as far as known here.
    pub iterations: u64,
    /// Iterations of this buffer's solvers.
    pub local_iterations: u64,
    /// Iterations after which solvers end; 0: none.
    pub target_iterations: u64,
    /// Everything that ever worked on it.
    pub components: Vec<ComponentSample>,
    /// What its streamer counts of each other node, by names.
    #[serde(default)]
    pub peers: BTreeMap<u16, BTreeMap<String, u64>>,
}

/// One component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComponentSample {
    /// What it is: `stream`, `solver`, `gpu`, `other`.
    pub role: String,
    /// Which of its kind.
    pub index: u32,
    /// Its process; 0: it has left.
    pub pid: u32,
    /// Whether it runs.
    pub alive: bool,
    /// Its counters, by name; frames dropped as `drop_REASON`.
    pub meters: BTreeMap<String, u64>,
}

impl Sample {
    /// Of these buffers, now. One that was made anew under its name takes the place of the old one.
    pub fn of(buffers: &mut [SharedWeights]) -> Self {
        for shared in buffers.iter_mut().filter(|shared| !shared.is_at_its_path()) {
            // Until there is one, the old one tells how it ended.
            if let Ok(new) = SharedWeights::watch(shared.path()) {
                *shared = new;
            }
        }
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            unix_ms: now.as_millis() as u64,
            buffers: buffers.iter().map(BufferSample::of).collect(),
        }
    }
}

impl BufferSample {
    fn of(shared: &SharedWeights) -> Self {
        let globals = shared.globals();
        Self {
            path: shared.path().to_owned(),
            session: shared.session(),
            weights: shared.used() as u64,
            iterations: globals.iterations(),
            local_iterations: (globals.local_iterations).load(std::sync::atomic::Ordering::Relaxed),
            target_iterations: (globals.target_iterations)
                .load(std::sync::atomic::Ordering::Relaxed),
            components: shared.slots().iter().map(ComponentSample::of).collect(),
            peers: peers_of(shared),
        }
    }

    /// The components of one kind.
    pub(super) fn of_role(&self, role: Role) -> impl Iterator<Item = &ComponentSample> {
        let name = role.to_string();
        self.components.iter().filter(move |one| one.role == name)
    }
}

fn peers_of(shared: &SharedWeights) -> BTreeMap<u16, BTreeMap<String, u64>> {
    let of = |(node, words)| {
        let meters = PeerMeter::ALL.iter();
        let meters = meters.map(|meter| (meter.name().to_owned(), meter.of(&words)));
        (node, meters.collect())
    };
    shared.peers().into_iter().map(of).collect()
}

impl ComponentSample {
    fn of(slot: &SlotInfo) -> Self {
        let words = &slot.meters;
        let named = |name: &str, value: u64| (name.to_owned(), value);
        let meters: BTreeMap<String, u64> = match slot.role {
            Role::Stream => {
                let meters = StreamMeter::ALL.iter();
                let meters = meters.map(|meter| named(meter.name(), meter.of(words)));
                let dropped = drops(words);
                let dropped = dropped.map(|(reason, n)| (format!("{DROP}{}", reason.name()), n));
                meters.chain(dropped).collect()
            }
            Role::Gpu => {
                let meters = GpuMeter::ALL.iter();
                meters
                    .map(|meter| named(meter.name(), meter.of(words)))
                    .collect()
            }
            _ => {
                let meters = SolverMeter::ALL.iter();
                let meters = meters.map(|meter| named(meter.name(), meter.of(words)));
                let sync = SyncMeter::ALL.iter();
                meters
                    .chain(sync.map(|meter| named(meter.name(), meter.of(words))))
                    .collect()
            }
        };
        Self {
            role: slot.role.to_string(),
            index: slot.index,
            pid: slot.pid,
            alive: slot.alive,
            meters,
        }
    }

    /// A counter; 0 if it has none of that name.
    pub(super) fn meter(&self, name: &str) -> u64 {
        self.meters.get(name).copied().unwrap_or(0)
    }
}

/// Start of the names of dropped frames.
pub(super) const DROP: &str = "drop_";

/// The buffers at `paths`; without any, those of this host that a process uses.
///
/// # Errors
/// One cannot be opened; none is named, and none is in use.
pub fn open(paths: &[PathBuf]) -> anyhow::Result<Vec<SharedWeights>> {
    if !paths.is_empty() {
        return Ok(paths
            .iter()
            .map(|path| SharedWeights::watch(path))
            .collect::<Result<_, _>>()?);
    }
    let found = leftovers()?;
    let used = found
        .iter()
        .filter(|found| !found.orphan && matches!(found.state, LeftoverState::InUse(_)));
    // One that ends meanwhile is none.
    let open: Vec<SharedWeights> = used
        .filter_map(|found| SharedWeights::watch(&found.path).ok())
        .collect();
    anyhow::ensure!(
        !open.is_empty(),
        "no job runs on this host; name the buffer of one that has ended (`dogwild clean` lists them)"
    );
    Ok(open)
}
