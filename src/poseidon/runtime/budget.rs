//! The bandwidth manager at work: messages that wait for a process's budget, by priority.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::shutdown::Shutdown;
use super::sync::{lock, wait};
use crate::node::Clock;
use crate::poseidon::{Bandwidth, Contribution, HEADER_LEN, Message, Next, Priority};
use crate::weights::{WeightsView, kernels};

/// Longest time in which the sending thread does not look whether it must end.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Messages that wait for the budget of this process, each with its destination.
pub(super) struct Budget<D> {
    queue: Mutex<Bandwidth<(D, Arc<Message>)>>,
    more: Condvar,
    clock: Clock,
}

impl<D> Budget<D> {
    /// A budget of `bytes_per_s`, which must be more than 0.
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self {
            queue: Mutex::new(Bandwidth::new(bytes_per_s)),
            more: Condvar::new(),
            clock: Clock::start(),
        }
    }

    /// Queues a message that goes to `copies` members.
    pub(super) fn push(&self, to: D, message: Arc<Message>, copies: usize, priority: Priority) {
        let bytes = copies * (HEADER_LEN + message.body.bytes().len());
        let subject = (message.kind as u64) << 32 | u64::from(message.subject);
        lock(&self.queue).push((to, message), subject, bytes, priority);
        self.more.notify_one();
    }

    /// Sends messages through `put` as the budget allows, until `over` or the shutdown.
    pub(super) fn send_until(
        &self,
        over: impl Fn() -> bool,
        shutdown: &Shutdown<'_>,
        put: impl Fn(D, Arc<Message>),
    ) {
        while !shutdown.has_begun() && !over() {
            if let Some((to, message)) = self.next() {
                put(to, message);
            }
        }
    }

    /// The next message that may be sent, if there is one within [`LOOK_UP`].
    fn next(&self) -> Option<(D, Arc<Message>)> {
        let mut queue = lock(&self.queue);
        let pause = match queue.pop(self.clock.now_ns()) {
            Next::Now(item) => return Some(item),
            Next::At(ns) => {
                Duration::from_nanos(ns.saturating_sub(self.clock.now_ns())).min(LOOK_UP)
            }
            Next::Empty => LOOK_UP,
        };
        drop(wait(&self.more, queue, pause));
        None
    }

    /// True if no message waits.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }
}

/// Priority of a contribution: its length over that of the weights at `extent`. For factors it is
/// the product of the lengths of u and v, an upper bound of the gradient's length.
pub(super) fn priority(
    layer: usize,
    contribution: &Contribution<'_>,
    extent: Range<usize>,
    w: WeightsView<'_>,
) -> Priority {
    let square = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>();
    let update = match contribution {
        Contribution::Gradient { from, values } => {
            square(&values[extent.start - from..extent.end - from]).sqrt()
        }
        Contribution::Own(floats) => square(floats).sqrt(),
        Contribution::Factors(factors) => square(factors) / 2.0,
    };
    let mut weights = vec![0.0; extent.len()];
    kernels::copy_out(w.slice(extent.start, extent.len()), &mut weights);
    Priority {
        magnitude: update / square(&weights).sqrt().max(f32::MIN_POSITIVE),
        layer: layer as u32,
    }
}
