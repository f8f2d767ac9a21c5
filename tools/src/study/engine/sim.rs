//! The engine `sim`: a cell in virtual time.
//!
//! The streamers and the solvers are those of the program; network, clock and the times of steps
//! are virtual. Invariant: everything follows from setting and seed.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, bail};
use dogwild::sim::training::{self, Solvers, Training, weights_of};
use dogwild::sim::{Bursts, Faults, Limit, Traffic};
use dogwild::solver::data::DataSet;
use dogwild::stream::{Config, SILENCE_NS, chunk_weights_for};
use dogwild::weights::Writes;
use dogwild::wire;
use dogwild_tools::scratch::Scratch;

use super::Files;
use crate::experiment::{Link, Setting};
use crate::results::{Ended, Figures, Point, Run};

/// Bytes of a frame: UDP on Ethernet.
const MTU: usize = 1472;
/// The same with the headers of UDP, IP and Ethernet, which a link carries too.
const ON_THE_LINK: usize = MTU + 42;

/// What a test tells, with more than is kept of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) point: Point,
    /// Share of right answers of node 0's replica, where it was asked for.
    pub(crate) replica: Option<f64>,
    /// Mean length of steps, in those of the solver file.
    pub(crate) stride: f64,
    /// Median age of a weight at node 0, in steps of a solver.
    pub(crate) age_steps: f64,
    /// Times that solvers halved their steps.
    pub(crate) halvings: u64,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "iteration {:5}  {:7.2} s  loss {:.4}  accuracy {:.2} %  replica {:.2} %  stride {:.2}  age {:.1} steps  halved {}",
            self.point.iterations,
            self.point.seconds,
            self.point.loss.unwrap_or(f64::NAN),
            self.point.accuracy * 100.0,
            self.replica.unwrap_or(f64::NAN) * 100.0,
            self.stride,
            self.age_steps,
            self.halvings,
        )
    }
}

/// Trains with one seed; each test is told as it is made, with that of a `replica` if asked for.
///
/// # Errors
/// Model, pictures or recording cannot be used, or the nodes never see each other.
pub(crate) fn run(
    setting: &Setting,
    files: &Files,
    seed: u64,
    replica: bool,
    tell: &dyn Fn(&Look),
) -> Result<Run> {
    let data = files.data(&setting.model.data)?;
    let solvers = solvers(setting, files, seed)?;
    let config = config(setting, weights_of(&solvers.spec, &data)?);
    let scratch = Scratch::new("dogwild-study")?;
    let fleet = training::fleet(&config, &solvers, &data, scratch.path())?;
    // The state files are mapped; a kill from now on leaves nothing.
    drop(scratch);
    let faults = faults(&setting.link, setting, &config);
    let mut training = Training::new(&fleet, solvers, &data, faults)?;
    for one in &setting.link_of {
        let link = one.over(&setting.link);
        let limit = one.rate.and_then(|rate| queue(rate.0, &link));
        let faults = Faults {
            limit,
            ..faults_of(&link)
        };
        training.world().set_way(one.from, one.to, faults);
    }
    if !training.wait_ready() {
        bail!(
            "the nodes have not seen each other's weights within ten virtual minutes: the links lose or delay too much"
        );
    }
    let course = Course {
        setting,
        data: &data,
        replica,
        tell,
        joining: training.world().traffic(),
        joining_frames: useful_frames(setting, &mut training),
    };
    course.run(&mut training, seed)
}

/// What a run is driven by.
struct Course<'a> {
    setting: &'a Setting,
    data: &'a DataSet,
    /// Whether node 0's replica is tested too.
    replica: bool,
    tell: &'a dyn Fn(&Look),
    /// What went over the network before the training began.
    joining: Traffic,
    joining_frames: u64,
}

impl Course<'_> {
    fn run(&self, training: &mut Training<'_>, seed: u64) -> Result<Run> {
        let stop = &self.setting.stop;
        let (mut points, mut ended) = (Vec::new(), Ended::Done);
        let mut next = stop.test_every;
        while training.iterations() < stop.iterations {
            let Some(loss) = training.run(next.min(stop.iterations)) else {
                ended = Ended::Diverged;
                break;
            };
            next += stop.test_every;
            if training.iterations() >= stop.iterations && !training.finish() {
                log::warn!("what nodes did has not come to all of them within ten virtual minutes");
            }
            let look = self.look(training, loss)?;
            (self.tell)(&look);
            points.push(look.point);
            let reached = stop
                .target
                .is_some_and(|target| look.point.accuracy >= target);
            if reached && stop.at_target {
                ended = Ended::Target;
                break;
            }
        }
        Ok(Run {
            seed,
            ended,
            iterations: training.iterations(),
            points,
            figures: self.figures(training),
        })
    }

    fn look(&self, training: &mut Training<'_>, loss: f32) -> Result<Look> {
        let images = self.setting.model.test_images as usize;
        let found = training.test(self.data, images)?;
        let replica = match self.replica {
            true => Some(training.test_replica(0, self.data, images)?.accuracy()),
            false => None,
        };
        let streamer = training.world().streamer(0);
        let age_us = streamer.map_or(0, |one| one.ages_us().value_at_quantile(0.5));
        let iterations = training.iterations();
        Ok(Look {
            point: Point {
                iterations,
                samples: iterations * training.batch() as u64,
                seconds: training.trained_ns() as f64 / 1e9,
                bytes: Some(self.sent_bytes(training)),
                loss: Some(f64::from(loss)),
                accuracy: found.accuracy(),
            },
            replica,
            stride: training.stride(),
            age_steps: age_us as f64 / 1e3 / self.setting.nodes.step_ms,
            halvings: training.halvings(),
        })
    }

    /// Those of the stream only where there is one.
    fn figures(&self, training: &mut Training<'_>) -> Figures {
        let samples = (training.iterations() * training.batch() as u64) as f64;
        let alone = Figures {
            samples_per_s: Some(samples / (training.stepped_ns() as f64 / 1e9)),
            utilisation: Some(training.utilisation()),
            stride: Some(training.stride()),
            halvings: Some(training.halvings() as f64),
            ..Figures::default()
        };
        let nodes = self.setting.nodes.count;
        if nodes == 1 {
            return alone;
        }
        let seconds = training.trained_ns() as f64 / 1e9 * f64::from(nodes);
        let traffic = training.world().traffic();
        let share = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        Figures {
            age_s_p50: self.age_s(training, 0.5),
            age_s_p90: self.age_s(training, 0.9),
            age_s_p99: self.age_s(training, 0.99),
            age_steps_p50: self.age_steps(training, 0.5),
            age_steps_p99: self.age_steps(training, 0.99),
            sent_bytes_per_s: Some(self.sent_bytes(training) as f64 / seconds),
            goodput_bytes_per_s: Some(self.useful_bytes(training) as f64 / seconds),
            frames_lost: share(traffic.lost as f64, traffic.deliveries as f64),
            mass_late: share(traffic.mass_late, traffic.mass),
            mass_lost: share(traffic.mass_lost, traffic.mass),
            ..alone
        }
    }

    fn sent_bytes(&self, training: &mut Training<'_>) -> u64 {
        training.world().traffic().sent_bytes - self.joining.sent_bytes
    }

    /// Payloads of positions that were taken and of deltas that were added.
    fn useful_bytes(&self, training: &mut Training<'_>) -> u64 {
        let precision = self.setting.stream.precision;
        let frames = useful_frames(self.setting, training) - self.joining_frames;
        let chunk = chunk_weights_for(MTU, self.setting.nodes.count, precision).unwrap_or(16);
        frames * precision.payload_len(chunk as usize) as u64
    }

    /// Of the node for which it is most.
    fn age_s(&self, training: &mut Training<'_>, quantile: f64) -> Option<f64> {
        let world = training.world();
        let age = |node| {
            let ages = world.streamer(node)?.ages_us();
            (!ages.is_empty()).then(|| ages.value_at_quantile(quantile))
        };
        let most = (0..self.setting.nodes.count).filter_map(age).max()?;
        Some(most as f64 / 1e6)
    }

    fn age_steps(&self, training: &mut Training<'_>, quantile: f64) -> Option<f64> {
        let world = training.world();
        let age = |node| {
            let ages = &world.streamer(node)?.age_steps().local;
            (!ages.is_empty()).then(|| ages.value_at_quantile(quantile))
        };
        let most = (0..self.setting.nodes.count).filter_map(age).max()?;
        Some(most as f64)
    }
}

/// Positions that were taken and deltas that were added, at all nodes.
fn useful_frames(setting: &Setting, training: &mut Training<'_>) -> u64 {
    let world = training.world();
    let useful = |node| {
        let counters = world.streamer(node)?.counters();
        Some(counters.positions_taken + counters.deltas_applied)
    };
    (0..setting.nodes.count).filter_map(useful).sum()
}

pub(crate) fn solvers(setting: &Setting, files: &Files, seed: u64) -> Result<Solvers> {
    let nodes = &setting.nodes;
    let (step_ms, recording) = match &nodes.step_recording {
        Some(name) => files.recording(name)?,
        None => (nodes.step_ms, Arc::default()),
    };
    let mut step_ns = vec![step_ms * 1e6; usize::from(nodes.count)];
    for slow in &nodes.slow {
        step_ns[usize::from(slow.node)] *= slow.times;
    }
    let pause = |one: &dogwild::job::Pause| training::Pause {
        node: one.node,
        from_ns: (one.from_s * 1e9) as u64,
        for_ns: (one.for_s * 1e9) as u64,
    };
    Ok(Solvers {
        spec: files.model(&setting.model.solver)?,
        per_node: nodes.solvers,
        step_ns: step_ns.iter().map(|ns| *ns as u64).collect(),
        jitter: nodes.jitter,
        recording,
        cautious: nodes.cautious,
        seed,
        pauses: nodes.pauses.iter().map(pause).collect(),
    })
}

pub(crate) fn config(setting: &Setting, weights: usize) -> Config {
    let (stream, nodes) = (&setting.stream, setting.nodes.count);
    let chunk_weights = chunk_weights_for(MTU, nodes, stream.precision).unwrap_or(16);
    let window = |bytes: f64| (bytes / MTU as f64).ceil() as u32;
    Config {
        session: 1,
        fingerprint: 1,
        data: 0,
        first_weights: 0,
        incarnation: 1,
        node: 0,
        nodes,
        later: 0,
        min_nodes: None,
        masters: stream.masters.unwrap_or(nodes),
        chunk_weights,
        chunks: weights.div_ceil(chunk_weights as usize) as u32,
        deltas: stream.deltas,
        merge: stream.merge,
        precision: stream.precision,
        sparse: stream.sparse,
        writes: Writes::Racy,
        window_frames: stream.window_bytes.map_or(0, window),
        silence_ns: SILENCE_NS,
    }
}

/// What happens on every way, and what each node may send and receive: as a cap that it knows,
/// where that is the lower one, else as a link with a queue.
fn faults(link: &Link, setting: &Setting, config: &Config) -> Faults {
    let cap = setting.stream.rate_bytes_per_s;
    let known = cap.filter(|cap| link.rate.0.is_none_or(|rate| *cap <= rate));
    let limit = match known {
        Some(bytes_per_s) => {
            let payload = config.precision.payload_len(config.chunk_weights as usize);
            let known_frame_bytes = wire::HEADER_LEN + wire::acks_len(config.nodes as u8) + payload;
            Some(Limit {
                bytes_per_s,
                burst_bytes: (bytes_per_s * 0.02) as usize + 8 * known_frame_bytes,
                known_frame_bytes,
            })
        }
        None => queue(link.rate.0, link),
    };
    Faults {
        limit,
        receive: queue(link.rate.0, link),
        ..faults_of(link)
    }
}

/// A link of this rate with the queue in front of it. Nearly all frames are whole ones.
fn queue(rate: Option<f64>, link: &Link) -> Option<Limit> {
    let bytes_per_s = rate? * MTU as f64 / ON_THE_LINK as f64;
    Some(Limit {
        bytes_per_s,
        burst_bytes: ((bytes_per_s * link.queue_ms / 1e3) as usize).max(2 * MTU),
        known_frame_bytes: 0,
    })
}

fn faults_of(link: &Link) -> Faults {
    Faults {
        drop: link.loss,
        bursts: link.loss_burst.map_or(Bursts::None, Bursts::from),
        corrupt: link.corrupt,
        duplicate: link.duplicate,
        reorder: link.reorder,
        reorder_ns: (link.reorder_ms * 1e6) as u64,
        delay_ns: (link.delay_ms * 1e6) as u64,
        ..Faults::default()
    }
}
