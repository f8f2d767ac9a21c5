//! The bandwidth manager at work: messages that wait for a node's budget, and how much they matter.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::super::fate::{lock, wait};
use crate::node::Clock;
use crate::poseidon::{Bandwidth, Contribution, HEADER_LEN, Message, Next, To, Weight};
use crate::weights::{WeightsView, kernels};

/// Messages that wait for the budget.
pub(super) struct Budget {
    queue: Mutex<Bandwidth<(To, Arc<Message>)>>,
    more: Condvar,
    clock: Clock,
}

impl Budget {
    /// So many bytes per second, more than 0.
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self {
            queue: Mutex::new(Bandwidth::new(bytes_per_s)),
            more: Condvar::new(),
            clock: Clock::start(),
        }
    }

    /// Adds a message that goes to `copies` others.
    pub(super) fn push(&self, to: To, message: Arc<Message>, copies: usize, weight: Weight) {
        let bytes = copies * (HEADER_LEN + message.body.bytes().len());
        lock(&self.queue).push((to, message), bytes, weight);
        self.more.notify_one();
    }

    /// The next message that may go, if one may within `most`.
    pub(super) fn next(&self, most: Duration) -> Option<(To, Arc<Message>)> {
        let mut queue = lock(&self.queue);
        let pause = match queue.pop(self.clock.now_ns()) {
            Next::Now(item) => return Some(item),
            Next::At(ns) => Duration::from_nanos(ns.saturating_sub(self.clock.now_ns())).min(most),
            Next::Empty => most,
        };
        drop(wait(&self.more, queue, pause));
        None
    }

    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }
}

/// How much a contribution matters: its length over that of the weights at `extent`. Factors count
/// with the product of the lengths of u and v, which bounds that of the gradient.
pub(super) fn weight(
    layer: usize,
    contribution: &Contribution<'_>,
    extent: Range<usize>,
    w: WeightsView<'_>,
) -> Weight {
    let square = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>();
    let update = match contribution {
        Contribution::Gradient { from, values } => {
            square(&values[extent.start - from..extent.end - from]).sqrt()
        }
        Contribution::Factors(factors) => square(factors) / 2.0,
    };
    let mut weights = vec![0.0; extent.len()];
    kernels::copy_out(w.slice(extent.start, extent.len()), &mut weights);
    Weight {
        magnitude: update / square(&weights).sqrt().max(f32::MIN_POSITIVE),
        layer: layer as u32,
    }
}
