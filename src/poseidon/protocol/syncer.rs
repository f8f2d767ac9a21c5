//! The worker's side of a layer: one syncer per layer.
//!
//! A [`Syncer`] sends its layer's gradient as soon as the backward pass has computed it, receives
//! the updates that come back, and applies them to the weights. No I/O: messages in, messages out.
//!
//! Rules:
//! - Weights change only while the layer is *open*: from its `send` to the next `begin`. Messages
//!   that arrive outside wait. So a pass reads each layer's weights of one moment.
//! - At most `staleness` steps of what was sent may be missing when an iteration begins.
//! - While steps are missing the worker has steps of its own in its weights
//!   ([`ahead`](super::ahead)), unless the plan says that it reads whole steps alone.
//! - Steps that a worker makes itself (`sfb`, `onebit`) are made in the order of the clocks, from
//!   updates summed in the order of the workers: all workers make the same ones, bit for bit.

mod apply;
mod contribution;

use std::collections::VecDeque;
use std::sync::Arc;

use super::ahead::{Ahead, ahead_of};
use super::coordinator::{Member, MemberRole};
use super::message::{Body, Message, MessageKind, Pool};
use super::onebit;
use super::plan::{Pair, Plan, PlanLayer};
use super::rounds::Rounds;
use super::store::Saved;
use super::violation::ProtocolViolation;
use crate::poseidon::cost::Scheme;
pub use contribution::Contribution;

/// The receivers of a worker's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A server, or under `p2p` a worker: perhaps the one that sends it.
    Home(Member),
    /// All other workers.
    Peers,
}

/// A pair of the layer, and what has arrived about it.
#[derive(Debug)]
struct HeldPair {
    pair: Pair,
    /// Steps that are in this worker's weights.
    applied: u64,
    /// Received and not yet applied: weights (the newest only) or sums (all).
    waiting: VecDeque<Arc<Message>>,
    /// Difference of the gradients and the bits that were sent; empty but under `onebit`.
    residual: Vec<f32>,
    /// Its own part of steps that are missing, where the worker reads that.
    ahead: Option<Ahead>,
}

/// The syncer of one layer of one worker.
#[derive(Debug)]
pub struct Syncer {
    index: u32,
    layer: PlanLayer,
    worker: u16,
    workers: usize,
    staleness: u64,
    pairs: Vec<HeldPair>,
    /// Factors of all workers, by clock (`sfb`).
    rounds: Rounds<Arc<Message>>,
    /// Own factors that were sent and are in no [`Ahead`] yet.
    own: VecDeque<Arc<Message>>,
    open: bool,
    pool: Pool,
    scratch: Vec<f32>,
}

impl Syncer {
    /// The syncer of `layer` at `worker`, after `start` steps. Weights that servers hold count as
    /// missing until a server has sent them. What it sends lies in memory of `pool`.
    pub fn new(plan: &Plan, layer: usize, worker: u16, start: u64, pool: &Pool) -> Self {
        let info = plan.layers[layer].clone();
        let of_layer = plan.pairs().into_iter().filter(|pair| pair.layer == layer);
        // Under the others the workers hold the weights from the start.
        let sent = |pair: &Pair| matches!(pair.scheme, Scheme::Ps | Scheme::Adam);
        let in_bits = |pair: &Pair| pair.scheme == Scheme::OneBit;
        let pairs = of_layer.map(|pair| HeldPair {
            applied: if sent(&pair) { 0 } else { start },
            waiting: VecDeque::new(),
            residual: vec![0.0; if in_bits(&pair) { pair.len } else { 0 }],
            ahead: ahead_of(plan, &pair),
            pair,
        });
        let staleness = u64::from(plan.staleness);
        Self {
            index: layer as u32,
            worker,
            workers: plan.workers.into(),
            staleness,
            pairs: pairs.collect(),
            // A peer may be `staleness` clocks ahead of what this worker has sent, and that as far
            // ahead of what has arrived here.
            rounds: Rounds::new(plan.workers, 2 * staleness + 2, start),
            own: VecDeque::new(),
            open: true,
            pool: pool.clone(),
            scratch: Vec::new(),
            layer: info,
        }
    }

    /// Name of the layer.
    pub fn name(&self) -> &str {
        &self.layer.name
    }

    /// The scheme by which its gradient travels.
    pub fn scheme(&self) -> Scheme {
        self.layer.scheme
    }

    /// The layer's place in the buffer, from its first weight to its last.
    pub fn extent(&self) -> std::ops::Range<usize> {
        let first = self.layer.tensors.first().map_or(0, |t| t.offset);
        let end = self.layer.tensors.last().map_or(0, |t| t.offset + t.len);
        first..end
    }

    /// Number of steps that are in all weights of the layer.
    pub fn clock(&self) -> u64 {
        match self.layer.scheme {
            Scheme::Sfb => self.rounds.now(),
            _ => self
                .pairs
                .iter()
                .map(|p| p.applied)
                .min()
                .unwrap_or(u64::MAX),
        }
    }

    /// The members that must still send before `steps` steps are in the weights.
    pub fn awaited(&self, steps: u64) -> Vec<Member> {
        let mut members: Vec<Member> = match self.layer.scheme {
            Scheme::Sfb => {
                let late = self.rounds.late().into_iter();
                let role = MemberRole::Worker;
                late.map(|index| Member { role, index }).collect()
            }
            _ => {
                let behind = self.pairs.iter().filter(|p| p.applied < steps);
                behind.filter_map(|p| p.pair.home).collect()
            }
        };
        members.sort_unstable();
        members.dedup();
        members
    }

    /// True if iteration `clock` may begin, as far as this layer is concerned.
    pub fn ready_for(&self, clock: u64) -> bool {
        self.clock().saturating_add(self.staleness) >= clock
    }

    /// True if [`Syncer::apply_received`] would change something.
    pub fn has_unapplied(&self) -> bool {
        let arrived = || self.pairs.iter().any(|held| !held.waiting.is_empty());
        let behind = |held: &HeldPair| held.ahead.as_ref().is_some_and(Ahead::is_behind);
        let own = || !self.own.is_empty() || self.pairs.iter().any(behind);
        self.open && (arrived() || self.rounds.is_complete(self.workers) || own())
    }

    /// Closes the layer: a pass is about to read its weights.
    pub fn begin(&mut self) {
        self.open = false;
    }

    /// Opens the layer and returns the messages of iteration `clock`.
    pub fn send(
        &mut self,
        clock: u64,
        contribution: Contribution<'_>,
    ) -> Vec<(Destination, Arc<Message>)> {
        self.open = true;
        let message = |kind, subject, body| {
            Arc::new(Message {
                kind,
                subject,
                sender: self.worker,
                clock,
                body,
            })
        };
        match (self.layer.scheme, contribution) {
            (Scheme::Sfb, Contribution::Factors(factors)) => {
                let body = Body::Floats(factors.into());
                let message = message(MessageKind::Factors, self.index, body);
                // This cannot fail: before this clock began, the worker waited for the steps of
                // older ones, so the clock is within the window.
                let _ = self.rounds.add(self.worker, clock, message.clone());
                self.note_own(&message);
                let peers = (self.workers > 1).then_some((Destination::Peers, message));
                peers.into_iter().collect()
            }
            (Scheme::Adam, Contribution::Factors(factors)) => {
                let home = self.pairs.iter().find_map(|p| p.pair.home);
                let body = Body::Floats(factors.into());
                let message = message(MessageKind::Factors, self.index, body);
                self.note_own(&message);
                home.map(|home| (Destination::Home(home), message))
                    .into_iter()
                    .collect()
            }
            (_, Contribution::Factors(_)) => Vec::new(),
            (_, gradient) => {
                let first = self.extent().start;
                let of_pair = |held: &mut HeldPair| {
                    let pair = held.pair;
                    let values = gradient.values(&pair, first);
                    let (kind, body) = if pair.scheme == Scheme::OneBit {
                        let words = onebit::quantise(&pair, values, &mut held.residual);
                        (MessageKind::Bits, Body::Words(words))
                    } else {
                        let floats = gradient.floats(&pair, first, &self.pool);
                        (MessageKind::Gradient, Body::Floats(floats))
                    };
                    if let Some(ahead) = &mut held.ahead {
                        ahead.note(clock, as_sent(&pair, values, &body));
                    }
                    Some((Destination::Home(pair.home?), message(kind, pair.id, body)))
                };
                self.pairs.iter_mut().filter_map(of_pair).collect()
            }
        }
    }

    /// Takes a message of a server or a peer, or weights of this worker's own share.
    /// [`Syncer::apply_received`] applies it.
    ///
    /// # Errors
    /// See [`ProtocolViolation`]; nothing has changed then.
    pub fn receive(&mut self, message: Arc<Message>) -> Result<(), ProtocolViolation> {
        let (kind, subject, clock) = (message.kind, message.subject, message.clock);
        let unexpected = ProtocolViolation::UnexpectedSubject { kind, subject };
        match (self.layer.scheme, kind) {
            (Scheme::Sfb, MessageKind::Factors)
                if subject == self.index && message.sender != self.worker =>
            {
                // Factors add up over the workers: each is taken once, and a step is made when all
                // of its clock are there. This worker's own were added by `send`.
                self.rounds.add(message.sender, clock, message)?;
            }
            (_, MessageKind::Weights) => {
                let held = self.held(&message, comes_as_weights).ok_or(unexpected)?;
                let newest = held.waiting.back().map_or(held.applied, |m| m.clock);
                // Weights include all earlier steps, so a newer message replaces an older one, and
                // clocks may be skipped. But a server sends them in order: older weights would undo
                // steps that an iteration may have counted on.
                if clock < newest {
                    let now = newest;
                    return Err(ProtocolViolation::OutOfOrder {
                        kind,
                        subject,
                        clock,
                        now,
                    });
                }
                held.waiting.clear();
                held.waiting.push_back(message);
            }
            (_, MessageKind::Bits) => {
                let in_bits = |scheme| scheme == Scheme::OneBit;
                let held = self.held(&message, in_bits).ok_or(unexpected)?;
                let now = held.applied + held.waiting.len() as u64 + 1;
                // A sum is one step, and this worker makes it. If one were skipped or made twice,
                // its weights would differ from the others' for good: no later message replaces
                // them.
                if clock != now {
                    return Err(ProtocolViolation::OutOfOrder {
                        kind,
                        subject,
                        clock,
                        now,
                    });
                }
                held.waiting.push_back(message);
            }
            _ => return Err(unexpected),
        }
        Ok(())
    }

    /// The pair that a message is about, if its home sent it and its scheme is one of those.
    fn held(
        &mut self,
        message: &Message,
        schemes: impl Fn(Scheme) -> bool,
    ) -> Option<&mut HeldPair> {
        let holds = |held: &&mut HeldPair| {
            let home = held.pair.home.map(|home| home.index);
            let is = held.pair.id == message.subject && schemes(held.pair.scheme);
            is && home == Some(message.sender)
        };
        self.pairs.iter_mut().find(holds)
    }

    /// The state that a checkpoint needs in addition to weights and history.
    pub fn saved(&self) -> Vec<Saved> {
        let residuals = self.pairs.iter().filter(|p| !p.residual.is_empty());
        residuals
            .map(|p| (format!("pair{}.residual", p.pair.id), p.residual.clone()))
            .collect()
    }

    /// Loads a checkpoint: `array` returns the saved array of a name and length.
    ///
    /// # Errors
    /// The error of `array`.
    pub fn restore<E>(
        &mut self,
        mut array: impl FnMut(&str, usize) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        for p in self.pairs.iter_mut().filter(|p| !p.residual.is_empty()) {
            p.residual = array(&format!("pair{}.residual", p.pair.id), p.residual.len())?;
        }
        Ok(())
    }
}

/// True if steps of such a pair arrive as the weights that they give.
fn comes_as_weights(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::Ps | Scheme::Adam | Scheme::P2p)
}

/// What of `gradient` is in `body`.
fn as_sent(pair: &Pair, gradient: &[f32], body: &Body) -> Vec<f32> {
    let Body::Words(words) = body else {
        return gradient.to_vec();
    };
    let mut values = vec![0.0; gradient.len()];
    onebit::add(pair, words, &mut values);
    values
}
