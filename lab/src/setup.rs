//! Cables, addresses, limits and losses: what `ip`, `tc` and `nft` do inside the namespaces.
//!
//! Everything runs inside a host or the hub; nothing in the caller's own namespace.

use crate::LabError;
use crate::host::{LabHost, hex, ipv4, mac};
use crate::spec::Spec;
use crate::tool::Tool;
use std::time::{Duration, Instant};

/// The programs the set-up needs, looked for before anything is made.
pub(crate) struct Tools {
    pub(crate) ip: Tool,
    tc: Option<Tool>,
    nft: Option<Tool>,
    pub(crate) sh: Option<Tool>,
}

impl Tools {
    /// What `spec` needs.
    pub(crate) fn find(spec: &Spec) -> Result<Tools, LabError> {
        let when =
            |wanted: bool, name, package| wanted.then(|| Tool::find(name, package)).transpose();
        Ok(Tools {
            ip: Tool::find("ip", "iproute2")?,
            tc: when(spec.rate.is_some(), "tc", "iproute2")?,
            nft: when(spec.loss_per_million().is_some(), "nft", "nftables")?,
            sh: when(spec.steer_receive, "sh", "dash")?,
        })
    }
}

/// Lays the cables.
pub(crate) fn join(
    spec: &Spec,
    tools: &Tools,
    hosts: &[LabHost],
    hub: Option<&LabHost>,
) -> Result<(), LabError> {
    let mtu = spec.mtu;
    let end = |host: &LabHost| {
        format!(
            "name eth0 address {} mtu {mtu} netns {}",
            hex(host.mac()),
            host.pid()
        )
    };
    let Some(hub) = hub else {
        let script = format!(
            "link add {} type veth peer {}\n",
            end(&hosts[0]),
            end(&hosts[1])
        );
        tools.ip.feed(
            &hosts[0].name,
            &hosts[0].namespaces,
            &["-batch", "-"],
            &script,
        )?;
        return Ok(());
    };
    // A plain switch: no spanning tree, no snooping (it would hold back groups that no host joined
    // by IGMP, as raw Ethernet groups never are).
    let mut script = format!(
        "link add name br0 mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set dev br0 up\n"
    );
    for host in hosts {
        let port = port(host.index);
        script += &format!(
            "link add name {port} mtu {mtu} type veth peer {}\n\
             link set dev {port} master br0\n\
             link set dev {port} up\n",
            end(host)
        );
    }
    tools
        .ip
        .feed(&hub.name, &hub.namespaces, &["-batch", "-"], &script)?;
    if let (Some(tc), Some(rate)) = (&tools.tc, &spec.rate) {
        for host in hosts {
            limit(tc, hub, &port(host.index), rate, spec.queue_bytes)?;
        }
    }
    Ok(())
}

/// Addresses, routes, neighbours, limits and losses of one host.
pub(crate) fn set_up(spec: &Spec, tools: &Tools, host: &LabHost) -> Result<(), LabError> {
    let (place, inside) = (host.name.as_str(), &host.namespaces);
    let mut script = format!(
        "link set dev lo up\n\
         link set dev eth0 up\n\
         address add {}/24 dev eth0\n\
         route add 224.0.0.0/4 dev eth0\n",
        host.ipv4()
    );
    if let Some(congestion) = &spec.congestion {
        // By route: a namespace may make its default only what the machine allows to everyone.
        script += &format!(
            "route replace 10.77.0.0/24 dev eth0 proto kernel scope link src {} congctl {congestion}\n",
            host.ipv4()
        );
    }
    for other in (0..spec.hosts).filter(|&other| other != host.index) {
        // Known from the start: address resolution would suffer from loss and add frames.
        let (ipv4, mac) = (ipv4(other), hex(mac(other)));
        script += &format!("neighbour add {ipv4} lladdr {mac} dev eth0 nud permanent\n");
    }
    if spec.loss_per_million().is_some() {
        script += "link set dev eth0 gso_max_segs 1\n";
    }
    tools.ip.feed(place, inside, &["-batch", "-"], &script)?;
    if let (Some(tc), Some(rate)) = (&tools.tc, &spec.rate) {
        limit(tc, host, "eth0", rate, spec.queue_bytes)?;
    }
    if let (Some(nft), Some(drops)) = (&tools.nft, spec.loss_per_million()) {
        let rule = format!(
            "table netdev lab {{ chain lose {{ type filter hook ingress device \"eth0\" \
             priority -500; numgen random mod 1000000 < {drops} counter drop; }}; }}\n"
        );
        nft.feed(place, inside, &["-f", "-"], &rule)?;
    }
    Ok(())
}

/// Receive packet steering over all cores. The namespace's default, taken by interfaces made later,
/// is the only switch that root of a user namespace may turn. Linux 6.3 or later has it.
pub(crate) fn steer_receive(sh: &Tool, hosts: &[LabHost]) -> Result<(), LabError> {
    let script = format!(
        "echo {} > /proc/sys/net/core/rps_default_mask\n",
        cpu_mask()
    );
    for host in hosts {
        sh.feed(&host.name, &host.namespaces, &["-s"], &script)?;
    }
    Ok(())
}

fn limit(
    tc: &Tool,
    host: &LabHost,
    iface: &str,
    rate: &str,
    queue_bytes: Option<u32>,
) -> Result<(), LabError> {
    let queue = queue_bytes.unwrap_or(256 << 10);
    let words = format!("qdisc add dev {iface} root tbf rate {rate} burst 128k limit {queue}");
    tc.run(&host.name, &host.namespaces, &words).map(drop)
}

/// Waits until `ip` shows `wanted` for `iface`: the kernel announces a carrier a little after the
/// command that caused it, and frames sent before are lost.
pub(crate) fn wait_for(
    ip: &Tool,
    host: &LabHost,
    iface: &str,
    wanted: &str,
) -> Result<(), LabError> {
    let start = Instant::now();
    loop {
        let words = format!("-details -oneline link show dev {iface}");
        let seen = ip.run(&host.name, &host.namespaces, &words)?;
        if seen.contains(wanted) {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(10) {
            let (place, iface) = (host.name.clone(), iface.to_owned());
            return Err(LabError::Down { place, iface, seen });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The bridge's port towards host `i`.
pub(crate) fn port(i: usize) -> String {
    format!("port{i}")
}

/// All cores, as /sys wants it: groups of 32 bits, the highest first.
fn cpu_mask() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let full = std::iter::repeat_n("ffffffff".to_owned(), cores / 32);
    let rest = (!cores.is_multiple_of(32)).then(|| format!("{:x}", (1u64 << (cores % 32)) - 1));
    rest.into_iter().chain(full).collect::<Vec<_>>().join(",")
}
