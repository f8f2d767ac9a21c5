//! `dogwild worker`: computes gradients on a buffer and keeps it in step with the cluster.

use std::path::PathBuf;

use anyhow::Result;

use super::cluster_args::{MemberArgs, ModelArgs, OverlapArg, key, model_job};
use super::given::{Flags, Given};
use super::poseidon_flags::Origin;
use crate::job::remove_buffer;
use crate::node::{TEST_IMAGES, stop_on_signals};
use crate::poseidon::{CheckpointFolder, Member, MemberRole, run_worker};
use crate::settings::{Devices, SlowSettings, WorkerSettings};

/// Arguments of `dogwild worker`.
pub type Args = Given<WorkerFlags>;

/// Flags of `dogwild worker`.
#[derive(Debug, clap::Args)]
pub struct WorkerFlags {
    /// The worker's buffer (dogwild init makes it, with the session of the cluster)
    #[arg(long, value_name = "FILE")]
    buffer: PathBuf,
    /// The data is this worker's own; else it takes its share
    #[arg(long)]
    private_data: bool,
    /// Devices that compute, one for each of its threads: numbers of GPUs (0,1), or host, a device
    /// of threads
    #[arg(long, value_name = "N,N...|host")]
    gpu: Option<Devices>,
    /// When layers are sent
    #[arg(long, value_enum, default_value = "wfbp")]
    overlap: OverlapArg,
    /// Makes a worker slow on purpose, as 1:10 (worker 1, ten times): it rests after each pass
    #[arg(long, value_name = "WORKER:FACTOR")]
    slow: Option<SlowSettings>,
    /// Iterations between tests by worker 0; 0: none [default: the solver file's test_interval]
    #[arg(long, value_name = "N")]
    test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all
    #[arg(long, value_name = "N", default_value_t = TEST_IMAGES)]
    test_images: usize,
    /// End when a test reaches this share of right answers
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", value_parser = super::args::share_f32)]
    target_accuracy: Option<f32>,
    /// Append rows of the learning curve to this CSV file
    #[arg(long, value_name = "FILE")]
    curve: Option<PathBuf>,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl Flags for WorkerFlags {
    type Settings = WorkerSettings;

    fn settings(self) -> Result<WorkerSettings> {
        Ok(WorkerSettings {
            buffer: self.buffer,
            private_data: self.private_data,
            devices: self.gpu,
            overlap: self.overlap.overlap(),
            slow: self.slow,
            test_every: self.test_every,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            curve: self.curve,
            launcher: None,
            member: self.member.settings(),
            model: self.model.settings(),
        })
    }
}

impl Given<WorkerFlags> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// Wrong arguments, or why it ended early.
    pub fn run(self) -> Result<()> {
        let (origin, metrics) = (Origin::of(&self), self.metrics());
        let settings = self.settings()?;
        let stop = stop_on_signals()?;
        let (model, data) = model_job(&settings.model)?;
        let key = key(settings.member.key_file.as_deref())?;
        let orphan = Orphan::of(&settings);
        let _serving = metrics.serve(&settings.buffer)?;
        let ended = run_worker(&settings.job(key, model, data), stop.flag());
        orphan.tidy_up();
        ended.map_err(|error| origin.name(error))?;
        Ok(stop.check()?)
    }
}

/// What a worker leaves whose launcher may have died.
struct Orphan {
    launcher: Option<u32>,
    buffer: PathBuf,
    checkpoints: Option<PathBuf>,
    worker: Member,
}

impl Orphan {
    fn of(settings: &WorkerSettings) -> Self {
        Self {
            launcher: settings.launcher,
            buffer: settings.buffer.clone(),
            checkpoints: settings.member.checkpoints.clone(),
            worker: Member {
                role: MemberRole::Worker,
                index: settings.member.index,
            },
        }
    }

    /// Removes the buffer if the launcher has died, which would have, and a checkpoint has what was
    /// learnt. Without one it stays, and `dogwild clean` tells of it.
    fn tidy_up(self) {
        let parent = std::os::unix::process::parent_id();
        let (Some(launcher), Some(folder)) = (self.launcher, self.checkpoints) else {
            return;
        };
        let clocks = CheckpointFolder::new(&folder, self.worker).and_then(|all| all.clocks());
        let saved = clocks.is_ok_and(|clocks| !clocks.is_empty());
        if launcher == parent || !saved {
            return;
        }
        let shown = self.buffer.display();
        match remove_buffer(&self.buffer) {
            Ok(()) => log::info!("the launcher has died; {shown} is removed, checkpoints are kept"),
            Err(why) => log::warn!("the launcher has died, and {shown} stays: {why}"),
        }
    }
}
