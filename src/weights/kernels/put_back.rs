//! What a slave does when its master counts its deltas otherwise: what is outstanding goes back
//! into `w - last`.
//!
//! A rare pass, so weight by weight. Invariant: each `last` is less by its `sent` once, however
//! often the pass is killed.

use super::lanes::Memory;
use crate::weights::BLOCK;
use crate::weights::journal::{Journal, WRITTEN, mark};
use crate::weights::view::WeightsView;

/// `last -= sent` from weight `first` on.
pub(super) fn put_back<M: Memory>(
    last: WeightsView<'_>,
    sent: WeightsView<'_>,
    first: u32,
    journal: &Journal,
) {
    assert_eq!(last.len(), sent.len(), "views of different chunks");
    for i in first as usize..last.len() {
        let value = (last.load(i) - sent.load(i)).to_bits();
        M::store_mark(&journal.mark, mark(i, 0));
        M::store(&journal.entry(i, 1).third[i % BLOCK], value);
        // `w` needs no care here, as if it were written.
        M::store_mark(&journal.mark, mark(i + 1, WRITTEN));
        M::store(last.word(i), value);
    }
    M::store_mark(&journal.mark, mark(last.len(), 0));
}
