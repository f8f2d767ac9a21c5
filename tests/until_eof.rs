//! A streamer that ends with the program that started it, by the end of its standard input.

#![cfg(feature = "program")]

mod support;

use std::process::Stdio;

use dogwild::weights::Role;
use support::hosts::Hosts;
use support::process::Process;
use support::wait::wait_for;

#[test]
fn it_ends_in_order_when_its_standard_input_does() {
    let hosts = Hosts::new("until-eof", 1);
    hosts.init(0, 1, 0);
    // What holds the other end of the pipe dies by a signal: it closes nothing itself.
    let mut holder = std::process::Command::new("sleep");
    let mut holder = Process::start(holder.arg("1000").stdout(Stdio::piped()));
    let mut command = hosts.stream_command(0, &["--until-eof"]);
    command.stdin(holder.take_stdout()).stderr(Stdio::piped());
    let streamer = Process::start(&mut command);
    drop(command);
    let streams = || {
        let slots = hosts.open(0).slots();
        slots
            .iter()
            .any(|one| one.role == Role::Stream && one.alive)
    };
    wait_for("a streamer at work", streams);
    holder.kill();
    let ended = streamer.output();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("standard input has ended"), "{said}");
    assert!(!streams());
}
