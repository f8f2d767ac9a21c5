//! When deltas are coarse: where turns take steps, in place of int8.
//!
//! A coarse delta (int2) says of each weight only whether it moves by a step of its block, and
//! which way. It has a quarter of the bytes, so turns are shorter; what it does not say stays and
//! leaves later. On a link on which int8 has an age of 32 steps, CIFAR-10 quick learns better by it
//! (docs/reference/merging.md). Once solvers stand, turns take no steps, and deltas are fine again:
//! so the rest does not take long.
//!
//! Arithmetic over counts. Invariant: only how much of a delta leaves at once depends on it.

/// A step of int2 is that of int8 times two to this power: a half to a quarter of the largest
/// movement.
pub(super) const COARSER: i32 = 5;
/// Deltas are coarse from turns of so many local steps on, until they take fewer. Not earlier:
/// at an age of 4 steps solvers walk ahead, where masters have momentum at 8, and some nets learn
/// worse.
const FROM: f64 = 16.0;
const UNTIL: f64 = 4.0;

/// Whether deltas are coarse at present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coarse(bool);

impl Coarse {
    /// Takes how many local steps lie between two positions of a chunk, of late.
    #[inline]
    pub(super) fn note_age(&mut self, steps: f64) {
        self.0 = steps >= if self.0 { UNTIL } else { FROM };
    }

    #[inline]
    pub(super) fn is_so(self) -> bool {
        #[cfg(test)]
        if let Some(coarse) = FORCED.get() {
            return coarse;
        }
        self.0
    }
}

#[cfg(test)]
thread_local! {
    /// Whether deltas of all nodes of this thread are coarse, whatever their age.
    static FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Makes deltas of all nodes of this thread coarse from now on, or not, or as their age says.
#[cfg(test)]
pub(super) fn force(coarse: Option<bool>) {
    FORCED.set(coarse);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coarse deltas make turns shorter, which is no reason to give them up.
    #[test]
    fn what_coarse_deltas_win_does_not_end_them() {
        let mut coarse = Coarse::default();
        let mut at = |steps| {
            coarse.note_age(steps);
            coarse.is_so()
        };
        assert!(!at(FROM - 0.1));
        assert!(at(FROM));
        // With many nodes nearly all bytes are deltas.
        assert!(at(FROM * 18.0 / 66.0));
        assert!(!at(UNTIL - 0.1));
        assert!(!at(FROM - 0.1));
    }
}
