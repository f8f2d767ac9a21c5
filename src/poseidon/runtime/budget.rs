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

struct Waiting<D> {
    queue: Bandwidth<(D, Arc<Message>)>,
    /// True while the sending thread has a message that it took out.
    sending: bool,
}

/// Messages that wait for the budget of this process, each with its destination.
pub(super) struct Budget<D> {
    waiting: Mutex<Waiting<D>>,
    more: Condvar,
    clock: Clock,
}

impl<D> Budget<D> {
    /// A budget of `bytes_per_s`, which must be more than 0.
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                queue: Bandwidth::new(bytes_per_s),
                sending: false,
            }),
            more: Condvar::new(),
            clock: Clock::start(),
        }
    }

    /// Queues a message that goes to `copies` members.
    pub(super) fn push(&self, to: D, message: Arc<Message>, copies: usize, priority: Priority) {
        let bytes = copies * (HEADER_LEN + message.body.bytes().len());
        let subject = (message.kind as u64) << 32 | u64::from(message.subject);
        let mut waiting = lock(&self.waiting);
        waiting.queue.push((to, message), subject, bytes, priority);
        drop(waiting);
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
                lock(&self.waiting).sending = false;
            }
        }
    }

    /// The next message that may be sent, if there is one within [`LOOK_UP`].
    fn next(&self) -> Option<(D, Arc<Message>)> {
        let mut waiting = lock(&self.waiting);
        let pause = match waiting.queue.pop(self.clock.now_ns()) {
            Next::Now(item) => {
                waiting.sending = true;
                return Some(item);
            }
            Next::At(ns) => {
                Duration::from_nanos(ns.saturating_sub(self.clock.now_ns())).min(LOOK_UP)
            }
            Next::Empty => LOOK_UP,
        };
        drop(wait(&self.more, waiting, pause));
        None
    }

    /// True if each message has been sent: none waits, and none is on its way to a connection,
    /// where a `Bye` could overtake it.
    pub(super) fn is_empty(&self) -> bool {
        let waiting = lock(&self.waiting);
        waiting.queue.is_empty() && !waiting.sending
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Who leaves waits for an empty budget before its `Bye`.
    #[test]
    fn a_message_on_its_way_counts_as_waiting() {
        let (budget, stop) = (Budget::new(1e9), AtomicBool::new(false));
        let first = Priority {
            magnitude: 1.0,
            layer: 0,
        };
        let message = Arc::new(Message::bare(crate::poseidon::MessageKind::Alive, 0, 0));
        budget.push((), message, 1, first);
        let sent = AtomicBool::new(false);
        let over = || sent.load(std::sync::atomic::Ordering::Relaxed);
        budget.send_until(over, &Shutdown::new(&stop), |(), _| {
            assert!(!budget.is_empty());
            sent.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(budget.is_empty());
    }
}
