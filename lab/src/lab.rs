//! A lab: its hosts, the cables between them, and how to get in.
//!
//! Touches processes it started itself and the namespaces they hold. Invariants: no interface is
//! made in the caller's namespace; a lab that could not be finished is gone when `up` returns.

use crate::LabError;
use crate::enter::privileged;
use crate::spec::Spec;
use crate::sys::{self, Namespaces, User};
use crate::tool::Tool;
use std::ffi::OsStr;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One host: a network namespace held by a process.
#[derive(Debug)]
pub struct LabHost {
    index: usize,
    name: String,
    namespaces: Namespaces,
    /// Ends by itself when its standard input (a pipe from here) closes.
    holder: Child,
}

impl LabHost {
    /// Starts the holder of a new network namespace.
    ///
    /// The holder watches a pipe from this process instead of asking for a signal at its parent's
    /// death: that signal comes when the *thread* that started it ends, and a lab may outlive that.
    fn hold(index: usize, name: String, user: User) -> Result<LabHost, LabError> {
        let mut command = Command::new("sh");
        let script = format!("read -r end # dogwild-lab {name} of {}", std::process::id());
        command.args(["-c", &script]).current_dir("/");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Out of reach of the keyboard's signals.
        command.process_group(0);
        sys::unshare_before_exec(&mut command, user.clone(), true);
        let mut holder = command.spawn().map_err(LabError::from_unshare)?;
        let namespaces = open_namespaces(holder.id(), matches!(user, User::Keep));
        match namespaces {
            Ok(namespaces) => Ok(LabHost {
                index,
                name,
                namespaces,
                holder,
            }),
            Err(e) => {
                let _ = holder.kill();
                let _ = holder.wait();
                Err(e)
            }
        }
    }

    /// The host's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `host0`, `host1`, ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// 02:44:57:00:00:(index + 1).
    pub fn mac(&self) -> [u8; 6] {
        mac(self.index)
    }

    /// 10.77.0.(index + 1).
    pub fn ipv4(&self) -> Ipv4Addr {
        ipv4(self.index)
    }

    /// The name of its interface inside: `eth0`.
    pub fn iface(&self) -> &'static str {
        "eth0"
    }

    /// The process that holds the namespace (`nsenter -t PID -U -n --preserve-credentials`).
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for LabHost {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Hosts in network namespaces, joined by cables; gone when dropped.
#[derive(Debug)]
pub struct Lab {
    spec: Spec,
    hosts: Vec<LabHost>,
    /// Where the bridge lives; no host.
    _hub: Option<LabHost>,
}

impl Lab {
    /// Makes the hosts and waits until the links are up.
    ///
    /// # Errors
    /// An impossible spec, a missing program, a kernel that forbids namespaces, or a set-up
    /// command that failed. Nothing is left of the lab then.
    pub fn up(spec: &Spec) -> Result<Lab, LabError> {
        spec.validate()?;
        let tools = Tools::find(spec)?;
        let (hosts, hub) = hold_all(spec)?;
        if let Some(sh) = &tools.sh {
            steer_receive(sh, &hosts)?;
        }
        join(spec, &tools, &hosts, hub.as_ref())?;
        for host in &hosts {
            set_up(spec, &tools, host)?;
        }
        for host in &hosts {
            wait_for(&tools.ip, host, "eth0", "state UP")?;
        }
        if let Some(hub) = &hub {
            wait_for(&tools.ip, hub, "br0", "state UP")?;
            for host in &hosts {
                wait_for(
                    &tools.ip,
                    hub,
                    &port(host.index),
                    "bridge_slave state forwarding",
                )?;
            }
        }
        Ok(Lab {
            spec: spec.clone(),
            hosts,
            _hub: hub,
        })
    }

    /// What was asked for.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The hosts, in order.
    pub fn hosts(&self) -> &[LabHost] {
        &self.hosts
    }

    /// Host `i`.
    ///
    /// # Panics
    /// If there is no such host, as indexing does.
    pub fn host(&self, i: usize) -> &LabHost {
        &self.hosts[i]
    }

    /// A command that will run in host `i`, as root there.
    ///
    /// The process is killed when the thread that spawns it ends: spawn from a thread that lasts.
    /// What it starts itself it must end itself.
    ///
    /// # Panics
    /// If there is no such host, as indexing does.
    pub fn command(&self, i: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::enter_before_exec(&mut command, self.hosts[i].namespaces.clone());
        sys::die_with_parent(&mut command);
        command
    }

    /// Runs `f` on a new thread inside host `i` and returns its result. Sockets opened there stay
    /// in the host, whichever thread uses them later. A panic of `f` goes on in the caller.
    ///
    /// # Errors
    /// No such host; or this process is neither root nor root of the user namespace it runs in
    /// ([`LabError::NotInside`]): only a process can then be sent there, by [`Lab::command`].
    pub fn in_host<R: Send>(&self, i: usize, f: impl FnOnce() -> R + Send) -> Result<R, LabError> {
        let host = self.hosts.get(i).ok_or(LabError::NoSuchHost {
            host: i,
            last: self.hosts.len() - 1,
        })?;
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new()
                .name(host.name.clone())
                .spawn_scoped(scope, || {
                    sys::enter_net(&host.namespaces.net).map_err(LabError::NotInside)?;
                    Ok(f())
                })
                .map_err(LabError::io("start a thread"))?;
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The programs the set-up needs, looked for before anything is made.
struct Tools {
    ip: Tool,
    tc: Option<Tool>,
    nft: Option<Tool>,
    sh: Option<Tool>,
}

impl Tools {
    fn find(spec: &Spec) -> Result<Tools, LabError> {
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

/// Starts every holder; the first one makes the user namespace if one is needed.
fn hold_all(spec: &Spec) -> Result<(Vec<LabHost>, Option<LabHost>), LabError> {
    let mut user = if privileged() { User::Keep } else { User::New };
    let mut hosts = Vec::with_capacity(spec.hosts);
    for i in 0..spec.hosts {
        let host = LabHost::hold(i, format!("host{i}"), user.clone())?;
        if let Some(fd) = &host.namespaces.user {
            user = User::Join(Arc::clone(fd));
        }
        hosts.push(host);
    }
    let hub = spec
        .bridged()
        .then(|| LabHost::hold(spec.hosts, "hub".into(), user))
        .transpose()?;
    Ok((hosts, hub))
}

/// Lays the cables.
fn join(
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
    // A plain switch: no spanning tree, no snooping (it would hold back groups nobody joined by
    // IGMP, as raw Ethernet groups never are).
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
            limit(tc, hub, &port(host.index), rate)?;
        }
    }
    Ok(())
}

/// Addresses, routes, neighbours, limits and losses of one host.
fn set_up(spec: &Spec, tools: &Tools, host: &LabHost) -> Result<(), LabError> {
    let (place, inside) = (host.name.as_str(), &host.namespaces);
    let mut script = format!(
        "link set dev lo up\n\
         link set dev eth0 up\n\
         address add {}/24 dev eth0\n\
         route add 224.0.0.0/4 dev eth0\n",
        host.ipv4()
    );
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
        limit(tc, host, "eth0", rate)?;
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
/// is the only switch that root of a user namespace may turn; Linux 6.3 or later has it.
fn steer_receive(sh: &Tool, hosts: &[LabHost]) -> Result<(), LabError> {
    let script = format!(
        "echo {} > /proc/sys/net/core/rps_default_mask\n",
        cpu_mask()
    );
    for host in hosts {
        sh.feed(&host.name, &host.namespaces, &["-s"], &script)?;
    }
    Ok(())
}

fn limit(tc: &Tool, host: &LabHost, iface: &str, rate: &str) -> Result<(), LabError> {
    let words = format!("qdisc add dev {iface} root tbf rate {rate} burst 128k limit 256k");
    tc.run(&host.name, &host.namespaces, &words).map(drop)
}

/// Waits until `ip` shows `wanted` for `iface`: the kernel announces a carrier a little after the
/// command that caused it, and frames sent before are lost.
fn wait_for(ip: &Tool, host: &LabHost, iface: &str, wanted: &str) -> Result<(), LabError> {
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

fn open_namespaces(pid: u32, own_user: bool) -> Result<Namespaces, LabError> {
    let open = |kind: &str| -> Result<Arc<OwnedFd>, LabError> {
        let path = format!("/proc/{pid}/ns/{kind}");
        let file = File::open(&path).map_err(LabError::io(format!("open {path}")))?;
        Ok(Arc::new(file.into()))
    };
    let user = if own_user { None } else { Some(open("user")?) };
    Ok(Namespaces {
        user,
        net: open("net")?,
    })
}

/// The bridge's port towards host `i`.
fn port(i: usize) -> String {
    format!("port{i}")
}

fn mac(i: usize) -> [u8; 6] {
    [0x02, 0x44, 0x57, 0, 0, (i + 1) as u8]
}

fn ipv4(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, (i + 1) as u8)
}

fn hex(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// All cores, as /sys wants it: groups of 32 bits, the highest first.
fn cpu_mask() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let full = std::iter::repeat_n("ffffffff".to_owned(), cores / 32);
    let rest = (!cores.is_multiple_of(32)).then(|| format!("{:x}", (1u64 << (cores % 32)) - 1));
    rest.into_iter().chain(full).collect::<Vec<_>>().join(",")
}
