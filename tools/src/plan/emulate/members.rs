//! Coordinator, servers and workers of an emulated cluster, as processes in the hosts of a lab.
//!
//! Starts processes of this very program, makes the workers' buffers, and takes both away again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use dogwild::cli::args::session;
use dogwild::cli::{coordinator, server, worker};
use dogwild::poseidon::{Member, MemberRole, Policy, Scheme, TrafficReport};
use dogwild::weights::{BufferSpec, Created, Existing, Manifest, SharedWeights};
use dogwild_lab::Lab;
use dogwild_tools::scratch::Scratch;

use crate::Task;

/// The coordinator's address, in the first host.
const COORDINATOR: &str = "10.77.0.1:7700";
/// Time between two looks at the workers' counters.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A cluster that makes no step for so long makes none any more: members notice the dead long
/// before.
const STUCK: Duration = Duration::from_secs(120);

/// A part of an emulated cluster: what `dogwild` does, as a process of this program.
#[derive(Debug, Parser)]
pub(crate) enum Part {
    Coordinator(coordinator::Args),
    Server(server::Args),
    Worker(worker::Args),
}

impl Part {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Coordinator(args) => args.run(),
            Self::Server(args) => args.run(),
            Self::Worker(args) => args.run(),
        }
    }
}

/// A running cluster.
pub(super) struct Members<'l> {
    lab: &'l Lab,
    children: Vec<(String, Child)>,
    workers: Vec<SharedWeights>,
    folder: Scratch,
    reports: Vec<PathBuf>,
}

impl<'l> Members<'l> {
    /// Starts the cluster of `task` for so many iterations.
    pub(super) fn start(
        lab: &'l Lab,
        task: &Task,
        policy: Policy,
        overlap: bool,
        iterations: u64,
    ) -> Result<Self> {
        let folder = Scratch::new("dogwild-plan")?;
        let recording = task.recording();
        let manifest = recording.manifest()?;
        let file = folder.file("recording.json");
        fs::write(&file, recording.to_json())?;
        let job = format!("dogwild-plan-{}", std::process::id());
        let mut members = Self {
            lab,
            children: Vec::new(),
            workers: Vec::new(),
            reports: Vec::new(),
            folder,
        };
        let common = vec!["--compute".into(), format!("replay:{}", file.display())];
        let named = vec!["--session".into(), job.clone()];
        let cluster = task.place.cluster;
        // A server that holds nothing would be refused, but for one.
        let servers = match policy {
            Policy::Force(Scheme::P2p) | Policy::Cheapest => 1,
            _ => cluster.servers(),
        };
        let mut words = [named.clone(), common.clone()].concat();
        words.extend(["--listen".into(), COORDINATOR.into()]);
        for (name, value) in [
            ("--iterations", iterations.to_string()),
            ("--workers", cluster.workers().to_string()),
            ("--servers", servers.to_string()),
            ("--scheme", policy.to_string()),
            ("--pair-bytes", task.place.pair_bytes.to_string()),
        ] {
            words.extend([name.into(), value]);
        }
        members.spawn(0, "coordinator", words)?;
        for index in 0..servers as usize {
            let words = [
                named.clone(),
                common.clone(),
                members.member("server", index),
            ];
            let server = Member {
                role: MemberRole::Server,
                index: index as u16,
            };
            members.spawn(task.place.home(server), "server", words.concat())?;
        }
        let overlap = if overlap { "wfbp" } else { "none" };
        for index in 0..task.place.workers() {
            let buffer = members.buffer(index, &job, &manifest)?;
            let own = ["--buffer", &buffer, "--overlap", overlap].map(str::to_owned);
            let words = [
                own.to_vec(),
                common.clone(),
                members.member("worker", index),
            ];
            members.spawn(index, "worker", words.concat())?;
        }
        Ok(members)
    }

    /// Arguments of member `index` of its kind.
    fn member(&mut self, kind: &str, index: usize) -> Vec<String> {
        let report = self.folder.file(&format!("{kind}{index}.json"));
        let words = [
            "--index",
            &index.to_string(),
            "--coordinator",
            COORDINATOR,
            "--report",
            &report.to_string_lossy(),
        ]
        .map(str::to_owned);
        self.reports.push(report);
        words.into()
    }

    /// Makes the buffer of a worker.
    fn buffer(&mut self, index: usize, job: &str, manifest: &Manifest) -> Result<String> {
        let path = self.folder.file(&format!("worker{index}"));
        let spec = BufferSpec {
            session: session(job),
            manifest: manifest.clone(),
            data: Default::default(),
        };
        let shared = match SharedWeights::create(&path, &spec, Existing::Fresh)? {
            Created::New(new) => new.ready(),
            Created::Resumed(shared) => shared,
        };
        self.workers.push(shared);
        Ok(path.to_string_lossy().into_owned())
    }

    fn spawn(&mut self, host: usize, kind: &str, words: Vec<String>) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command: Command = self.lab.command(host, program);
        command.args(["component", kind]).args(words);
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start a {kind}"))?;
        self.children
            .push((format!("the {kind} of host {host}"), child));
        Ok(())
    }

    /// Waits until every worker has done so many iterations. Gives that moment, and the bytes that
    /// each host's interface has carried.
    pub(super) fn wait_for(&mut self, iterations: u64) -> Result<(Instant, Vec<u64>)> {
        let done = |shared: &SharedWeights| shared.globals().local_iterations.load(Relaxed);
        let (mut before, mut moved) = (u64::MAX, Instant::now());
        loop {
            let all: u64 = self.workers.iter().map(done).sum();
            if all != before {
                (before, moved) = (all, Instant::now());
            }
            if self.workers.iter().all(|shared| done(shared) >= iterations) {
                return Ok((Instant::now(), self.bytes()?));
            }
            for (name, child) in &mut self.children {
                if let Some(status) = child.try_wait()?.filter(|status| !status.success()) {
                    bail!("{name} ended with {status} (its message is above)");
                }
            }
            if moved.elapsed() > STUCK {
                bail!("no worker has done an iteration for {} s", STUCK.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Bytes that each host's interface has sent and received.
    fn bytes(&self) -> Result<Vec<u64>> {
        let hosts = self.lab.hosts().iter();
        hosts
            .map(|host| carried(host.pid(), host.iface()))
            .collect()
    }

    /// Lets all end, and gives the payload bytes about layers that they say they have sent.
    pub(super) fn end(mut self) -> Result<u64> {
        for (name, child) in &mut self.children {
            let status: ExitStatus = child.wait()?;
            if !status.success() {
                bail!("{name} ended with {status} (its message is above)");
            }
        }
        let sent = self.reports.iter().map(|path| sent(path));
        sent.sum()
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // One that has ended stays ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Bytes in and out of an interface, as process `pid` sees it.
fn carried(pid: u32, iface: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/net/dev");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let start = format!("{iface}:");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&start));
    let words = line.with_context(|| format!("{path} lacks {iface}"))?;
    let numbers: Vec<u64> = words
        .split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // Received bytes and seven more columns, then sent bytes.
    match numbers.as_slice() {
        [received, _, _, _, _, _, _, _, sent, ..] => Ok(received + sent),
        _ => bail!("{path} is not what it used to be"),
    }
}

/// Segments that TCP has sent again in all hosts.
pub(super) fn retransmitted(lab: &Lab) -> Result<u64> {
    let of = |host: &dogwild_lab::LabHost| {
        let path = format!("/proc/{}/net/snmp", host.pid());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = lines.next().zip(lines.next()).context("no TCP counters")?;
        let mut columns = names.split(' ').zip(values.split(' '));
        let found = columns.find(|(name, _)| *name == "RetransSegs");
        found
            .and_then(|(_, value)| value.parse::<u64>().ok())
            .context("no count of segments sent again")
    };
    lab.hosts().iter().map(of).sum()
}

/// Payload bytes about layers that a member has sent, by its report.
fn sent(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("no report {}", path.display()))?;
    let report: TrafficReport = serde_json::from_str(&text)?;
    let about_layers = report.layers.iter().filter(|layer| layer.scheme.is_some());
    Ok(about_layers.map(|layer| layer.sent_bytes).sum())
}
