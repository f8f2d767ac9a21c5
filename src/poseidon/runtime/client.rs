//! A client: a worker's place in a cluster, for whatever program computes the gradients.
//!
//! Owns its connections, its threads and (unless it is given other memory) its weights. Everything
//! about the model comes from the coordinator. Invariants: each layer is sent once in an iteration;
//! the first error ends the run for all and is returned once, later calls return
//! [`PoseidonError::Ended`] with its text; when [`Client::close`] returns, or the
//! client is dropped, no thread and no connection of it is left.

mod checkpoint;
mod hub;
mod joining;
mod peers;
mod replica;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::checkpoint::CheckpointFolder;
use super::error::PoseidonError;
use super::member::{MemberJob, close_all};
use super::traffic::TrafficReport;
use crate::poseidon::{ClusterInfo, Contribution, Floats, Plan};
use crate::weights::WeightsView;
pub use checkpoint::Resumed;
pub(super) use checkpoint::remedy;
use hub::Hub;
pub use replica::{OwnReplica, Replica};
use turns::Turns;

/// What a client is started with.
#[derive(Clone, Debug)]
pub struct ClientJob {
    /// Its place in the cluster.
    pub member: MemberJob,
    /// What it knows of the job already, and insists on.
    pub claims: Claims,
    /// The weights to begin with.
    pub first: First,
}

impl ClientJob {
    /// A client that insists on nothing and begins with the weights that the servers send.
    pub fn new(member: MemberJob) -> Self {
        Self {
            member,
            claims: Claims::default(),
            first: First::FromServers,
        }
    }
}

/// What a client insists on: the coordinator refuses it with what differs. Each `None` is taken as
/// the coordinator says.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Number of the job.
    pub session: Option<u64>,
    /// Fingerprint of the model's tensors.
    pub fingerprint: Option<u64>,
    /// How steps are made, as text.
    pub recipe: Option<String>,
    /// Images of one iteration.
    pub images: Option<u32>,
    /// Kind of the pictures it learns from; empty: it does not say.
    pub data: String,
    /// A hash of the weights that the client's own optimiser begins with, with the rule `mean`, of
    /// which members hold gradients alone; 0: it does not say. The coordinator refuses a client
    /// with another one.
    pub weights: Option<u64>,
}

/// The weights that a client begins with.
#[derive(Clone, Debug, PartialEq)]
pub enum First {
    /// Those that the servers send. Only where servers hold all layers (schemes `ps` and `adam`).
    FromServers,
    /// All zero, as the mean gradients are before the first iteration.
    Zeros,
    /// These, in the layout of the plan's tensors. All workers and servers must have the same.
    Given(Vec<f32>),
}

/// An iteration that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its number: the steps of this client before it.
    pub clock: u64,
    /// Steps that staleness hides: how many less than `clock` are in the weights.
    pub missing: u64,
    /// A checkpoint is due: the weights hold exactly `clock` steps.
    pub checkpoint: bool,
}

/// One worker of a cluster. An iteration is [`Client::begin`], [`Client::send`] for each layer in
/// any order (the last layer first is best), [`Client::end`]. Several threads may share it.
pub struct Client {
    job: MemberJob,
    hub: Arc<Hub>,
    book: ClusterInfo,
    turns: Turns,
    folder: Option<CheckpointFolder>,
    identity: BTreeMap<String, String>,
    resumed: Option<Resumed>,
    closed: bool,
}

impl Client {
    /// Joins the cluster: waits for the coordinator, then until all members are there, and
    /// connects to them. `memory` gives the memory for a plan's weights; with `None` it is an
    /// [`OwnReplica`]. Sets the weights to `job.first`, or to the checkpoint that the run goes on
    /// from. `None` if `stop` is set meanwhile. `stop` ends the run at any time later too.
    ///
    /// # Errors
    /// See [`PoseidonError`]: nothing listens and the address is wrong, the coordinator refuses
    /// this client, a member cannot be reached, a checkpoint cannot be read.
    pub fn join(
        job: ClientJob,
        memory: Option<Arc<dyn Replica>>,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<Self>, PoseidonError> {
        joining::enter(job, memory, stop)
    }

    /// The description of the cluster: session, plan, addresses, where the run begins.
    pub fn book(&self) -> &ClusterInfo {
        &self.book
    }

    /// What is trained and how: layers, their tensors, schemes and rows, KV pairs, the step.
    pub fn plan(&self) -> &Plan {
        &self.book.plan
    }

    /// This worker's number, from 0.
    pub fn index(&self) -> u16 {
        self.job.index
    }

    /// Number of the next iteration, or of the one that has begun.
    pub fn clock(&self) -> u64 {
        self.turns.clock()
    }

    /// The weights, in the layout of the plan's tensors; with the rule `mean` the mean gradients.
    /// Those of a layer change between its [`Client::send`] and the next [`Client::begin`] only.
    pub fn weights(&self) -> WeightsView<'_> {
        self.hub.replica().weights()
    }

    /// The memory of the weights, which may outlive this client.
    pub fn replica(&self) -> Arc<dyn Replica> {
        self.hub.replica().clone()
    }

    /// What the checkpoint held from which this run goes on; `None`: it begins anew.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// Begins an iteration: waits until the weights have all steps that the staleness asks for,
    /// and holds the weights still. `None`: the run is over, as its last iteration is done, its
    /// end was announced, or `stop` was set.
    ///
    /// # Errors
    /// Why the run ended, once; an iteration has begun already.
    pub fn begin(&self) -> Result<Option<Turn>, PoseidonError> {
        self.turns.begin(&self.hub, self.plan())
    }

    /// Memory for the gradient of `layer` (its place in the plan), of any value: what is written
    /// there and given to [`Client::send`] as [`Contribution::Own`] is not copied. It is used again
    /// once nothing waits for it, so take it anew in each iteration, or send clones of it.
    ///
    /// # Errors
    /// [`PoseidonError::Misuse`]: no such layer.
    pub fn room(&self, layer: usize) -> Result<Floats, PoseidonError> {
        self.turns.room(&self.hub, self.plan(), layer)
    }

    /// Sends the contribution of `layer` (its place in the plan) to the iteration: the mean over
    /// this worker's images, as floats in the layout of the weights, or its factors. Returns
    /// without waiting for the network.
    ///
    /// # Errors
    /// [`PoseidonError::Misuse`]: no iteration has begun, the layer was sent already, or the
    /// contribution is of another kind or size than the plan has.
    pub fn send(&self, layer: usize, contribution: Contribution<'_>) -> Result<(), PoseidonError> {
        self.turns.send(&self.hub, self.plan(), layer, contribution)
    }

    /// Waits until `steps` steps are in the weights of `layer`, of which this client has sent its
    /// part. False if the run ends before that: `stop` is set, or an end was announced.
    ///
    /// # Errors
    /// Why the run ended, once; no such layer.
    pub fn wait(&self, layer: usize, steps: u64) -> Result<bool, PoseidonError> {
        self.turns.check_wait(self.plan(), layer, steps)?;
        if self.hub.wait_for_layer(layer, steps) {
            return Ok(true);
        }
        self.failure().map_or(Ok(false), Err)
    }

    /// Ends the iteration. Layers that were not sent count as a gradient of zero.
    ///
    /// # Errors
    /// Why the run ended, once; no iteration has begun.
    pub fn end(&self) -> Result<(), PoseidonError> {
        // Nothing more of a run that has failed is sent.
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.turns.end(&self.hub, self.plan())?;
        self.failure().map_or(Ok(()), Err)
    }

    /// Waits until every step that this client has sent its part of is in the weights. False if
    /// the run ends before that.
    ///
    /// # Errors
    /// Why the run ended, once.
    pub fn settle(&self) -> Result<bool, PoseidonError> {
        // Where late updates are dropped, the missing steps may never be made after an announced
        // end, because the other workers have stopped.
        if self.hub.drops_late() && self.is_finishing() || self.hub.wait_for(self.turns.clock()) {
            return Ok(!self.hub.shutdown.has_begun());
        }
        self.failure().map_or(Ok(false), Err)
    }

    /// True if a checkpoint is due after the steps that were made; [`Client::settle`] first.
    pub fn is_checkpoint_due(&self) -> bool {
        let clock = self.turns.clock();
        clock > self.book.start && self.plan().checkpoint_at(clock)
    }

    /// Announces that the run ends for all workers, as soon as all can: some iterations on where
    /// staleness lets them run ahead. Returns when every worker knows. It is for plans without a
    /// fixed number of iterations, and for a target that is reached.
    pub fn finish(&self) {
        let ahead = match self.hub.drops_late() {
            true => 0,
            false => u64::from(self.plan().staleness) + 1,
        };
        let at = self.turns.reach() + ahead;
        self.hub.end_all_at(at, self.job.index);
    }

    /// The iteration with which the run ends, once it was announced; else `u64::MAX`. A worker that
    /// ends it sends zeros as its part of those between.
    pub fn end_at(&self) -> u64 {
        self.hub.end_at()
    }

    /// True once the end of the run was announced, by any worker.
    pub fn is_finishing(&self) -> bool {
        self.hub.end_at() != u64::MAX
    }

    /// Ends the run for all members, with the reason `error`. The first reason counts. An error
    /// that a call has returned may be given back, for [`Client::close`] to return.
    pub fn abort(&self, error: PoseidonError) {
        self.hub.shutdown.fail(error);
    }

    /// Bytes that were sent and received, headers included.
    pub fn traffic(&self) -> [u64; 2] {
        self.hub.traffic().totals()
    }

    /// Leaves the cluster: waits until all others are done, ends all threads and connections, and
    /// writes the report if `job.member` names one. After an error it tells the others the reason
    /// and waits for no one.
    ///
    /// # Errors
    /// The first error of the run; [`PoseidonError::Ended`] if a call has returned it before.
    pub fn close(mut self) -> Result<TrafficReport, PoseidonError> {
        self.leave();
        let report = self.hub.traffic().report();
        // A client that was asked to stop has not failed because others did, or noticed it first.
        let stopped = self.hub.shutdown.is_requested();
        let counts = |error: &PoseidonError| !stopped || error.is_own_fault();
        self.failure().filter(counts).map_or(Ok(()), Err)?;
        self.job.write_report(&report)?;
        Ok(report)
    }

    /// The error of the run, once.
    fn failure(&self) -> Option<PoseidonError> {
        self.hub.shutdown.take()
    }

    fn leave(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let hub = &self.hub;
        if hub.has_share() {
            // The others need this worker for the steps that it has sent its part of.
            hub.wait_for(self.turns.clock());
        }
        hub.send_bye_and_wait(self.job.index);
        close_all(hub.links.take(), &hub.shutdown, || hub.readers());
        hub.join();
    }
}

impl Drop for Client {
    /// A client that was not closed tells the others that it is gone.
    fn drop(&mut self) {
        if !self.closed {
            let what = "its program let go of the client without closing it".to_owned();
            self.abort(PoseidonError::Misuse(what));
        }
        self.leave();
    }
}
