//! The messages that wait for one connection: bounded by what the other end can use.
//!
//! Touches no socket. Invariants: messages leave in the order in which they came, but weights take
//! the place of older weights of the same pair. So however slow the other end is, at most one set
//! of weights waits for it. What waits is counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::sync::{lock, wait};
use crate::poseidon::{Message, MessageKind};

/// What has waited in a queue so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    /// Bytes of payload that waited at once, at most.
    pub(super) bytes_max: u64,
    /// Weights that newer ones replaced before they were sent.
    pub(super) replaced: u64,
}

/// What the writing thread does next.
pub(super) enum Next {
    /// Write this, and then call [`Queue::written`].
    Message(Arc<Message>),
    /// There was nothing for some time.
    Nothing,
    /// Everything is written, and no more comes.
    Closed,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Arc<Message>>,
    /// True while the writing thread has a message that it took out.
    writing: bool,
    closed: bool,
    bytes: u64,
    queued: Queued,
}

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

fn bytes(message: &Message) -> u64 {
    message.body.bytes().len() as u64
}

impl Queue {
    /// Adds a message; it is lost if the queue is closed.
    pub(super) fn push(&self, message: Arc<Message>) {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return;
        }
        let Waiting {
            messages,
            bytes: total,
            queued,
            ..
        } = &mut *waiting;
        let same = |older: &&mut Arc<Message>| {
            older.kind == MessageKind::Weights && older.subject == message.subject
        };
        let older = match message.kind {
            MessageKind::Weights => messages.iter_mut().find(same),
            _ => None,
        };
        *total += bytes(&message);
        match older {
            Some(older) => {
                *total -= bytes(older);
                *older = message;
                queued.replaced += 1;
            }
            None => messages.push_back(message),
        }
        queued.bytes_max = queued.bytes_max.max(*total);
        drop(waiting);
        self.more.notify_one();
    }

    /// True if nothing waits and nothing is being written.
    pub(super) fn is_idle(&self) -> bool {
        let waiting = lock(&self.waiting);
        waiting.messages.is_empty() && !waiting.writing
    }

    /// The next message, waiting for it up to `most`.
    pub(super) fn next(&self, most: Duration) -> Next {
        let mut waiting = lock(&self.waiting);
        if waiting.messages.is_empty() && !waiting.closed {
            waiting = wait(&self.more, waiting, most);
        }
        match waiting.messages.pop_front() {
            Some(message) => {
                waiting.bytes -= bytes(&message);
                waiting.writing = true;
                Next::Message(message)
            }
            None if waiting.closed => Next::Closed,
            None => Next::Nothing,
        }
    }

    /// Notes that the message of [`Queue::next`] is written; true if nothing waits behind it.
    pub(super) fn written(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.writing = false;
        waiting.messages.is_empty()
    }

    /// Takes no more messages; those that wait are still given out.
    pub(super) fn close(&self) {
        lock(&self.waiting).closed = true;
        self.more.notify_one();
    }

    /// Takes no more messages, and forgets those that wait: the connection is gone.
    pub(super) fn abandon(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.writing = false;
        waiting.messages.clear();
        waiting.bytes = 0;
    }

    pub(super) fn queued(&self) -> Queued {
        lock(&self.waiting).queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poseidon::Body;

    fn message(kind: MessageKind, subject: u32, clock: u64) -> Arc<Message> {
        Arc::new(Message {
            kind,
            subject,
            sender: 0,
            clock,
            body: Body::Floats(vec![0.0; 25].into()),
        })
    }

    fn taken(queue: &Queue) -> Option<(MessageKind, u32, u64)> {
        match queue.next(Duration::ZERO) {
            Next::Message(message) => Some((message.kind, message.subject, message.clock)),
            _ => None,
        }
    }

    #[test]
    fn the_newest_weights_replace_older_ones_and_nothing_else_does() {
        use MessageKind::{Bits, Weights};
        let queue = Queue::default();
        assert!(queue.is_idle());
        for clock in 1..=1000 {
            for pair in 0..3 {
                queue.push(message(Weights, pair, clock));
            }
        }
        for clock in 1..=2 {
            queue.push(message(Bits, 0, clock));
        }
        let queued = queue.queued();
        assert_eq!((queued.bytes_max, queued.replaced), (500, 3 * 999));
        assert_eq!(taken(&queue), Some((Weights, 0, 1000)));
        assert!(!queue.is_idle());
        // What is being written is out: the next weights of the pair wait behind all others.
        queue.push(message(Weights, 0, 1001));
        assert!(!queue.written());
        let rest: Vec<_> = std::iter::from_fn(|| taken(&queue)).collect();
        let expected = [
            (Weights, 1, 1000),
            (Weights, 2, 1000),
            (Bits, 0, 1),
            (Bits, 0, 2),
            (Weights, 0, 1001),
        ];
        assert_eq!(rest, expected);
        assert!(queue.written() && queue.is_idle());
        queue.push(message(Bits, 0, 3));
        queue.close();
        queue.push(message(Bits, 0, 4));
        assert_eq!(taken(&queue), Some((Bits, 0, 3)));
        assert!(matches!(queue.next(Duration::ZERO), Next::Closed));
    }
}
