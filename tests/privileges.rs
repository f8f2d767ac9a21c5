//! What a streamer may still do once it streams: nothing that needs a capability.

#![cfg(feature = "program")]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dogwild::node::Transport;
use dogwild_lab::{Lab, Spec};

struct Streamer(Child);

impl Drop for Streamer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let program = env!("CARGO_BIN_EXE_dogwild");
    for transport in [Transport::PacketMmap, Transport::Udp] {
        let buffer = folder.path().join(transport.name());
        let made = Command::new(program)
            .args(["init", "--buffer"])
            .arg(&buffer)
            .stdout(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "init");
        let mut command = lab.command(0, program);
        command
            .args(["stream", "--node", "0", "--iface", "eth0", "--transport"])
            .arg(transport.name())
            .arg("--buffer")
            .arg(&buffer)
            .stdin(Stdio::null());
        let mut streamer = Streamer(command.spawn().expect("a streamer"));
        let start = Instant::now();
        loop {
            let ended = streamer.0.try_wait().expect("wait");
            assert!(ended.is_none(), "{transport:?}: {ended:?}");
            let held = capabilities(streamer.0.id());
            assert_eq!(held.len(), 5, "{held:?}");
            if held.iter().all(|(_, bits)| *bits == 0) {
                break;
            }
            // Against a hang only.
            assert!(start.elapsed() < Duration::from_secs(600), "{held:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // And it streams: its hellos leave.
        let sent = || {
            let devices = lab.command(0, "cat").arg("/proc/net/dev").output();
            let text = String::from_utf8(devices.expect("cat").stdout).expect("text");
            let line = text.lines().find(|line| line.contains("eth0:"));
            let word = line.and_then(|line| line.split_ascii_whitespace().nth(10));
            word.expect("a counter").parse::<u64>().expect("a number")
        };
        let before = sent();
        while sent() < before + 3 {
            assert!(start.elapsed() < Duration::from_secs(600), "sends nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
