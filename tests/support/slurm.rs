//! Slurm with two nodes on this host.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use dogwild_lab::skip::{is_there, skip};

use super::output::succeeds;
use super::process::Process;
use super::wait::{wait_for, wait_while};

/// Slurm's daemons for two nodes of this host, which end with the test.
pub(crate) struct Slurm {
    folder: tempfile::TempDir,
    _daemons: Vec<Process>,
}

impl Slurm {
    /// Slurm, if it is installed and may be run.
    pub(crate) fn there() -> Option<Self> {
        let needed = [
            ("srun", "slurm-client"),
            ("slurmctld", "slurmctld"),
            ("slurmd", "slurmd"),
            ("munged", "munge"),
        ];
        if !needed
            .iter()
            .all(|(program, package)| is_there(program, package))
        {
            return None;
        }
        if !is_root() {
            skip("Slurm's daemons need root");
            return None;
        }
        Some(Self::new())
    }

    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let key: Vec<u8> = (0..128).collect();
        fs::write(path("key"), key).expect("written");
        succeeds(Command::new("chmod").args(["600", &path("key")]));
        succeeds(Command::new("chmod").args(["755", &path("")]));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let host = host.trim().split('.').next().unwrap_or_default();
        let ports = ports();
        fs::write(path("slurm.conf"), config(&path(""), host, ports)).expect("written");
        let quiet = |command: &mut Command| {
            command
                .env("SLURM_CONF", path("slurm.conf"))
                .stdin(Stdio::null());
            Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let mut munged = Command::new("munged");
        munged.args(["-F", "--force"]);
        let options = ["key-file=key", "socket=socket", "pid-file=munge.pid"];
        for option in options
            .into_iter()
            .chain(["log-file=munge.log", "seed-file=seed"])
        {
            let (name, file) = option.split_once('=').expect("a file");
            munged.arg(format!("--{name}={}", path(file)));
        }
        let mut daemons = vec![quiet(&mut munged)];
        wait_for("munged", || Path::new(&path("socket")).exists());
        daemons.push(quiet(Command::new("slurmctld").args(["-D", "-c"])));
        for node in ["n1", "n2"] {
            daemons.push(quiet(Command::new("slurmd").args(["-D", "-N", node])));
        }
        let slurm = Self {
            folder,
            _daemons: daemons,
        };
        slurm.wait_until_idle();
        slurm
    }

    /// Its processes on the nodes have ended then, too.
    pub(crate) fn wait_until_idle(&self) {
        wait_while("both nodes of Slurm to be idle", || {
            let idle = self
                .command("sinfo")
                .args(["-h", "-t", "idle", "-o", "%D"])
                .output();
            let idle = String::from_utf8_lossy(&idle.expect("it runs").stdout).into_owned();
            (idle.trim() != "2").then(|| format!("{idle} idle; {}", self.complaints()))
        });
    }

    /// What its daemons say went wrong: one that has ended, as its port was taken, is never idle.
    fn complaints(&self) -> String {
        let logs = ["ctld.log", "d.n1.log", "d.n2.log", "munge.log"];
        let logs = logs.map(|log| fs::read_to_string(self.folder.path().join(log)));
        let lines = logs.iter().flatten().flat_map(|log| log.lines());
        let bad = lines.filter(|line| line.contains("error") || line.contains("fatal"));
        bad.collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command.stdin(Stdio::null());
        command
    }
}

/// Ports that are free, and below those that Linux gives to outgoing connections: a port that was
/// only asked for may be one of theirs by the time a daemon binds it.
fn ports() -> [u16; 3] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).expect("below 1000") * 10;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut free = next.filter(is_free);
    std::array::from_fn(|_| free.next().expect("a port"))
}

/// The numbers of jobs, from which nodes make their port, are others in each cluster.
fn config(folder: &str, host: &str, ports: [u16; 3]) -> String {
    let [control, one, two] = ports;
    format!(
        "ClusterName=dogwild\nFirstJobId={control}\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={folder}/socket,cred_expire=5\nCredType=cred/munge\n\
         MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         ReturnToService=2\nSlurmctldPort={control}\nStateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool.%n\nSlurmctldPidFile={folder}/ctld.pid\n\
         SlurmdPidFile={folder}/d.%n.pid\nSlurmctldLogFile={folder}/ctld.log\n\
         SlurmdLogFile={folder}/d.%n.log\nSchedulerType=sched/builtin\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 State=UNKNOWN\n\
         NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 State=UNKNOWN\n\
         PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n"
    )
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.starts_with(b"0"))
}
