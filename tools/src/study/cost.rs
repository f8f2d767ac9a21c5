//! What an experiment will take of this machine, from a measured step.

use std::time::{Duration, Instant};

use anyhow::Result;
use dogwild::sim::Faults;
use dogwild::sim::training::{Solvers, Training, fleet, weights_of};
use dogwild_tools::scratch::Scratch;

use crate::engine::Files;
use crate::engine::sim;
use crate::experiment::{Engine, Setting};

/// Time of a delivery of a frame in the simulator: measured on the machine of
/// `docs/measurements`.
const DELIVERY_NS: f64 = 1_500.0;
/// To start the processes of a run, and to end them.
const START: Duration = Duration::from_secs(3);
/// Steps and pictures that are measured.
const STEPS: u64 = 6;
const PICTURES: usize = 200;

/// Measured times of a model on its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    step_s: f64,
    picture_s: f64,
}

impl Cost {
    /// Measures a step and a test.
    ///
    /// # Errors
    /// Model or pictures cannot be used.
    pub(crate) fn measure(setting: &Setting, files: &Files) -> Result<Self> {
        let mut alone = setting.clone();
        (alone.engine, alone.command) = (Engine::Sim, Vec::new());
        alone.nodes = crate::experiment::Nodes::default();
        alone.nodes.count = 1;
        alone.link_of = Vec::new();
        alone.stream = Default::default();
        let data = files.data(&alone.model.data)?;
        let solvers: Solvers = sim::solvers(&alone, files, 1)?;
        let config = sim::config(&alone, weights_of(&solvers.spec, &data)?);
        let scratch = Scratch::new("dogwild-study")?;
        let fleet = fleet(&config, &solvers, &data, scratch.path())?;
        // The state files are mapped; a kill from now on leaves nothing.
        drop(scratch);
        let mut training = Training::new(&fleet, solvers, &data, Faults::default())?;
        training.run(2);
        let took = |start: Instant, n: f64| start.elapsed().as_secs_f64() / n;
        let start = Instant::now();
        training.run(2 + STEPS);
        let step_s = took(start, STEPS as f64);
        let start = Instant::now();
        training.test(&data, PICTURES)?;
        let picture_s = took(start, PICTURES as f64);
        Ok(Self { step_s, picture_s })
    }

    /// Of one run: on one core, or of real time.
    pub(crate) fn of(&self, setting: &Setting) -> Duration {
        let (nodes, stop) = (&setting.nodes, &setting.stop);
        let iterations = stop.iterations as f64;
        if setting.engine != Engine::Sim {
            let solvers = f64::from(nodes.count) * f64::from(nodes.solvers);
            let paced = iterations * nodes.step_ms / 1e3 / solvers;
            return Duration::from_secs_f64(paced) + START;
        }
        let tests = (iterations / stop.test_every as f64).ceil();
        let tested = tests * f64::from(setting.model.test_images) * self.picture_s;
        let all = f64::from(nodes.count) * f64::from(nodes.solvers);
        let virtual_s = iterations * nodes.step_ms / 1e3 / all;
        let (rate, count) = (setting.link.rate.0, f64::from(nodes.count));
        let cap = setting.stream.rate_bytes_per_s.into_iter().chain(rate);
        let rate = cap.fold(1e9, f64::min);
        let deliveries = virtual_s * count * (count - 1.0) * rate / 1472.0;
        let network = deliveries * DELIVERY_NS / 1e9;
        Duration::from_secs_f64(iterations * self.step_s + tested + network)
    }
}

/// A time as a person says it.
pub(crate) fn told(time: Duration) -> String {
    match time.as_secs() {
        0..=119 => format!("{:.0} s", time.as_secs_f64()),
        120..=7199 => format!("{:.0} min", time.as_secs_f64() / 60.0),
        _ => format!("{:.1} h", time.as_secs_f64() / 3600.0),
    }
}
