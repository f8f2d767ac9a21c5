//! A transport as the stream sees it: an outbox.
//!
//! Touches the transport it is given. Invariant: positions go out straight from the buffer where
//! the transport can read it, and are copied where it cannot.

use std::ops::Range;

use dogwild_net::{Link, To, Transmit};

use crate::stream::{Dest, FillWeights, Outbox};
use crate::weights::SharedWeights;

/// The sending half of a link.
pub(super) struct Port<'t>(pub(super) &'t mut dyn Transmit);

impl Outbox for Port<'_> {
    fn send(&mut self, to: Dest, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        self.0.send(to_net(to), len, fill)
    }

    fn send_weights(
        &mut self,
        to: Dest,
        head_len: usize,
        weights: Range<usize>,
        fill: &mut FillWeights<'_>,
    ) -> Option<u64> {
        self.0.send_lent(to_net(to), head_len, weights, fill)
    }

    fn has_read(&mut self, ticket: u64) -> bool {
        self.0.has_read(ticket)
    }
}

fn to_net(to: Dest) -> To {
    match to {
        Dest::Group => To::Group,
        Dest::Node(node) => To::Node(node),
    }
}

/// Lends the buffer to the transport.
pub(super) fn lend(link: &mut Link, shared: &SharedWeights) {
    match link.tx.lend(shared.view().words()) {
        Ok(true) => log::info!("positions are read from the buffer by the adapter"),
        Ok(false) => {}
        Err(error) => log::warn!(
            "the adapter cannot read the buffer itself ({error}): positions are copied; \
             raise the limit of locked memory (ulimit -l)"
        ),
    }
}
