//! What `stream` and `conserve` share: buffers of one tensor, a streamer process per node in the
//! hosts of a lab (or on loopback), and their counters.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dogwild::cli::args::transports;
use dogwild::cli::stream_args::PrecisionArg;
use dogwild::watch::{StreamMeter, drops};
use dogwild::weights::{BufferSpec, Created, Existing, METERS, Manifest, Role, SharedWeights};
use dogwild_lab::{Lab, Spec};
use dogwild_tools::scratch::Scratch;

use crate::machine::InterfaceCounters;

/// Where the nodes of a benchmark are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Nodes are network namespaces joined by veth cables (needs no root where user namespaces are
    /// allowed)
    #[arg(long)]
    pub(crate) lab: bool,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) nodes: u16,
    /// Weights in the buffer
    #[arg(long, value_name = "W", default_value_t = 431_080, value_parser = clap::value_parser!(u64).range(1..=4_000_000_000))]
    pub(crate) weights: u64,
    /// MTU of the link, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(256..=65_535))]
    pub(crate) mtu: u32,
    /// Interfaces (verbs: or RDMA devices) of the nodes in turn, without --lab
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        conflicts_with = "lab"
    )]
    pub(crate) iface: Vec<String>,
    /// How frames travel
    #[arg(long, default_value = "packet_mmap", value_parser = transports())]
    pub(crate) transport: dogwild::node::Transport,
    /// How weights travel
    #[arg(long, default_value = "f32", value_enum)]
    pub(crate) precision: PrecisionArg,
    /// Seal frames with this key (32 bytes or 64 hexadecimal digits, mode 600)
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Running streamers on buffers; everything goes with it.
pub(crate) struct Fleet {
    pub(crate) buffers: Vec<SharedWeights>,
    pub(crate) lab: Option<Lab>,
    pub(crate) args: FleetArgs,
    /// The session of its buffers.
    pub(crate) session: u64,
    streamers: Vec<Child>,
    /// Goes last: streamers have ended then.
    folder: Scratch,
}

/// Counters of one streamer at a moment.
pub(crate) struct Reading {
    pub(crate) at: Instant,
    meters: [u64; METERS],
}

impl Reading {
    /// Increase of `meter` since `earlier`.
    pub(crate) fn since(&self, earlier: &Reading, meter: StreamMeter) -> u64 {
        meter.of(&self.meters) - meter.of(&earlier.meters)
    }

    /// Increase per second, by the clock of the streamer: it publishes the time with its counters,
    /// on a busy machine long before they are read.
    pub(crate) fn per_s(&self, earlier: &Reading, meter: StreamMeter) -> f64 {
        match self.since(earlier, StreamMeter::RunNs) {
            0 => 0.0,
            ns => self.since(earlier, meter) as f64 / ns as f64 * 1e9,
        }
    }

    /// The present value.
    pub(crate) fn now(&self, meter: StreamMeter) -> u64 {
        meter.of(&self.meters)
    }

    /// Drops by reason, those that happened.
    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        drops(&self.meters)
            .filter(|(_, n)| *n > 0)
            .map(|(reason, n)| (reason.name(), n))
            .collect()
    }
}

impl FleetArgs {
    /// A lab of `hosts` hosts, or none if the nodes are on loopback.
    pub(crate) fn make_lab(&self) -> Result<Option<Lab>> {
        if !self.lab {
            if self.transport.is_raw() && self.iface.len() < usize::from(self.nodes) {
                bail!(
                    "raw Ethernet between processes of one host needs a cable: add --lab, or name one end of it for each node (--iface A,B), or take --transport udp"
                );
            }
            return Ok(None);
        }
        let spec = Spec {
            mtu: self.mtu,
            ..Spec::of(usize::from(self.nodes))
        };
        Ok(Some(Lab::up(&spec)?))
    }

    /// The interface that `node` uses.
    pub(crate) fn iface(&self, node: u16) -> Option<String> {
        if self.lab {
            return Some("eth0".to_owned());
        }
        self.iface.iter().cycle().nth(usize::from(node)).cloned()
    }

    /// A command of this very program for `node`.
    pub(crate) fn command(&self, lab: Option<&Lab>, node: u16) -> Result<Command> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(match lab {
            Some(lab) => lab.command(usize::from(node), program),
            None => {
                let mut command = Command::new(program);
                dogwild_lab::process::die_with_parent(&mut command);
                command
            }
        })
    }
}

impl Fleet {
    /// Makes buffers and starts a streamer on each with `stream_args`; returns when all are ready.
    pub(crate) fn start(
        args: &FleetArgs,
        lab: Option<Lab>,
        stream_args: &[String],
    ) -> Result<Self> {
        let session = u64::from(std::process::id()) << 32 | u64::from(args.mtu);
        let mut fleet = Self {
            buffers: Vec::new(),
            lab,
            args: args.clone(),
            session,
            streamers: Vec::new(),
            folder: Scratch::new("dogwild-rawbench")?,
        };
        for node in 0..args.nodes {
            fleet.make_buffer(node)?;
        }
        for node in 0..args.nodes {
            let child = fleet.streamer(node, stream_args)?;
            fleet.streamers.push(child);
        }
        fleet.wait_ready()?;
        Ok(fleet)
    }

    /// Makes the buffer of the next node.
    pub(crate) fn make_buffer(&mut self, node: u16) -> Result<()> {
        let weights = vec![self.args.weights as usize];
        let spec = BufferSpec {
            session: u64::from(std::process::id()) << 32 | u64::from(self.args.mtu),
            manifest: Manifest::new(vec![("weights".to_owned(), weights)])?,
            data: Default::default(),
        };
        let shared = match SharedWeights::create(&self.path(node), &spec, Existing::Fresh)? {
            Created::New(new) => new.ready(),
            Created::Resumed(shared) => shared,
        };
        self.buffers.push(shared);
        Ok(())
    }

    /// Starts the streamer of one node more, whose buffer is there. It is the last one until it
    /// leaves.
    pub(crate) fn join(&mut self, node: u16, stream_args: &[String]) -> Result<()> {
        let child = self.streamer(node, stream_args)?;
        self.streamers.push(child);
        Ok(())
    }

    /// Whether the node that joined last is ready.
    pub(crate) fn joined(&self) -> bool {
        let last = self.buffers.last();
        last.is_some_and(|shared| shared.globals().ready.load(Relaxed) != 0)
    }

    /// When the streamer of the node that joined last had opened its files, ns since 1970.
    pub(crate) fn opened_unix_ns(&self) -> u64 {
        let slots = self.buffers.last().map(SharedWeights::slots);
        let mut slots = slots.into_iter().flatten();
        let stream = slots.find(|slot| slot.role == Role::Stream);
        stream.map_or(0, |slot| slot.started_unix_ns)
    }

    /// Ends the node that joined last: it gives its ranges to the others.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if let Some(mut child) = self.streamers.pop() {
            dogwild_lab::process::terminate(child.id());
            let status = child.wait()?;
            if !status.success() {
                bail!("the node that joined ended with {status} (its message is above)");
            }
        }
        let node = self.buffers.len() as u16 - 1;
        self.buffers.pop();
        for suffix in ["", ".stream", ".forks", ".seal"] {
            let _ = std::fs::remove_file(self.folder.file(&format!("n{node}{suffix}")));
        }
        Ok(())
    }

    fn path(&self, node: u16) -> PathBuf {
        self.folder.file(&format!("n{node}"))
    }

    fn streamer(&self, node: u16, stream_args: &[String]) -> Result<Child> {
        let mut command = self.args.command(self.lab.as_ref(), node)?;
        command
            .args(["component", "stream", "--buffer"])
            .arg(self.path(node));
        command.args([
            "--node",
            &node.to_string(),
            "--nodes",
            &self.args.nodes.to_string(),
        ]);
        command.args([
            "--transport",
            self.args.transport.name(),
            "--mtu",
            &self.args.mtu.to_string(),
        ]);
        // What is added is counted, not learnt from.
        if !stream_args.iter().any(|arg| arg == "--merge") {
            command.args(["--merge", "sum"]);
        }
        command.args(["--precision", self.args.precision.dtype()?.name()]);
        if let Some(iface) = self.args.iface(node) {
            command.args(["--iface", &iface]);
        }
        if let Some(key) = &self.args.key_file {
            command.arg("--key-file").arg(key);
        }
        command
            .args(stream_args)
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null());
        command
            .spawn()
            .with_context(|| format!("cannot start the streamer of node {node}"))
    }

    fn wait_ready(&mut self) -> Result<()> {
        let mut said = Instant::now();
        while self
            .buffers
            .iter()
            .any(|shared| shared.globals().ready.load(Relaxed) == 0)
        {
            self.check()?;
            if said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                dogwild_lab::progress!("waiting for all nodes to have seen all ranges");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Fails if a streamer has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        for (node, child) in self.streamers.iter_mut().enumerate() {
            if let Some(status) = child.try_wait()? {
                bail!("the streamer of node {node} ended with {status} (its message is above)");
            }
        }
        Ok(())
    }

    /// Counters of all streamers now.
    pub(crate) fn read(&self) -> Vec<Reading> {
        let at = Instant::now();
        let meters = |shared: &SharedWeights| {
            let slots = shared.slots();
            slots
                .iter()
                .find(|slot| slot.role == Role::Stream)
                .map_or([0; METERS], |slot| slot.meters)
        };
        self.buffers
            .iter()
            .map(|shared| Reading {
                at,
                meters: meters(shared),
            })
            .collect()
    }

    /// Ends all streamers; their counters stay.
    pub(crate) fn stop(&mut self) -> Result<()> {
        for child in &self.streamers {
            dogwild_lab::process::terminate(child.id());
        }
        for (node, child) in self.streamers.iter_mut().enumerate() {
            let status = child.wait()?;
            if !status.success() {
                bail!("the streamer of node {node} ended with {status} (its message is above)");
            }
        }
        Ok(())
    }

    /// True if all buffers are equal, bit for bit.
    pub(crate) fn identical(&self) -> bool {
        let (first, used) = (self.buffers[0].view(), self.buffers[0].used());
        self.buffers[1..].iter().all(|other| {
            let other = other.view();
            (0..used).all(|i| first.load(i).to_bits() == other.load(i).to_bits())
        })
    }

    /// Kills the streamer of `node` (SIGKILL) and starts it again. Returns once the new one has
    /// finished what was interrupted.
    pub(crate) fn kill_and_restart(&mut self, node: u16, stream_args: &[String]) -> Result<()> {
        let at = usize::from(node);
        self.streamers[at].kill()?;
        self.streamers[at].wait()?;
        self.streamers[at] = self.streamer(node, stream_args)?;
        while !self.runs(node) {
            self.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether the streamer of `node` is in its loop: it has beaten since it took its slot.
    fn runs(&self, node: u16) -> bool {
        let pid = self.streamers[usize::from(node)].id();
        let slots = self.buffers[usize::from(node)].slots();
        let own = slots.iter().find(|slot| slot.pid == pid);
        own.is_some_and(|slot| slot.heartbeat_unix_ns > slot.started_unix_ns)
    }
}

/// What the interface of a lab's first host has counted.
pub(crate) fn interface(lab: &Lab) -> Option<InterfaceCounters> {
    InterfaceCounters::read(lab.command(0, "cat"), "eth0")
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in &mut self.streamers {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    /// Counters of a second that are read half a second after they were published.
    #[test]
    fn rates_go_by_the_time_that_is_published_with_the_counters() {
        let at = Instant::now();
        let reading = |after_ms, run_ns, sent| {
            let meters: [AtomicU64; METERS] = std::array::from_fn(|_| AtomicU64::new(0));
            StreamMeter::RunNs.set(&meters, run_ns);
            StreamMeter::FramesSent.set(&meters, sent);
            Reading {
                at: at + Duration::from_millis(after_ms),
                meters: meters.map(AtomicU64::into_inner),
            }
        };
        let before = reading(0, 2_000_000_000, 100);
        let late = reading(1_500, 3_000_000_000, 400);
        assert_eq!(late.per_s(&before, StreamMeter::FramesSent), 300.0);
        let again = reading(1_600, 3_000_000_000, 400);
        assert_eq!(again.per_s(&late, StreamMeter::FramesSent), 0.0);
    }
}
