//! What `--compare` can be asked for, by name, and what each name stands for.

use clap::ValueEnum;

/// A name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Name {
    /// Everything that there is to compare with
    All,
    /// TCP and UDP
    Iperf3,
    #[value(name = "iperf3-tcp")]
    Iperf3Tcp,
    #[value(name = "iperf3-udp")]
    Iperf3Udp,
    Trafgen,
    /// DPDK: af_packet and af_xdp
    Testpmd,
    #[value(name = "testpmd-af_packet")]
    TestpmdAfPacket,
    #[value(name = "testpmd-af_xdp")]
    TestpmdAfXdp,
    /// Ours without --key-file
    Unsealed,
}

/// One thing that ours is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    Tool(Tool),
    /// The same command without its key, frames of the same payload.
    Unsealed,
}

/// One way of a peer tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Iperf3Tcp,
    Iperf3Udp,
    Trafgen,
    TestpmdAfPacket,
    TestpmdAfXdp,
}

const IPERF3: [Way; 2] = [Way::Tool(Tool::Iperf3Tcp), Way::Tool(Tool::Iperf3Udp)];
const TESTPMD: [Way; 2] = [
    Way::Tool(Tool::TestpmdAfPacket),
    Way::Tool(Tool::TestpmdAfXdp),
];
const ALL: [Way; 6] = [
    IPERF3[0],
    IPERF3[1],
    Way::Tool(Tool::Trafgen),
    TESTPMD[0],
    TESTPMD[1],
    Way::Unsealed,
];

impl Name {
    fn ways(self) -> &'static [Way] {
        match self {
            Self::All => &ALL,
            Self::Iperf3 => &IPERF3,
            Self::Iperf3Tcp => &IPERF3[..1],
            Self::Iperf3Udp => &IPERF3[1..],
            Self::Trafgen => &[Way::Tool(Tool::Trafgen)],
            Self::Testpmd => &TESTPMD,
            Self::TestpmdAfPacket => &TESTPMD[..1],
            Self::TestpmdAfXdp => &TESTPMD[1..],
            Self::Unsealed => &[Way::Unsealed],
        }
    }

    /// All that these names stand for, each once, in the order of [`Way`].
    pub(crate) fn all_ways(names: &[Self]) -> Vec<Way> {
        let mut ways: Vec<Way> = names.iter().flat_map(|name| name.ways()).copied().collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    }
}

impl Tool {
    /// The program and Debian's package that has it.
    pub(super) fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Iperf3Tcp | Self::Iperf3Udp => ("iperf3", "iperf3"),
            Self::Trafgen => ("trafgen", "netsniff-ng"),
            Self::TestpmdAfPacket | Self::TestpmdAfXdp => ("dpdk-testpmd", "dpdk-dev"),
        }
    }
}

impl Way {
    /// As it is called while it is not known better.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tool(Tool::Iperf3Tcp) => "iperf3 TCP",
            Self::Tool(Tool::Iperf3Udp) => "iperf3 UDP",
            Self::Tool(Tool::Trafgen) => "trafgen",
            Self::Tool(Tool::TestpmdAfPacket) => "dpdk-testpmd net_af_packet",
            Self::Tool(Tool::TestpmdAfXdp) => "dpdk-testpmd net_af_xdp",
            Self::Unsealed => "ours, unsealed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_it_stands_for_once_and_in_order() {
        let names = [
            Name::Unsealed,
            Name::TestpmdAfXdp,
            Name::Iperf3,
            Name::Iperf3,
        ];
        let expected = [
            Way::Tool(Tool::Iperf3Tcp),
            Way::Tool(Tool::Iperf3Udp),
            Way::Tool(Tool::TestpmdAfXdp),
            Way::Unsealed,
        ];
        assert_eq!(Name::all_ways(&names), expected);
        let every = Name::value_variants();
        assert_eq!(Name::all_ways(every), Name::All.ways());
        assert!(Name::All.ways().is_sorted());
    }
}
