//! `dogwild-lab`: hosts in network namespaces from the command line.
//!
//! Arguments in, one call each into the library out. Labs that outlive a command are held by a
//! process of their own (`hold`) and found again through `registry`. One thread, because only such
//! a process may enter a user namespace itself.

mod registry;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use dogwild_lab::share::share;
use dogwild_lab::{
    Cable, Lab, LabError, LabHost, Spec, command_in_namespaces_of, note, out, say, sys, version,
};
use registry::{Entry, Process, Registry};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, Stdio};

/// Hosts on this machine: network namespaces joined by virtual cables, with rate and loss as
/// asked for. Needs no root where the kernel lets ordinary users make namespaces. Leaves nothing
/// behind, even after kill -9.
#[derive(Parser)]
#[command(
    name = "dogwild-lab",
    version = version::text(env!("CARGO_PKG_VERSION"), env!("DOGWILD_COMMIT"), &[])
)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a lab, run a command in host 0, remove the lab.
    ///
    /// The command finds DOGWILD_LAB_HOSTS (their number), DOGWILD_LAB_ADDRS (addresses in order)
    /// and DOGWILD_LAB_PIDS (a process in each) in its environment, and gets into the other hosts
    /// by `dogwild-lab exec . HOST -- COMMAND`.
    Run {
        #[command(flatten)]
        wanted: Wanted,
        /// The command and its arguments, after `--`.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Make a lab that stays until `down` (or until its holder is killed).
    Up {
        #[command(flatten)]
        wanted: Wanted,
        /// What to call it.
        #[arg(long, default_value = "lab")]
        name: String,
    },
    /// Run a command in a host of a lab made by `up` (or of the lab around, called `.`).
    Exec {
        /// The lab's name.
        name: String,
        /// The host's number, from 0.
        host: usize,
        /// The command and its arguments, after `--`.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Remove a lab and end everything that runs in it.
    Down {
        /// The lab's name.
        #[arg(default_value = "lab")]
        name: String,
    },
    /// The labs that are up.
    List,
    /// Hold a lab until killed: what `up` starts in the background.
    #[command(hide = true)]
    Hold {
        #[command(flatten)]
        wanted: Wanted,
        #[arg(long, default_value = "lab")]
        name: String,
    },
}

/// What a lab shall look like.
#[derive(Args)]
struct Wanted {
    /// Number of hosts, 1 to 254.
    hosts: usize,
    /// MTU of every interface in bytes.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Rate limit per host and direction in tc's words, for example 1gbit.
    #[arg(long)]
    rate: Option<String>,
    /// Share of the frames every host loses on receive, for example 1% or 0.01.
    #[arg(long, allow_hyphen_values = true, value_parser = share)]
    loss: Option<f64>,
    /// TCP's congestion control between hosts, as cubic or bbr; by default the kernel's.
    #[arg(long)]
    congestion: Option<String>,
    /// How the hosts are joined; auto: one cable for two hosts without a limit, else a bridge.
    #[arg(long, value_enum, default_value_t = CableName::Auto)]
    cable: CableName,
    /// Spread receive work over all cores.
    #[arg(long)]
    steer_receive: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum CableName {
    Auto,
    Direct,
    Bridge,
}

impl Wanted {
    fn spec(&self) -> Spec {
        Spec {
            hosts: self.hosts,
            mtu: self.mtu,
            rate: self.rate.clone(),
            queue_bytes: None,
            loss: self.loss,
            congestion: self.congestion.clone(),
            cable: match self.cable {
                CableName::Auto => Cable::Auto,
                CableName::Direct => Cable::Direct,
                CableName::Bridge => Cable::Bridge,
            },
            steer_receive: self.steer_receive,
        }
    }
}

/// The arguments of this process.
fn cli() -> Cli {
    let command = Cli::command();
    #[cfg(feature = "pages")]
    let command = dogwild_lab::pages::answer(command);
    let matches = command.get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn main() -> ExitCode {
    let result = match cli().action {
        Action::Run { wanted, command } => run(&wanted.spec(), &command),
        Action::Up { wanted, name } => up(&wanted.spec(), &name),
        Action::Exec {
            name,
            host,
            command,
        } => exec(&name, host, &command),
        Action::Down { name } => down(&name),
        Action::List => list(),
        Action::Hold { wanted, name } => hold(&wanted.spec(), &name),
    };
    let code = result.unwrap_or_else(|error| {
        note!("dogwild-lab: {}", out::told(&*error));
        ExitCode::FAILURE
    });
    out::end("dogwild-lab", code)
}

fn run(spec: &Spec, words: &[OsString]) -> Result<ExitCode> {
    let lab = Lab::up(spec)?;
    let list =
        |of: fn(&LabHost) -> String| lab.hosts().iter().map(of).collect::<Vec<_>>().join(" ");
    let mut child = lab
        .command(0, &words[0])
        .args(&words[1..])
        .env("DOGWILD_LAB_HOSTS", lab.hosts().len().to_string())
        .env("DOGWILD_LAB_ADDRS", list(|host| host.ipv4().to_string()))
        .env("DOGWILD_LAB_PIDS", list(|host| host.pid().to_string()))
        .spawn()
        .with_context(|| format!("cannot run {}", words[0].display()))?;
    // The command gets the keyboard's signals too; it decides, and the lab lives until it ends.
    sys::ignore_keyboard_signals();
    let status = child.wait().context("cannot wait for the command")?;
    let code = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
    Ok(ExitCode::from(code as u8))
}

fn up(spec: &Spec, name: &str) -> Result<ExitCode> {
    spec.validate()?;
    let registry = Registry::open()?;
    registry.check_free(name)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    // `hold` takes the very arguments of `up`.
    command.arg("hold").args(std::env::args_os().skip(2));
    // Its standard error would keep a pipe of ours open for as long as the lab lives.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/");
    sys::new_session(&mut command);
    let mut holder = command.spawn().context("cannot start the lab's holder")?;
    let mut said = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut said)
            .context("cannot hear the lab's holder")?;
    }
    match said.trim_end().split_once(' ') {
        Some(("up", _)) => {
            let entry = registry.find(name)?;
            show(&entry);
            say!("try: dogwild-lab exec {name} 0 -- ip address; end: dogwild-lab down {name}");
            // What ends with an error leaves no lab behind. (A reader that went away is not an
            // error: the lab stays, and `dogwild-lab list` shows it.)
            if let Some(error) = out::failure() {
                entry.end()?;
                registry.remove(name)?;
                note!("dogwild-lab: lab {name} is removed again ({error})");
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(("failed", why)) => bail!("{why}"),
        _ => bail!("the lab's holder ended without a word"),
    }
}

/// Never returns while the lab is up: SIGTERM ends this process, and the kernel ends the lab.
fn hold(spec: &Spec, name: &str) -> Result<ExitCode> {
    let made = || -> Result<Lab> {
        let registry = Registry::open()?;
        let lab = Lab::up(spec)?;
        let hosts = lab.hosts().iter().map(|host| Process::of(host.pid()));
        let hosts = hosts.collect::<Result<Vec<_>>>()?;
        let owner = Process::of(std::process::id())?;
        registry.add(&Entry {
            name: name.to_owned(),
            owner,
            hosts,
        })?;
        Ok(lab)
    };
    let mut out = std::io::stdout();
    match made() {
        Ok(_lab) => {
            // `up` may have been killed meanwhile; the lab stays, as it would a moment later.
            let _ = writeln!(out, "up {name}").and_then(|()| out.flush());
            loop {
                std::thread::park();
            }
        }
        Err(error) => {
            let _ = writeln!(out, "failed {}", out::told(&*error).replace('\n', " "));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn exec(name: &str, host: usize, words: &[OsString]) -> Result<ExitCode> {
    let pids: Vec<u32> = if name == "." {
        std::env::var("DOGWILD_LAB_PIDS")
            .ok()
            .and_then(|pids| {
                pids.split_whitespace()
                    .map(|pid| pid.parse().ok())
                    .collect()
            })
            .context("no lab around: `.` works in what `dogwild-lab run` started")?
    } else {
        Registry::open()?
            .find(name)?
            .hosts
            .iter()
            .map(|process| process.pid)
            .collect()
    };
    let last = pids.len().saturating_sub(1);
    let pid = *pids.get(host).ok_or(LabError::NoSuchHost { host, last })?;
    let refused = command_in_namespaces_of(pid, &words[0])?
        .args(&words[1..])
        .exec();
    Err(refused).with_context(|| format!("cannot run {} in host {host}", words[0].display()))
}

fn down(name: &str) -> Result<ExitCode> {
    let registry = Registry::open()?;
    let entry = registry.find(name)?;
    entry.end()?;
    registry.remove(name)?;
    say!("lab {name} is down");
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<ExitCode> {
    let labs = Registry::open()?.list()?;
    if labs.is_empty() {
        say!("no lab is up; make one: dogwild-lab up 2");
    }
    labs.iter().for_each(show);
    Ok(ExitCode::SUCCESS)
}

fn show(lab: &Entry) {
    say!("lab {} (held by process {})", lab.name, lab.owner.pid);
    for (i, host) in lab.hosts.iter().enumerate() {
        say!("  host {i}  10.77.0.{}  eth0  process {}", i + 1, host.pid);
    }
}
