//! How the members of a cluster are started: what each is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;

use super::super::children::{Component, Ends};
use super::super::curves::node_curve;
use super::super::start::Start;
use super::Watched;
use crate::node::TEST_IMAGES;
use crate::settings::{MemberSettings, ServerSettings, Settings, WorkerSettings};

impl Watched<'_> {
    pub(super) fn server(&self, index: u16, coordinator: &str, resume: bool) -> Result<Component> {
        let name = format!("server{index}");
        let settings = ServerSettings {
            session: self.session.to_owned(),
            member: self.member(&name, index, coordinator, resume),
            model: self.plan.model_settings(),
        };
        self.component(&name, index, &settings, self.session)
    }

    pub(super) fn worker(&self, index: u16, coordinator: &str, resume: bool) -> Result<Component> {
        let plan = self.plan;
        let name = format!("worker{index}");
        let first = plan.own.workers_here().start;
        let buffer = self.buffers.nodes[usize::from(index - first)].path();
        let settings = WorkerSettings {
            launcher: Some(std::process::id()),
            buffer: buffer.to_owned(),
            private_data: false,
            devices: plan.own.devices.clone(),
            overlap: plan.own.overlap,
            slow: plan.own.slow,
            test_every: plan.job.test_every,
            test_images: plan.job.test_images.unwrap_or(TEST_IMAGES),
            target_accuracy: plan.job.target_accuracy,
            curve: Some(node_curve(&plan.job.out, index)),
            member: self.member(&name, index, coordinator, resume),
            model: plan.model_settings(),
        };
        self.component(&name, index, &settings, &buffer.display().to_string())
    }

    fn member(&self, name: &str, index: u16, coordinator: &str, resume: bool) -> MemberSettings {
        let plan = self.plan;
        let folder = &plan.own.checkpoint_folder;
        MemberSettings {
            index,
            coordinator: coordinator.to_owned(),
            listen: self.listen(index),
            checkpoints: plan.checkpoints().then(|| folder.clone()),
            resume: resume && plan.checkpoints(),
            bandwidth_bytes_per_s: plan.own.bandwidth_bytes_per_s,
            key_file: plan.own.key_file.clone(),
            report: Some(plan.job.out.join(format!("{name}-traffic.json"))),
        }
    }

    /// Where what runs on `host` listens: there, on any port.
    pub(super) fn listen(&self, host: u16) -> SocketAddr {
        let lab = self.lab.as_ref();
        let of_lab = lab.map(|lab| IpAddr::V4(lab.host(usize::from(host)).ipv4()));
        let here = self.plan.own.here.as_ref();
        let of_job = here.and_then(|here| here.meeting.own_address());
        let address = of_lab.or(of_job).unwrap_or(Ipv4Addr::LOCALHOST.into());
        SocketAddr::new(address, 0)
    }

    /// Starts a component on `host`; `ps` shows its name and `what` it works on.
    pub(super) fn component(
        &self,
        name: &str,
        host: u16,
        settings: &impl Settings,
        what: &str,
    ) -> Result<Component> {
        let start = Start {
            out: &self.plan.job.out,
            name: name.to_owned(),
            file: name.to_owned(),
            ends: Ends::WhenDone,
            host: self.lab.as_ref().map(|lab| (lab, host)),
        };
        start.with(settings, what)
    }
}
