//! One TCP flow from host 0 to host 1 of a lab: a process in each, as fast as congestion control
//! lets it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dogwild_lab::Lab;
use socket2::SockRef;

/// Port of the sink; the lab's hosts have nothing else.
const PORT: u16 = 22_339;
/// Bytes of one write.
const WRITE_BYTES: usize = 64 << 10;
/// Parts of the time whose rates are told one by one: congestion control takes a while to settle.
pub(super) const PARTS: usize = 10;
/// Nothing came for so long: the other end is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// Arguments of the hidden component that sends.
#[derive(Debug, clap::Args)]
pub(crate) struct FlowArgs {
    #[arg(long)]
    to: Ipv4Addr,
    #[arg(long)]
    congestion: String,
    #[arg(long)]
    seconds: f64,
}

/// Arguments of the hidden component that receives.
#[derive(Debug, clap::Args)]
pub(crate) struct SinkArgs {
    /// Seconds over which what comes is counted
    #[arg(long)]
    seconds: f64,
}

/// A flow that runs.
pub(super) struct Flow {
    source: Child,
    sink: Child,
}

impl Flow {
    pub(super) fn start(lab: &Lab, congestion: &str, seconds: f64) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let part = |host: usize, name: &str| {
            let mut command = lab.command(host, &program);
            command.args(["component", name, "--seconds", &seconds.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            command
        };
        let start = |command: &mut Command| command.spawn().context("cannot start an end of TCP");
        let mut sink = start(&mut part(1, "tcp-sink"))?;
        // One byte: it listens.
        let out = sink.stdout.as_mut().expect("piped above");
        out.read_exact(&mut [0]).context("the sink of TCP ended")?;
        let to = lab.host(1).ipv4().to_string();
        let mut source = part(0, "tcp-flow");
        source.args(["--to", &to, "--congestion", congestion]);
        let source = start(&mut source)?;
        Ok(Self { source, sink })
    }

    /// Waits for the end: bytes per second that arrived, in each of [`PARTS`] parts of the time.
    pub(super) fn finish(mut self) -> Result<Vec<f64>> {
        let status = self.source.wait()?;
        let output = self.sink.wait_with_output()?;
        if !status.success() || !output.status.success() {
            bail!("an end of the TCP flow failed (its message is above)");
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let rates: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
        rates
            .ok()
            .filter(|rates| rates.len() == PARTS)
            .with_context(|| format!("the sink of TCP said `{text}`"))
    }
}

impl FlowArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let to = SocketAddr::from((self.to, PORT));
        let mut stream = TcpStream::connect(to).with_context(|| format!("no TCP to {to}"))?;
        SockRef::from(&stream)
            .set_tcp_congestion(self.congestion.as_bytes())
            .with_context(|| {
                format!(
                    "no congestion control `{}` (sysctl net.ipv4.tcp_available_congestion_control lists them; \
                     modprobe tcp_{0} may load it)",
                    self.congestion
                )
            })?;
        stream.set_write_timeout(Some(SILENCE))?;
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        let zeros = vec![0; WRITE_BYTES];
        while Instant::now() < end {
            stream.write_all(&zeros).context("TCP stands still")?;
        }
        Ok(())
    }
}

impl SinkArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        let mut out = std::io::stdout();
        out.write_all(b"\n")?;
        out.flush()?;
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(SILENCE))?;
        let (began, mut bytes) = (Instant::now(), [0; PARTS]);
        let part_s = self.seconds / PARTS as f64;
        let mut room = vec![0; WRITE_BYTES];
        while let count @ 1.. = stream.read(&mut room).context("TCP stands still")? {
            let part = (began.elapsed().as_secs_f64() / part_s) as usize;
            if let Some(bytes) = bytes.get_mut(part) {
                *bytes += count;
            }
        }
        let rates = bytes.map(|bytes| (bytes as f64 / part_s).to_string());
        dogwild_lab::say!("{}", rates.join(" "));
        Ok(())
    }
}
