//! Looks at the host: processor, interfaces, programs of labs, shared memory.
//!
//! Reads /proc and /sys and runs `df`. What cannot be read is reported as unknown.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dogwild_lab::{Lab, LabError};
use dogwild_net::iface;

use super::{Check, State};
use crate::node::{Transport, TransportError};
use crate::weights::kernels::{Isa, Kernels};

/// Below this a buffer of a large model does not fit next to others.
const SHM_BYTES_MIN: u64 = 256 << 20;
/// Capabilities worth a line, with their bits (linux/capability.h).
const CAPABILITIES: [(&str, u32); 4] = [
    ("CAP_NET_RAW", 13),
    ("CAP_NET_ADMIN", 12),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_BPF", 39),
];

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of `field` in a file of `field : value` lines.
fn field<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    Some(line.split_once(':')?.1.trim())
}

/// Whether this process has a capability.
pub(super) fn has_capability(bit: u32) -> bool {
    field(&read("/proc/self/status"), "CapEff")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|held| held >> bit & 1 == 1)
}

pub(super) fn host() -> Vec<Check> {
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let model = field(&cpuinfo, "model name").unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = match Kernels::best().isa() {
        Isa::Portable => "portable loops",
        Isa::Avx2 => "AVX2",
        Isa::Avx512 => "AVX-512",
    };
    let kernels = Check::works("vector kernels", isa);
    let held: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| has_capability(*bit))
        .map(|(name, _)| *name)
        .collect();
    let held = match held[..] {
        [] => "none of those that networks need".to_owned(),
        _ => held.join(", "),
    };
    let limits = ["rmem_max", "wmem_max"].map(|name| {
        let value = read(&format!("/proc/sys/net/core/{name}"));
        format!("net.core.{name} {}", value.trim())
    });
    vec![
        Check::info("kernel", format!("Linux {}", kernel.trim())),
        Check::info("processor", format!("{model}, {cores} usable cores")),
        match Kernels::best().isa() {
            Isa::Portable => kernels.needing("for speed: a processor with AVX2 or AVX-512"),
            _ => kernels,
        },
        Check::info("capabilities", held),
        Check::info("socket buffers", limits.join(", ")),
    ]
}

pub(super) fn interfaces() -> Vec<Check> {
    iface::list()
        .into_iter()
        .map(|one| {
            let yes = |yes: bool, text: &str| yes.then(|| text.to_owned());
            let mut found = vec![format!("MTU {}", one.mtu)];
            found.extend(yes(!one.up, "down"));
            found.extend(yes(one.up && !one.carrier, "no carrier"));
            found.extend(yes(!one.multicast && !one.loopback, "no multicast"));
            found.extend(one.speed_mbit_per_s().map(|speed| format!("{speed} Mb/s")));
            found.extend(one.driver().map(|driver| format!("driver {driver}")));
            found.extend(one.ips.iter().map(ToString::to_string));
            let state = if one.up { State::Works } else { State::Missing };
            let check = Check::new(one.name.clone(), state, found.join(", "));
            match (one.up, one.carrier) {
                (false, _) => check.needing(format!("sudo ip link set {} up", one.name)),
                (true, false) => check.needing("a cable with something at its other end"),
                _ => check,
            }
        })
        .collect()
}

pub(super) fn iface_auto() -> Vec<Check> {
    Transport::ALL
        .into_iter()
        // Those of verbs are ports, not interfaces: their own check names them.
        .filter(|&transport| transport != Transport::Verbs)
        .map(|transport| match iface::choose(transport.need()) {
            Ok(choice) => {
                let mut found = format!("`{}`: {}", choice.iface.name, choice.why);
                for (name, reason) in choice.others {
                    found += &format!("; not `{name}`: {reason}");
                }
                Check::works(transport.name(), found)
            }
            Err(error) => {
                let error = TransportError::from(error);
                Check::new(transport.name(), State::Missing, "none").needing(error.to_string())
            }
        })
        .collect()
}

pub(super) fn labs(lab: Result<&Lab, &LabError>) -> Vec<Check> {
    let mut checks = vec![match lab {
        Ok(_) if dogwild_lab::enter::privileged() => Check::works(
            "hosts",
            "two were made and joined, with this user's privileges",
        ),
        Ok(_) => Check::works("hosts", "two were made and joined, in a user namespace"),
        Err(error) => {
            Check::new("hosts", State::Missing, "could not be made").needing(error.to_string())
        }
    }];
    let namespaces = read("/proc/sys/user/max_user_namespaces");
    checks.push(match namespaces.trim() {
        "" | "0" => Check::new("user namespaces", State::Missing, "not allowed")
            .needing("for labs without root: sudo sysctl user.max_user_namespaces=10000"),
        most => Check::works("user namespaces", format!("{most} at most")),
    });
    for (program, package, what) in [
        ("ip", "iproute2", "cables"),
        ("tc", "iproute2", "rates"),
        ("nft", "nftables", "loss"),
    ] {
        checks.push(match find_program(program) {
            Some(path) => Check::works(program, path.display().to_string()),
            None => Check::new(program, State::Missing, "not installed")
                .needing(format!("for {what}: apt-get install {package}")),
        });
    }
    checks
}

/// A program in PATH or where Debian keeps those of administrators.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

pub(super) fn memory() -> Vec<Check> {
    vec![shm(), locked_memory(), huge_pages()]
}

fn shm() -> Check {
    let name = "/dev/shm";
    if !Path::new(name).is_dir() {
        return Check::new(name, State::Missing, "is not there")
            .needing("a tmpfs for weight buffers: mount -t tmpfs none /dev/shm");
    }
    let output = Command::new("df")
        .args(["-B1", "--output=size,avail", name])
        .env("LC_ALL", "C")
        .output();
    let text = output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let numbers: Vec<u64> = text
        .split_ascii_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [size, free] = numbers[..] else {
        return Check::works(name, "its size cannot be read");
    };
    let found = format!("{} MiB, {} MiB free", size >> 20, free >> 20);
    let check = Check::works(name, found);
    if free < SHM_BYTES_MIN {
        return check.needing(
            "more space for buffers: mount -o remount,size=1G /dev/shm (docker: --shm-size=1g)",
        );
    }
    check
}

/// What rings and registered memory may lock.
fn locked_memory() -> Check {
    let limits = read("/proc/self/limits");
    let line = limits.lines().find(|l| l.starts_with("Max locked memory"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().nth(3));
    Check::info("locked memory", format!("{} bytes", soft.unwrap_or("?")))
}

fn huge_pages() -> Check {
    let meminfo = read("/proc/meminfo");
    let value = |name| field(&meminfo, name).unwrap_or("?");
    // The kernel puts the setting in force in brackets.
    let chosen = |file: &str| {
        let text = read(&format!("/sys/kernel/mm/transparent_hugepage/{file}"));
        let inner = text
            .split('[')
            .nth(1)
            .and_then(|rest| rest.split(']').next());
        inner.unwrap_or("not there").to_owned()
    };
    Check::info(
        "huge pages",
        format!(
            "{} of {} reserved; transparent: {}, in shared memory: {}",
            value("HugePages_Total"),
            value("Hugepagesize"),
            chosen("enabled"),
            chosen("shmem_enabled"),
        ),
    )
}
