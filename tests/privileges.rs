//! What a streamer may still do once it streams: nothing that needs a capability.

#![cfg(feature = "program")]

mod support;

use std::fs;
use std::process::Stdio;

use dogwild::node::Transport;
use dogwild_lab::{Lab, Spec};
use support::output::succeeds;
use support::process::Process;
use support::program::{DOGWILD, dogwild};
use support::shm::shm_folder;
use support::wait::{wait_for, wait_while};

/// The sets of capabilities of a process, as hexadecimal words.
fn capabilities(pid: u32) -> Vec<(String, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a live process");
    status
        .lines()
        .filter_map(|line| line.strip_prefix("Cap")?.split_once(":\t"))
        .map(|(set, bits)| (set.to_owned(), u64::from_str_radix(bits, 16).expect("bits")))
        .collect()
}

#[test]
fn a_streamer_gives_up_its_capabilities() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(2)).expect("a lab");
    let folder = shm_folder();
    for transport in [Transport::PacketMmap, Transport::Udp] {
        let buffer = folder.path().join(transport.name());
        succeeds(dogwild().args(["init", "--buffer"]).arg(&buffer));
        let mut command = lab.command(0, DOGWILD);
        command
            .args(["stream", "--node", "0", "--iface", "eth0", "--transport"])
            .arg(transport.name())
            .arg("--buffer")
            .arg(&buffer)
            .stdin(Stdio::null());
        let mut streamer = Process::start(&mut command);
        wait_while("a streamer without capabilities", || {
            let ended = streamer.ended();
            assert!(ended.is_none(), "{transport:?}: {ended:?}");
            let held = capabilities(streamer.id());
            assert_eq!(held.len(), 5, "{held:?}");
            let some = held.iter().any(|(_, bits)| *bits != 0);
            some.then(|| format!("{transport:?} still has {held:?}"))
        });
        // And it streams: its hellos leave.
        let sent = || {
            let devices = lab.command(0, "cat").arg("/proc/net/dev").output();
            let text = String::from_utf8(devices.expect("cat").stdout).expect("text");
            let line = text.lines().find(|line| line.contains("eth0:"));
            let word = line.and_then(|line| line.split_ascii_whitespace().nth(10));
            word.expect("a counter").parse::<u64>().expect("a number")
        };
        let before = sent();
        wait_for("frames that it sends", || sent() >= before + 3);
    }
}
