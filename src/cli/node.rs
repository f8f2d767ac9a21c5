//! `dogwild node`: one node of a job, as any launcher starts it on each host.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::job_file::{Job, JobFile};
use super::train_poseidon::Sync;
use crate::job::{
    Asked, Card, DEFAULT_OUT, Door, Here, Meeting, Old, OutFolder, Seat, Wish, World,
    ask_for_a_seat, forget, has_memory, is_in_use, node_buffer, take_back,
};
use crate::node::{Stop, stop_on_signals};
use crate::poseidon::ClusterKey;

/// Fields that each host may have of its own.
const OF_A_HOST: [&str; 10] = [
    "out",
    "data",
    "weights",
    "iface",
    "key_file",
    "capture",
    "metrics",
    "tensorboard",
    // The number of nodes is said by itself.
    "nodes",
    "workers",
];
/// What a folder of results says of its job.
const NOTE: &str = "node.json";

/// Arguments of `dogwild node`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The job file, the same on all hosts (docs/guide/cluster.md)
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// This node, from 0 [default: what Slurm, MPI, torchrun or Kubernetes say]
    #[arg(long, value_name = "R")]
    rank: Option<u16>,
    /// Number of nodes, the one that tests included [default: as above]
    #[arg(long, value_name = "N")]
    size: Option<u16>,
    /// Host of rank 0, which all nodes call at the start [default: as above; port: from the job].
    /// Without a rank: join the job that runs there
    #[arg(long, value_name = "HOST[:PORT]")]
    join: Option<String>,
    /// Flags of `dogwild train`, over what the file says; behind all others
    #[arg(
        value_name = "FLAGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    flags: Vec<OsString>,
}

/// Which job has made a folder.
#[derive(Serialize, Deserialize)]
struct Note {
    session: String,
    /// Host at which others were found.
    #[serde(default)]
    join: Option<String>,
    /// Where a node has joined, and as which, that was started without a rank.
    #[serde(default)]
    joined: Option<(Door, Seat)>,
    /// How its weights travel, where that was left to the nodes.
    #[serde(default)]
    precision: Option<Wish>,
}

impl Note {
    fn read(dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(dir.join(NOTE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(NOTE);
        fs::write(&path, serde_json::to_string(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        let asked = Asked {
            rank: self.rank,
            size: self.size,
            join: self.join.clone(),
        };
        let environment = |name: &str| std::env::var(name).ok();
        let told = match World::door(&asked, &environment)? {
            Some(door) => Err(door),
            None => Ok(World::find(&asked, &environment)?),
        };
        let mut job = JobFile::read(&self.job)?.job(&self.flags)?;
        let (world, _claim) = match told {
            Ok(world) => (world, None),
            Err(door) => match self.join_at(&job, door, &stop)? {
                Some(joined) => joined,
                None => return Ok(stop.check()?),
            },
        };
        job.set_size(world.size, world.by)?;
        fit(&job)?;
        let transport = &mut job.args.args.transport;
        if transport.transport.is_raw() && transport.iface.is_none() {
            transport.iface = Some("auto".into());
        }
        job.check()?;
        let World {
            rank,
            size,
            by,
            first,
            ..
        } = &world;
        if world.is_joined() {
            log::info!("joining as node {rank} a job that began with {size}; node 0 is at {first}");
        } else {
            log::info!("node {rank} of {size}, says {by}; node 0 is at {first}");
        }
        self.meet(job, world, &stop)
    }

    /// The number of a node that joins the job at `door`: the one that it had there, as its folder
    /// of results says, with the claim to it, or a free one. `None`: a signal came.
    fn join_at(&self, job: &Job, door: Door, stop: &Stop) -> Result<Option<(World, Option<File>)>> {
        if job.args.args.sync == Sync::Poseidon {
            let why = "no node joins a job on the reliable path: its number of workers is fixed, so give --rank R \
                       --size N";
            return Err(job.refused(why).into());
        }
        if let Some((seat, claim)) = self.seat_before(job, &door) {
            return Ok(Some((World::joins(door, seat), Some(claim))));
        }
        let fields = job.values(&OF_A_HOST);
        let key = cluster_key(job)?;
        let seat = ask_for_a_seat(&door, &fields, key.as_ref(), stop)?;
        Ok(seat.map(|seat| (World::joins(door, seat), None)))
    }

    /// What this host had in the job at `door`, if that is not complete and no process has it now.
    /// It is this process's as long as the file is open: another may look at the same time.
    fn seat_before(&self, job: &Job, door: &Door) -> Option<(Seat, File)> {
        let folders = fs::read_dir(self.base(job)).ok()?.flatten();
        let mut dirs: Vec<PathBuf> = folders.map(|folder| folder.path()).collect();
        dirs.sort();
        dirs.into_iter().find_map(|dir| {
            let (at, seat) = Note::read(&dir)?.joined?;
            let goes_on = at == *door && !is_complete(&dir) && !is_in_use(&dir);
            let claim = File::open(dir.join(NOTE)).ok().filter(|_| goes_on)?;
            claim.try_lock().ok().map(|()| (seat, claim))
        })
    }

    /// Meets the other nodes, and runs this one.
    fn meet(&self, mut job: Job, world: World, stop: &Stop) -> Result<()> {
        let fields = job.values(&OF_A_HOST);
        let stream = &mut job.args.args.stream;
        // It is chosen once all are here.
        stream.precision = stream.precision.filter(|_| !stream.is_auto());
        let text = serde_json::to_string(&(&world.job, world.port, world.size, &fields))?;
        let (node, session) = (world.rank, xxh3_64(text.as_bytes()));
        let key = cluster_key(&job)?;
        let stream = &job.args.args.stream;
        let places = match job.args.args.sync {
            Sync::Stream => Here::places(&stream.settings()?, world.size),
            Sync::Poseidon => world.size,
        };
        let joined = world.is_joined().then(|| world.seat());
        let least = job.args.args.stream.min_nodes.unwrap_or(world.size);
        let buffer = node_buffer(session, node);
        // A worker goes on from its checkpoints, and waits for all others.
        let dir = self.folder(&job, node);
        // A person who says --overwrite has the last word; in a launcher's script it is for what
        // other jobs have left.
        let anew = job.args.args.overwrite && !world.is_launched();
        let remembers = buffer.exists() || !anew && has_memory(&dir, &buffer);
        let goes_on = job.args.args.sync == Sync::Stream && remembers;
        // Before others are called: a folder that cannot be had is this host's affair.
        let name = format!("{session:016x}");
        let before = Note::read(&dir).filter(|note| note.session == name);
        let again = before.is_some();
        let out = OutFolder::at(&dir, old_results(&job, &dir, goes_on, again))?;
        let (first, port) = (world.first.clone(), world.port);
        let opens = node == 0 && places > world.size;
        let settled = before.as_ref().and_then(|note| note.precision);
        let card = Card {
            least,
            places,
            buffer: buffer.clone(),
            fields,
            precision: job
                .args
                .args
                .open_precision(node, settled.filter(|_| goes_on))?,
            world,
        };
        let meeting = Meeting::open(card, key)?;
        let Some(place) = meeting.wait(goes_on, stop)? else {
            return Ok(stop.check()?);
        };
        if goes_on {
            take_back(&dir, &buffer)?;
            log::info!("going on with {}", buffer.display());
        } else {
            forget(&dir)?;
        }
        // Rank 0 that goes on was called by no other node yet.
        let join = place
            .join
            .or(before.filter(|_| goes_on).and_then(|note| note.join));
        if let Some(wish) = place.precision {
            job.args.args.stream.precision = Some(wish.precision.into());
        }
        let note = Note {
            session: name,
            join: join.clone(),
            joined,
            precision: place.precision,
        };
        note.write(&dir)?;
        if opens {
            let file = self.job.display();
            log::info!("more nodes may join: dogwild node {file} --join {first}:{port}");
        }
        let here = Here {
            node,
            session,
            join,
            meeting,
        };
        job.args.run_node(here, out, stop)
    }

    /// The folder of the results of all nodes here.
    fn base(&self, job: &Job) -> PathBuf {
        let stem = self.job.file_stem().unwrap_or_default();
        let base = job.args.args.out.clone();
        base.unwrap_or_else(|| Path::new(DEFAULT_OUT).join(stem))
    }

    /// The folder of this node's results.
    fn folder(&self, job: &Job, node: u16) -> PathBuf {
        self.base(job).join(format!("n{node}"))
    }
}

/// The key of a job that has one.
fn cluster_key(job: &Job) -> Result<Option<ClusterKey>> {
    let file = job.args.args.transport.key_file.as_deref();
    Ok(file.map(ClusterKey::read).transpose()?)
}

/// How the run ended that has left its results in `dir`; null: it has left none.
fn ended_by(dir: &Path) -> serde_json::Value {
    let text = fs::read_to_string(dir.join("summary.json")).unwrap_or_default();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    summary["ended_by"].clone()
}

/// What becomes of results in `dir`, of this job `again` or of another.
fn old_results(job: &Job, dir: &Path, goes_on: bool, again: bool) -> Old {
    match job.args.args.sync {
        _ if goes_on => Old::Resume,
        _ if job.args.args.overwrite => Old::Replace,
        Sync::Stream if again && !is_complete(dir) => Old::Replace,
        Sync::Poseidon if again && !is_complete(dir) => Old::Resume,
        _ => Old::Refuse,
    }
}

/// Whether `dir` has what a node left when it was told to end, or failed.
fn is_unfinished(dir: &Path) -> bool {
    let ended = ended_by(dir);
    ended == "interrupted" || ended == "failed"
}

/// Whether `dir` has what a node left that came to its end.
fn is_complete(dir: &Path) -> bool {
    !ended_by(dir).is_null() && !is_unfinished(dir)
}

/// Refuses what makes no sense on a node by itself.
fn fit(job: &Job) -> Result<()> {
    let args = &job.args.args;
    let cluster = &args.poseidon.cluster;
    let (servers, nodes) = (cluster.servers(), cluster.workers);
    let wrong = if args.sync == Sync::Poseidon && servers > nodes {
        return Err(job
            .refused(&format!(
                "--servers {servers} on {nodes} nodes: give 0 to {nodes}"
            ))
            .into());
    } else if args.lab.lab {
        "--lab makes hosts on one machine: use `dogwild launch`"
    } else if args.resume {
        "--resume: a node goes on by itself where its buffer is; else start with --weights FILE"
    } else {
        return Ok(());
    };
    Err(job.refused(wrong).into())
}
