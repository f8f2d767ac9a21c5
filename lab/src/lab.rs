//! A lab: its hosts, made and removed together, and how to get in.
//!
//! Touches processes it started itself and the namespaces they hold. Invariants: no interface is
//! made in the caller's namespace; a lab that could not be finished is gone when `up` returns.

use crate::LabError;
use crate::enter::privileged;
use crate::host::LabHost;
use crate::setup::{self, Tools};
use crate::spec::Spec;
use crate::sys::{self, User};
use std::ffi::OsStr;
use std::process::Command;
use std::sync::Arc;

/// Hosts in network namespaces, joined by cables; gone when dropped.
#[derive(Debug)]
pub struct Lab {
    spec: Spec,
    hosts: Vec<LabHost>,
    /// The namespace of the bridge; not a host.
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
            setup::steer_receive(sh, &hosts)?;
        }
        setup::join(spec, &tools, &hosts, hub.as_ref())?;
        for host in &hosts {
            setup::set_up(spec, &tools, host)?;
        }
        for host in &hosts {
            setup::wait_for(&tools.ip, host, "eth0", "state UP")?;
        }
        if let Some(hub) = &hub {
            setup::wait_for(&tools.ip, hub, "br0", "state UP")?;
            for host in &hosts {
                setup::wait_for(
                    &tools.ip,
                    hub,
                    &setup::port(host.index),
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

    /// The settings that it was made with.
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
