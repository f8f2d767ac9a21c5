//! What a client writes into a checkpoint, and what it finds in one.
//!
//! Arrays of the client's program are kept apart from those of the plan by the start of their
//! names.

use std::collections::BTreeMap;

use super::super::checkpoint::{CheckpointError, Loaded, OWN};
use super::super::error::PoseidonError;
use super::super::member::save;
use super::{Client, Replica};
use crate::poseidon::{Checkpoint, Plan, Saved, state_name};
use crate::weights::{WeightsView, kernels};

/// The content of the checkpoint from which a run goes on.
#[derive(Debug)]
pub struct Resumed(pub(super) Loaded);

impl Resumed {
    /// An array that the program gave to [`Client::checkpoint`], of that name and length.
    ///
    /// # Errors
    /// The checkpoint has none.
    pub fn array(&self, name: &str, len: usize) -> Result<Vec<f32>, PoseidonError> {
        Ok(self.0.array(&format!("{OWN}{name}"), len)?)
    }

    /// A note that the program gave to [`Client::checkpoint`].
    pub fn note(&self, name: &str) -> Option<&str> {
        self.0.note(name)
    }

    /// Whole numbers of a note, `len` of them.
    pub(in super::super) fn numbers(
        &self,
        name: &str,
        len: usize,
    ) -> Result<Vec<u64>, CheckpointError> {
        self.0.numbers(name, len)
    }

    /// Sets the weights, and what the rule of the steps remembers.
    pub(super) fn fill(&self, plan: &Plan, replica: &dyn Replica) -> Result<(), PoseidonError> {
        for (kind, to) in views(plan, replica) {
            for tensor in plan.layers.iter().flat_map(|layer| &layer.tensors) {
                let array = self
                    .0
                    .array(&format!("{}.{kind}", tensor.name), tensor.len)?;
                kernels::copy_in(to.slice(tensor.offset, tensor.len), &array);
            }
        }
        Ok(())
    }
}

/// The arrays of a replica that a plan uses, with the names that they have in a checkpoint.
fn views<'r>(plan: &Plan, replica: &'r dyn Replica) -> Vec<(&'static str, WeightsView<'r>)> {
    let state = (0..plan.step.rule.states()).map(|which| (state_name(which), replica.state(which)));
    std::iter::once(("weights", replica.weights()))
        .chain(state)
        .collect()
}

/// Advice for training that diverges.
pub(in super::super) fn remedy(plan: &Plan) -> &'static str {
    match plan.staleness {
        0 => "Lower base_lr",
        _ => {
            "Lower base_lr, the momentum or the staleness: gradients of old weights need smaller steps, \
             with momentum many times smaller (docs/reference/reliable-protocol.md)"
        }
    }
}

impl Client {
    /// Writes a checkpoint of the weights as they are, with arrays (as of an optimiser) and notes
    /// of the program. Call it where [`Turn::checkpoint`](super::Turn::checkpoint) or
    /// [`Client::is_checkpoint_due`] says so: it is of use only if all members write theirs.
    /// Writes nothing if the client has no folder for checkpoints. A full disk is a line in the
    /// log, and training goes on.
    ///
    /// # Errors
    /// NaN or infinity in what would be written; the file cannot be written.
    pub fn checkpoint(
        &self,
        own: Vec<Saved>,
        notes: BTreeMap<String, String>,
    ) -> Result<(), PoseidonError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let (plan, replica) = (self.plan(), self.hub.replica());
        let mut arrays = self.hub.saved();
        for (kind, from) in views(plan, &**replica) {
            for tensor in plan.layers.iter().flat_map(|layer| &layer.tensors) {
                let mut values = vec![0.0; tensor.len];
                kernels::copy_out(from.slice(tensor.offset, tensor.len), &mut values);
                arrays.push((format!("{}.{kind}", tensor.name), values));
            }
        }
        let own = own.into_iter();
        arrays.extend(own.map(|(name, values)| (format!("{OWN}{name}"), values)));
        let clock = self.turns.clock();
        for (name, values) in &arrays {
            if let Some(&value) = values.iter().find(|value| !value.is_finite()) {
                return Err(PoseidonError::NotFinite {
                    name: name.clone(),
                    value,
                    steps: clock,
                    remedy: remedy(plan),
                });
            }
        }
        // What the cluster is known by comes last: the program's notes cannot replace it.
        let notes = notes.into_iter().chain(self.identity.clone()).collect();
        let (checkpoint, traffic) = (Checkpoint { clock, arrays }, self.hub.traffic());
        save(folder, &checkpoint, notes, &traffic, |message| {
            self.hub.to_coordinator(message);
        })
    }
}
