//! Hosts that join a job without being told which node they are: each gets a number of its own, and
//! keeps it.

#![cfg(feature = "program")]

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use support::hosts::Hosts;
use support::output::{assert_says, refused, succeeds};
use support::process::Process;
use support::wait::{wait_for, wait_while};

/// Deltas are added as they are.
const SUM: [&str; 4] = ["stream", "--merge", "sum", "--atomic"];

/// A streamer that is not told its number, whose messages go to the log of its host.
fn unnumbered(hosts: &Hosts, host: u16, more: &[&str]) -> Command {
    let command = hosts.unnumbered_command(&[&SUM[..], more].concat(), host);
    hosts.logged(command, &log_of(host))
}

fn log_of(host: u16) -> String {
    format!("host{host}")
}

/// The number that a host said last that it has.
fn number(hosts: &Hosts, host: u16) -> u16 {
    let mut number = None;
    wait_for(&format!("a number for host {host}"), || {
        let log = hosts.log(&log_of(host));
        let at = log.rfind("this host is node ");
        let rest = at.map(|at| &log[at + "this host is node ".len()..]);
        number = rest.and_then(|rest| rest.split(' ').next()?.parse().ok());
        number.is_some()
    });
    number.expect("it was waited for")
}

/// The nodes that the job begins with, once they are ready.
fn first_two(hosts: &Hosts) -> [Process; 2] {
    let first = [0, 1].map(|node| {
        hosts.init(node, 1, 100);
        hosts.stream_with(node, &SUM[1..])
    });
    hosts.wait_until_ready([0, 1]);
    first
}

/// None of them is a number of the beginning, or another's.
fn assert_are_free<const N: usize>(numbers: [u16; N]) {
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|two| two[0] < two[1]), "{numbers:?}");
    assert!(
        (2..16).contains(&sorted[0]) && sorted[N - 1] < 16,
        "{numbers:?}"
    );
}

/// Each of `members` adds 1.0 to every weight, and all come to have all of it.
fn add_and_wait(hosts: &Hosts, members: &[u16], begun: &[f32], added: &mut f32) {
    for host in members {
        hosts.add_one(*host);
        *added += 1.0;
    }
    wait_while("all that was added to be everywhere", || {
        let lacks = |host: &u16| {
            let weights = hosts.weights(*host);
            let off = |(have, begun): (&f32, &f32)| have - begun - *added;
            let mut off = weights.iter().zip(begun).map(off);
            let first = off.find(|off| off.abs() > 0.01)?;
            let more = off.filter(|off| off.abs() > 0.01).count();
            Some(format!(
                "host {host} is off by {first}, and in {more} more of {added}; "
            ))
        };
        let lacking: String = members.iter().filter_map(lacks).collect();
        (!lacking.is_empty()).then_some(lacking)
    });
}

/// Three come at once, are killed and come back, leave and are replaced.
#[test]
fn hosts_that_come_at_once_are_different_nodes() {
    let hosts = Hosts::new("at-once", 2);
    let first = first_two(&hosts);
    let (begun, mut added) = (hosts.weights(0), 0.0);
    let start = |host: u16| Process::start(&mut unnumbered(&hosts, host, &[]));
    (2..5).for_each(|host| hosts.init(host, 7, 100));
    let mut later = [2, 3, 4].map(start);
    let all = [0, 1, 2, 3, 4];
    hosts.wait_until_ready(all);
    let had = [2, 3, 4].map(|host| number(&hosts, host));
    assert_are_free(had);
    add_and_wait(&hosts, &all, &begun, &mut added);

    // Who was killed comes back as what it was, and nothing of it is lost.
    later[1].kill();
    hosts.add_one(3);
    added += 1.0;
    later[1] = start(3);
    wait_for("host 3 as before", || {
        let log = hosts.log(&log_of(3));
        log.contains("this host is node") && log.contains("as before")
    });
    assert_eq!(number(&hosts, 3), had[1]);
    add_and_wait(&hosts, &all, &begun, &mut added);

    // The number of one that left is the last that another gets.
    later[2].signal("TERM");
    assert!(later[2].wait().success());
    hosts.init(5, 9, 100);
    let _fifth = start(5);
    hosts.wait_until_ready([5]);
    assert!(!had.contains(&number(&hosts, 5)));
    add_and_wait(&hosts, &[0, 1, 2, 3, 5], &begun, &mut added);

    // Another component of a host learns from its buffer which node this is. (It trains what the
    // sums have left of the weights.)
    let solver = hosts.unnumbered_command(&["solver", "--data", "digits:1,train=2000"], 3);
    let _solver = Process::start(&mut hosts.logged(solver, "solver"));
    let says = format!("this is node {}", had[1]);
    wait_for("the solver's node", || hosts.log("solver").contains(&says));
    drop((first, later));
}

/// Eight come at once. One is paused for five seconds before it has a number, and one is killed
/// twice in a row.
#[test]
fn eight_that_come_at_once_through_pause_and_kills() {
    let hosts = Hosts::new("eight-at-once", 2);
    let first = first_two(&hosts);
    let (begun, mut added) = (hosts.weights(0), 0.0);
    let start = |host: u16| Process::start(&mut unnumbered(&hosts, host, &[]));
    (2..10).for_each(|host| hosts.init(host, 7, 100));
    let mut later = [2, 3, 4, 5, 6, 7, 8, 9].map(start);
    later[0].signal("STOP");
    for _ in 0..2 {
        later[1].kill();
        later[1] = start(3);
    }
    let awake: Vec<u16> = (0..10).filter(|host| *host != 2).collect();
    hosts.wait_until_ready(awake);
    std::thread::sleep(Duration::from_secs(5));
    later[0].signal("CONT");
    let all = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    hosts.wait_until_ready(all);
    assert_are_free([2, 3, 4, 5, 6, 7, 8, 9].map(|host| number(&hosts, host)));
    add_and_wait(&hosts, &all, &begun, &mut added);
    drop((first, later));
}

/// No multicast, sealed frames, and each of two newcomers knows another address.
#[test]
fn one_address_is_enough_to_get_a_number() {
    dogwild_lab::enter_or_return!();
    let lab = Lab::up(&Spec::of(4)).expect("a lab");
    for host in 0..4 {
        let rules = "table ip apart { chain in { type filter hook input priority 0; \
                     iifname eth0 ip daddr 224.0.0.0/4 drop; }; }";
        succeeds(lab.command(host, "nft").arg(rules));
    }
    let hosts = Hosts::new("numbers-apart", 2);
    let key = hosts.key_file();
    let start = |host: u16, join: &str| {
        hosts.init(host, 1, 100);
        let key = ["--key-file", &key, "--join", join];
        let plain = match host {
            0 | 1 => hosts.stream_command(host, &[&SUM[1..], &key].concat()),
            _ => unnumbered(&hosts, host, &key),
        };
        let mut command = lab.command(host.into(), plain.get_program());
        command.args(plain.get_args());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(&mut hosts.logged(command, &log_of(host)))
    };
    let _first = [0, 1].map(|host| start(host, "10.77.0.1"));
    hosts.wait_until_ready([0, 1]);
    let (begun, mut added) = (hosts.weights(0), 0.0);
    let _later = [start(2, "10.77.0.1"), start(3, "10.77.0.2")];
    let all = [0, 1, 2, 3];
    hosts.wait_until_ready(all);
    assert_are_free([2, 3].map(|host| number(&hosts, host)));
    add_and_wait(&hosts, &all, &begun, &mut added);
}

#[test]
fn a_host_without_a_job_waits_and_says_for_what() {
    let hosts = Hosts::new("no-job", 2);
    hosts.init(2, 1, 100);
    let waits = Process::start(&mut unnumbered(&hosts, 2, &[]));
    wait_for("a word of what is waited for", || {
        let log = hosts.log(&log_of(2));
        log.contains("none answers") && log.contains("--node K") && log.contains("--join HOST")
    });
    waits.signal("TERM");
    assert!(waits.output().status.success());
}

#[test]
fn a_job_of_another_shape_and_one_that_is_full_say_so() {
    let hosts = Hosts::new("full", 2);
    let places = ["--places", "3"];
    let _first = [0, 1].map(|node| {
        hosts.init(node, 1, 100);
        hosts.stream_with(node, &[&SUM[1..], &places].concat())
    });
    hosts.wait_until_ready([0, 1]);
    hosts.init(2, 1, 100);
    hosts.init(3, 1, 100);
    let refused = |host: u16, more: &[&str]| {
        refused(
            hosts
                .unnumbered_command(&[&SUM[..], more].concat(), host)
                .stderr(Stdio::piped()),
        )
    };
    let said = refused(2, &[]);
    assert_says(
        &said,
        &["2 nodes at its beginning and 3 places", "--nodes, --places"],
    );
    let _third = Process::start(&mut unnumbered(&hosts, 2, &places));
    hosts.wait_until_ready([2]);
    let said = refused(3, &places);
    assert_says(
        &said,
        &["all 3 places of the job are taken", "--node K", "--places"],
    );
}
