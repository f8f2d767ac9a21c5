//! A filter that drops all packets on the way to the coordinator: a member says for whom it waits,
//! joins when the filter is gone, and ends at once when it is asked to, whatever it waits for.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use dogwild_lab::{Lab, Spec};
use tempfile::TempDir;

use crate::support::output::succeeds;
use crate::support::process::Process;
use crate::support::program::DOGWILD;
use crate::support::wait::wait_for_or;

/// Two hosts; what goes from the second to the first can be dropped.
struct Filtered {
    lab: Lab,
    folder: TempDir,
}

impl Filtered {
    fn new() -> Self {
        Self {
            lab: Lab::up(&Spec::of(2)).expect("a lab"),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn drop_all(&self) {
        let rules = "table ip filter { chain out { type filter hook output priority 0; \
                     oifname eth0 drop; }; chain in { type filter hook input priority 0; \
                     iifname eth0 drop; }; }";
        succeeds(self.lab.command(1, "nft").arg(rules));
    }

    fn drop_none(&self) {
        let table = ["delete", "table", "ip", "filter"];
        succeeds(self.lab.command(1, "nft").args(table));
    }

    /// Starts a component on a host; what it says goes to a file of its name.
    fn start(&self, host: usize, name: &str, args: &[&str]) -> Process {
        let mut command: Command = self.lab.command(host, DOGWILD);
        let log = File::create(self.folder.path().join(name)).expect("a file");
        command.arg(name).args(args).stderr(log);
        Process::start(&mut command)
    }

    fn wait_for(&self, name: &str, words: &str) {
        let log = self.folder.path().join(name);
        wait_for_or(words, || text(&log).contains(words), || text(&log));
    }

    fn server(&self) -> Process {
        let args = ["--index", "0", "--coordinator", "10.77.0.1:7700"];
        self.start(1, "server", &args)
    }
}

fn text(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

/// Asks a member to end, and waits until it has. It must not take the silence that it would
/// measure meanwhile for a reason of its own.
fn ends_without_a_word(mut member: Process, filtered: &Filtered) {
    member.signal("INT");
    member.wait();
    let said = text(&filtered.folder.path().join("server"));
    assert!(!said.contains("silent") && !said.contains("dead"), "{said}");
}

#[test]
fn a_member_waits_for_a_coordinator_behind_a_filter() {
    dogwild_lab::enter_or_return!();
    let filtered = Filtered::new();
    filtered.drop_all();
    let server = filtered.server();
    filtered.wait_for("server", "waiting for a coordinator at 10.77.0.1:7700 (");
    let args = ["--workers", "1", "--servers", "1"];
    let coordinator = filtered.start(0, "coordinator", &args);
    filtered.wait_for("coordinator", "waiting for worker 0, server 0");
    filtered.drop_none();
    filtered.wait_for("coordinator", "is here");
    // Now it waits for the others, and hears nothing any more.
    filtered.drop_all();
    ends_without_a_word(server, &filtered);
    drop(coordinator);
}

#[test]
fn a_member_that_connects_ends_when_it_is_asked_to() {
    dogwild_lab::enter_or_return!();
    let filtered = Filtered::new();
    filtered.drop_all();
    let server = filtered.server();
    filtered.wait_for("server", "waiting for a coordinator at");
    ends_without_a_word(server, &filtered);
}
