//! What is wrong with the arguments of `dogwild train`, all of it, before anything is made.

use anyhow::{Error, Result, anyhow};

use super::args;
use super::explicit::Explicit;
use super::pictures::{choose, pictures};
use super::train::{Args, MOST_NODES};
use super::train_poseidon::Sync;
use crate::job::Pause;
use crate::solver::SolverSpec;
use crate::solver::data::Source;

impl Explicit<Args> {
    /// All that is wrong with the job, as far as it can be told before it runs.
    pub(super) fn problems(&self) -> Vec<Error> {
        let mut wrong = Vec::new();
        wrong.extend(self.args.sync.check(self).err());
        wrong.extend(self.quorum().err());
        let model = self.args.model();
        match args::model(model) {
            Err(error) => wrong.push(error.into()),
            Ok(spec) => match choose(self.args.data.clone(), model, &spec) {
                Err(error) => wrong.push(error),
                Ok((data, _)) => {
                    if matches!(data, Source::Mnist(_) | Source::Cifar10(_)) {
                        wrong.extend(data.load().err().map(Error::from));
                    }
                    if self.args.sync == Sync::Poseidon {
                        wrong.extend(self.args.check_cluster(&spec).err());
                    }
                }
            },
        }
        if self.args.sync == Sync::Stream {
            wrong.extend(self.args.stream_problems());
        }
        wrong
    }
}

impl Args {
    /// The model, by name and checked. The pictures are those that were named, or that fit it.
    pub(super) fn choose_model(&mut self) -> Result<(String, SolverSpec)> {
        let model = self.model().to_owned();
        let spec = args::model(&model)?;
        self.data = Some(pictures(self.data.take(), &model, &spec)?);
        Ok((model, spec))
    }

    /// All that is wrong with a job on the stream.
    pub(super) fn stream_problems(&self) -> Vec<Error> {
        let nodes = self.nodes;
        let mut wrong = Vec::new();
        wrong.extend(
            self.solvers
                .check(nodes, self.gpu.as_ref().map_or(0, |gpu| gpu.0.len()))
                .err(),
        );
        wrong.extend(Pause::check(&self.pause, nodes).err());
        let paces = self.pace_steps.as_ref();
        wrong.extend(paces.and_then(|paces| paces.check(nodes).err()));
        if let Some(masters) = self.stream.masters.filter(|masters| *masters > nodes) {
            wrong.push(anyhow!(
                "--masters {masters} of {nodes} nodes: give 1 to {nodes}"
            ));
        }
        if self.tester && nodes == MOST_NODES {
            wrong.push(anyhow!(
                "--nodes {MOST_NODES} --tester: the node that tests is one of the {MOST_NODES}; give {} nodes at most",
                MOST_NODES - 1
            ));
        }
        let all = nodes + u16::from(self.tester);
        if let Some(places) = self.stream.places.filter(|places| *places < all) {
            wrong.push(anyhow!(
                "--places {places} for {all} nodes: give {all} or more"
            ));
        }
        if let Some(least) = self.stream.min_nodes.filter(|least| *least > all) {
            wrong.push(anyhow!(
                "--min-nodes {least} of {all} nodes: give 1 to {all}"
            ));
        }
        let raw = self.transport.transport.is_raw();
        if raw && !self.lab.lab && self.transport.iface.is_none() && all > 1 {
            wrong.push(anyhow!(
                "raw Ethernet between processes of one host needs a cable: use --lab (namespaces, no root needed), \
                 or start `dogwild stream --transport packet_mmap --iface NAME` on each host"
            ));
        }
        // Said here, once, and not in the log of each node.
        let key = self.transport.key_file.as_ref();
        let key = key.and_then(|file| dogwild_net::seal::Key::from_file(file).err());
        wrong.extend(key.map(Error::from));
        wrong
    }
}
