//! Tries each transport: on loopback, on the interface that `--iface auto` takes, between the hosts
//! of a lab.

use std::path::Path;
use std::process::{Command, Stdio};

use dogwild_lab::Lab;
use dogwild_net::iface;

use super::echo::{self, session};
use super::host::has_capability;
use super::{Check, State, verbs};
use crate::node::{Transport, TransportError, TransportSpec, open_link};

/// Receive buffer that the udp transport asks for.
const UDP_BUFFER_BYTES: u64 = 16 << 20;
/// CAP_NET_RAW, CAP_SYS_ADMIN and CAP_BPF of linux/capability.h.
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

pub(super) fn transports(program: &Path, lab: Option<&Lab>) -> Vec<Check> {
    let mut checks = vec![Check::info(
        "memory",
        "rings inside one process: tests and the simulator",
    )];
    for transport in Transport::ALL {
        checks.push(match transport {
            Transport::Udp => udp(program, lab),
            Transport::Verbs => verbs::check(),
            _ => raw(transport, program, lab),
        });
    }
    checks
}

fn udp(program: &Path, lab: Option<&Lab>) -> Check {
    let spec = TransportSpec::of(Transport::Udp, Some("lo".into()));
    let pair = (open_link(&spec, session()), open_link(&spec, session()));
    let (mut asker, mut answerer) = match pair {
        (Ok(asker), Ok(answerer)) => (asker, answerer),
        (Err(error), _) | (_, Err(error)) => {
            return Check::new("udp", State::Missing, "cannot be opened on lo")
                .needing(error.to_string());
        }
    };
    let granted = asker.rx.stats().buffer_bytes;
    let check = match echo::round_trip(&mut asker, &mut answerer) {
        Ok(said) => Check::works("udp", format!("loopback multicast: {said}")),
        Err(error) => {
            return Check::new("udp", State::Missing, "opens on lo").needing(error.to_string());
        }
    };
    let check = in_lab(check, Transport::Udp, program, lab);
    if granted < UDP_BUFFER_BYTES {
        return check.needing(format!(
            "for less loss at high rates: sudo sysctl net.core.rmem_max={UDP_BUFFER_BYTES}"
        ));
    }
    check
}

/// A transport of raw Ethernet frames: needs an interface and privileges, or a lab.
fn raw(transport: Transport, program: &Path, lab: Option<&Lab>) -> Check {
    let name = transport.name();
    let chosen = iface::choose(transport.need());
    let mut needs = Vec::new();
    let mut check = match &chosen {
        // An XDP program on a real interface may reset its queues: a doctor does no harm.
        Ok(choice) if matches!(transport, Transport::AfXdp | Transport::XdpMmap) => {
            let found = format!("not tried on `{}` (it would change it)", choice.iface.name);
            Check::new(name, State::Limited, found)
        }
        Ok(choice) => {
            let iface = &choice.iface;
            let spec = TransportSpec::of(transport, Some(iface.name.clone()));
            match open_link(&spec, session()) {
                Ok(mut link) => Check::works(
                    name,
                    format!(
                        "opens on `{}` (MTU {}) with rings of {} and {} KiB",
                        iface.name,
                        iface.mtu,
                        link.tx.stats().buffer_bytes >> 10,
                        link.rx.stats().buffer_bytes >> 10,
                    ),
                ),
                Err(error) => {
                    needs.push(error.to_string());
                    let found = format!("cannot be opened on `{}`", iface.name);
                    Check::new(name, State::Missing, found)
                }
            }
        }
        Err(error) => {
            needs.push(TransportError::from(error.clone()).to_string());
            Check::new(name, State::Missing, "no interface for it")
        }
    };
    check = in_lab(check, transport, program, lab);
    check.needs.splice(0..0, needs);
    if check.state == State::Works {
        return check;
    }
    prerequisites(check, chosen.ok().map(|choice| choice.iface).as_ref())
}

/// The round trip between two hosts of a lab; what works only there is limited.
fn in_lab(mut check: Check, transport: Transport, program: &Path, lab: Option<&Lab>) -> Check {
    let Some(lab) = lab else {
        return check;
    };
    match lab_round_trip(transport, program, lab) {
        Ok(said) => {
            check.found += &format!("; between hosts of a lab: {said}");
            if check.state == State::Missing {
                check.state = State::Limited;
                check.needs.push("works in labs only (--lab)".into());
            }
            check
        }
        Err(error) => check.needing(format!("in a lab: {error}")),
    }
}

fn lab_round_trip(transport: Transport, program: &Path, lab: &Lab) -> Result<String, String> {
    let half = |host: usize, half: &str| -> Command {
        let mut command = lab.command(host, program);
        command
            .args(["doctor", "--half", half, "--transport", transport.name()])
            .args(["--iface", "eth0"])
            .env("RUST_LOG", "off")
            .stdin(Stdio::null());
        command
    };
    let mut answerer = half(1, "answer")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let asked = half(0, "ask").output();
    let _ = answerer.kill();
    let _ = answerer.wait();
    let asked = asked.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if asked.status.success() {
        Ok(text(&asked.stdout))
    } else {
        Err(text(&asked.stderr).replace("dogwild: ", ""))
    }
}

/// What a transport needs that can be seen to be missing.
fn prerequisites(mut check: Check, iface: Option<&iface::Interface>) -> Check {
    let mut need = |met: bool, what: String| {
        if !met {
            check.needs.push(what);
        }
    };
    match check.name.as_str() {
        "packet_mmap" => need(
            has_capability(NET_RAW),
            format!(
                "CAP_NET_RAW: `sudo setcap cap_net_raw+ep {}`",
                dogwild_net::own::program()
            ),
        ),
        "af_xdp" => {
            need(
                has_capability(NET_RAW) && (has_capability(BPF) || has_capability(SYS_ADMIN)),
                "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (Linux 5.8; before, CAP_SYS_ADMIN)".into(),
            );
            let driver = iface.and_then(iface::Interface::driver);
            need(
                driver.is_some(),
                "for zero copy: a driver with XDP (i40e, ice, mlx5_core, ...)".into(),
            );
        }
        _ => {}
    }
    check
}
