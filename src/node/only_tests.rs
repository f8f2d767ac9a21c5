//! The tester component: a node that only tests, so that no solver stops for it.
//!
//! Reads positions and pictures, computes no gradient, changes no weight.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::model::{bound_net, data_kind};
use super::ready::{is_finished, number_here, wait_until_ready};
use super::solver_error::SolverError;
use super::tester::{Tester, Transforms};
use super::testing::{Moment, Schedule, Testing};
use super::train_clock::TrainClock;
use crate::solver::data::{Shard, Source};
use crate::solver::{Phase, SolverSpec};
use crate::watch::SolverMeter;
use crate::watch::curve::CurveWriter;
use crate::weights::{Expect, Role, SharedWeights};

/// Time between two looks at whether a test is due.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a tester is started with.
#[derive(Clone, Debug)]
pub struct TesterJob {
    /// The buffer of its node.
    pub buffer: PathBuf,
    /// The model.
    pub spec: SolverSpec,
    /// Test pictures, and the mean of the training pictures where the model takes it off.
    pub data: Source,
    /// Node index, for the rows of the curve; `None`: that of the buffer's streamer.
    pub node: Option<u16>,
    /// Iterations of the cluster between tests; at least 1.
    pub test_every: u64,
    /// Test pictures; 0: all.
    pub test_images: usize,
    /// End the job when a test reaches this share of right answers.
    pub target_accuracy: Option<f32>,
    /// Where rows of the learning curve go.
    pub curve: Option<PathBuf>,
}

/// Tests until the target that the buffer names is reached or `stop` is set; once more at the end.
pub fn run_tester(job: &TesterJob, stop: &AtomicBool) -> Result<(), SolverError> {
    let set = job.data.load()?;
    let transforms = Transforms::of(&job.spec, &set.train);
    let shape = set.train.shape;
    let (_, manifest) = bound_net(&job.spec.net, Phase::Train, 1, shape, set.train.classes)?;
    let expect = Expect {
        session: None,
        fingerprint: Some(manifest.fingerprint()),
        data: Some(data_kind(&job.data, shape, set.train.classes)),
    };
    let shared = SharedWeights::open(&job.buffer, &expect)?;
    let slot = shared.claim_slot(Role::Other, 0)?;
    let tester = Tester::new(&job.spec, transforms.test, set.test, job.test_images)?;
    let curve = job.curve.as_deref().map(CurveWriter::append).transpose()?;
    if !wait_until_ready(&shared, stop) {
        return Ok(());
    }
    let schedule = Schedule {
        node: job.node.unwrap_or_else(|| number_here(&shared)),
        index: 0,
        every: job.test_every.max(1),
        turn: Shard::WHOLE,
        target_accuracy: job.target_accuracy,
    };
    let mut testing = Testing::new(tester, curve, schedule, &shared);
    let meters = slot.meters();
    let mut trained = TrainClock::go_on(meters[SolverMeter::TrainNs as usize].load(Relaxed));
    let mut moment = || {
        let elapsed_ns = trained.elapsed_ns(shared.globals());
        SolverMeter::TrainNs.set(meters, elapsed_ns);
        Moment {
            elapsed_ns,
            loss: None,
        }
    };
    while !is_finished(&shared, stop) {
        slot.heartbeat();
        if testing.is_due(&shared) {
            testing.test(&shared, meters, moment(), stop)?;
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    if !stop.load(Relaxed) {
        testing.test(&shared, meters, moment(), stop)?;
    }
    Ok(())
}
