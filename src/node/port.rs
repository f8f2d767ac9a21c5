//! A transport as the stream sees it: an outbox.
//!
//! Touches the transport it is given. Invariant: positions go out straight from the buffer where
//! the transport can read it, and are copied where it cannot. No weights go beyond the rate.

use std::ops::Range;
use std::time::Duration;

use dogwild_net::Transmit;

use super::pace::Pace;
use crate::stream::{FillLent, Outbox, Room, To};

/// The sending half of a link, under the rate that the component keeps.
pub(super) struct Port<'t> {
    tx: &'t mut dyn Transmit,
    pace: Option<&'t mut Paced>,
}

/// A [`Pace`], and what it has refused.
pub(super) struct Paced {
    pace: Pace,
    /// Bytes that had gone when the pace was last told.
    noted: u64,
    frame_len: usize,
    /// Frames that were refused.
    pub(super) refused: u64,
}

impl Paced {
    /// A limit of `rate_bytes_per_s` for frames of up to `frame_len` bytes.
    pub(super) fn new(rate_bytes_per_s: f64, frame_len: usize) -> Self {
        Self {
            pace: Pace::new(rate_bytes_per_s),
            noted: 0,
            frame_len,
            refused: 0,
        }
    }

    /// Lets the budget grow: `sent_bytes` have gone in all.
    pub(super) fn note(&mut self, now_ns: u64, sent_bytes: u64) {
        self.pace.note(now_ns, sent_bytes, self.frame_len);
        self.noted = sent_bytes;
    }

    /// Time until a frame may go.
    pub(super) fn wait(&self) -> Duration {
        self.pace.wait(self.frame_len)
    }
}

impl<'t> Port<'t> {
    pub(super) fn new(tx: &'t mut dyn Transmit, pace: Option<&'t mut Paced>) -> Self {
        Self { tx, pace }
    }

    /// Whether the rate allows a frame of `len` bytes to `to`.
    fn may_send(&mut self, to: To, len: usize) -> bool {
        let Some(paced) = &mut self.pace else {
            return true;
        };
        let since = self.tx.stats().bytes - paced.noted;
        let may = paced.pace.may_send(since, len * self.tx.copies(to));
        paced.refused += u64::from(!may);
        may
    }
}

impl Outbox for Port<'_> {
    fn send(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.may_send(to, len) && self.tx.send(to, len, fill)
    }

    fn send_hello(&mut self, to: To, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.tx.send(to, len, fill)
    }

    fn send_weights(
        &mut self,
        to: To,
        head_len: usize,
        weights: Range<usize>,
        fill: &mut FillLent<'_>,
    ) -> Option<u64> {
        if !self.may_send(to, head_len + 4 * weights.len()) {
            return None;
        }
        self.tx.send_lent(to, head_len, weights, fill)
    }

    fn room(&mut self) -> Option<Room> {
        let below = self.tx.room();
        let copies = self.tx.copies(To::Group);
        let own = self.pace.as_ref().map(|paced| {
            let since = self.tx.stats().bytes - paced.noted;
            paced.pace.room(since, paced.frame_len * copies)
        });
        match (own, below) {
            (Some(own), Some(below)) if below.now < own.now => Some(below),
            (own, below) => own.or(below),
        }
    }

    fn has_read(&mut self, ticket: u64) -> bool {
        self.tx.has_read(ticket)
    }
}
