//! Hosts that multicast does not bring together: each is told one address, and finds all others.

#![cfg(feature = "program")]

mod support;

use std::process::Stdio;
use std::time::Duration;

use dogwild_lab::{Lab, Spec};
use support::hosts::Hosts;
use support::output::{assert_says, refused, said, succeeds};
use support::process::Process;
use support::wait::{wait_for, wait_while};

/// Hosts of a lab, each with a buffer; none hears another's multicast.
struct Apart {
    lab: Lab,
    hosts: Hosts,
    begun: Vec<f32>,
    /// How often 1.0 was added to every weight.
    added: u32,
}

impl Apart {
    /// So many nodes, each on a host of its own, but for the last ones, which share one.
    fn new(name: &str, nodes: u16, hosts: u16) -> Self {
        let lab = Lab::up(&Spec::of(hosts.into())).expect("a lab");
        for host in 0..hosts {
            let rules = "table ip apart { chain in { type filter hook input priority 0; \
                         iifname eth0 ip daddr 224.0.0.0/4 drop; }; }";
            succeeds(lab.command(host.into(), "nft").arg(rules));
        }
        let hosts = Hosts::new(name, nodes);
        for node in 0..nodes {
            hosts.init(node, 1, 100);
        }
        let begun = hosts.weights(0);
        Self {
            lab,
            hosts,
            begun,
            added: 0,
        }
    }

    /// A host hears multicast from now on.
    fn let_multicast_in(&self, host: usize) {
        let table = ["delete", "table", "ip", "apart"];
        succeeds(self.lab.command(host, "nft").args(table));
    }

    fn stream(&self, node: u16, more: &[&str]) -> Process {
        let plain = self
            .hosts
            .stream_command(node, &["--merge", "sum", "--atomic"]);
        let host = usize::from(node).min(self.lab.hosts().len() - 1);
        let mut command = self.lab.command(host, plain.get_program());
        command.args(plain.get_args()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(command.stderr(Stdio::piped()))
    }

    fn add(&mut self, nodes: &[u16]) {
        for node in nodes {
            self.hosts.add_one(*node);
            self.added += 1;
        }
    }

    fn wait_for_sum(&self, nodes: &[u16]) {
        self.wait_for_sum_of(nodes, self.added);
    }

    fn wait_for_sum_of(&self, nodes: &[u16], added: u32) {
        let sum = added as f32;
        wait_while("all that was added to be everywhere", || {
            let wrong = nodes.iter().filter_map(|node| {
                let weights = self.hosts.weights(*node);
                let off = |(have, begun): (&f32, &f32)| have - begun - sum;
                let mut off = weights.iter().zip(&self.begun).map(off);
                let first = off.find(|off| off.abs() > 0.01)?;
                Some(format!("node {node} is off by {first}; "))
            });
            let wrong: String = wrong.collect();
            (!wrong.is_empty()).then_some(wrong)
        });
    }

    /// The nodes to which node `node` sends copies.
    fn copies(&self, node: u16) -> u64 {
        self.hosts.meter(node, "copy_nodes")
    }
}

/// All are given the address of host 0, itself included, and it comes last. Then multicast is let
/// in, and is used by those whom it reaches. Two nodes of one host do not hear each other's.
#[test]
fn one_address_is_enough_to_find_all() {
    dogwild_lab::enter_or_return!();
    let mut apart = Apart::new("apart", 4, 3);
    let join = ["--join", "10.77.0.1:7000"];
    let streams = [2, 3, 1, 0].map(|node| {
        let stream = apart.stream(node, &join);
        std::thread::sleep(Duration::from_millis(300));
        (node, stream)
    });
    let all = [0, 1, 2, 3];
    apart.hosts.wait_until_ready(all);
    apart.add(&all);
    apart.wait_for_sum(&all);
    assert_eq!(all.map(|node| apart.copies(node)), [3; 4]);

    apart.let_multicast_in(2);
    wait_for("multicast to reach host 2", || apart.copies(0) == 1);
    apart.add(&all);
    apart.wait_for_sum(&all);
    apart.let_multicast_in(0);
    apart.let_multicast_in(1);
    wait_for("multicast to reach all hosts", || {
        all.map(|node| apart.copies(node)) == [0, 0, 1, 1]
    });
    apart.add(&all);
    apart.wait_for_sum(&all);
    for (node, stream) in streams {
        stream.signal("TERM");
        let said = said(&stream.output());
        assert_says(&said, &["it gets copies, at 10.77.0."]);
        if node == 0 {
            assert_says(
                &said,
                &["udp: 10.77.0.1:7000", "multicast reaches node 2 now"],
            );
        }
    }
}

/// Two subnets and a router between them, sealed frames; the host whose address was given dies, and
/// comes back. Another joins at the address of a host that is not the first.
#[test]
fn hosts_of_two_subnets_go_on_without_the_one_that_brought_them_together() {
    dogwild_lab::enter_or_return!();
    let mut apart = Apart::new("subnets", 3, 3);
    // Host 1 routes between host 0 and a subnet in which host 2 is alone.
    let ip = |host: usize, words: &str| {
        succeeds(apart.lab.command(host, "ip").args(words.split(' ')));
    };
    ip(1, "address add 10.78.0.1/24 dev eth0");
    ip(2, "address flush dev eth0");
    ip(2, "address add 10.78.0.3/24 dev eth0");
    ip(2, "route add default via 10.78.0.1");
    ip(0, "route add 10.78.0.0/24 via 10.77.0.2");
    let forward = ["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
    succeeds(apart.lab.command(1, "sh").args(forward));
    let key = apart.hosts.key_file();
    let at = |host: &'static str| ["--key-file", &key, "--iface", "eth0", "--join", host];

    let mut first = apart.stream(0, &at("10.77.0.1"));
    let _second = apart.stream(1, &at("10.77.0.1"));
    let _third = apart.stream(2, &at("10.77.0.1"));
    apart.hosts.wait_until_ready([0, 1, 2]);
    apart.add(&[0, 1, 2]);
    apart.wait_for_sum(&[0, 1, 2]);
    first.kill();
    apart.add(&[1, 2]);
    apart.wait_for_sum(&[1, 2]);
    let _first = apart.stream(0, &at("10.78.0.3"));
    apart.add(&[0]);
    apart.wait_for_sum(&[0, 1, 2]);
    wait_for("copies for all", || {
        [0, 1, 2].map(|node| apart.copies(node)) == [2; 3]
    });
}

/// Who stands still gets no copies, and what it did and missed comes when it goes on. One that asks
/// at an address at which no node is says so.
#[test]
fn who_stands_still_gets_no_copies_and_is_back_at_once() {
    dogwild_lab::enter_or_return!();
    let mut apart = Apart::new("still", 3, 3);
    let join = ["--join", "10.77.0.1"];
    let streams = [0, 1].map(|node| apart.stream(node, &join));
    let lost = apart.stream(2, &["--join", "10.77.0.2:9"]);
    std::thread::sleep(Duration::from_millis(6500));
    lost.signal("TERM");
    let said = said(&lost.output());
    assert_says(&said, &["no node answers at 10.77.0.2:9", "--join"]);
    let third = apart.stream(2, &join);
    apart.hosts.wait_until_ready([0, 1, 2]);
    apart.add(&[0, 1, 2]);
    apart.wait_for_sum(&[0, 1, 2]);
    third.signal("STOP");
    wait_for("no copies for who is silent", || apart.copies(0) == 1);
    apart.add(&[0, 1, 2]);
    apart.wait_for_sum_of(&[0, 1], apart.added - 1);
    third.signal("CONT");
    apart.wait_for_sum(&[0, 1, 2]);
    drop(streams);
}

#[test]
fn an_address_that_cannot_be_is_refused() {
    let hosts = Hosts::new("no-host", 2);
    hosts.init(0, 1, 100);
    for (host, words) in [
        (
            "no.such.host.invalid",
            ["`no.such.host.invalid`", "HOST:PORT", "(--join)"],
        ),
        (
            "10.0.0.1:port",
            ["`10.0.0.1:port`", "HOST:PORT", "(--join)"],
        ),
        ("[::1]:7000", ["`[::1]:7000`", "IPv4", "(--join)"]),
    ] {
        let mut stream = hosts.stream_command(0, &["--join", host]);
        stream.stderr(Stdio::piped());
        assert_says(&refused(&mut stream), &words);
    }
    let raw = [
        "--join",
        "10.0.0.1",
        "--transport",
        "packet_mmap",
        "--iface",
        "lo",
    ];
    let mut stream = hosts.stream_command(0, &raw);
    stream.stderr(Stdio::piped());
    assert_says(
        &refused(&mut stream),
        &["--join", "udp alone", "packet_mmap"],
    );
}
