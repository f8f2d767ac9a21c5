//! The floats of a payload, in memory that is used again and shared.
//!
//! A cluster moves as many bytes in each iteration as in the one before. New memory for each
//! message costs a page fault for every 4 KiB and a write of zeros, as much as the copy into it.
//! Invariants: what a [`Pool`] gives was written by this process before, and is of the right
//! length. Memory that several share is never written: who writes copies its part before.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerocopy::{FromBytes, IntoBytes};

use crate::weights::WeightsView;

/// Memory of one member for payloads: as much as was in use at once, until the member ends.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Free>>);

/// Memory that nothing uses, by its length. What was used last is used next: it may be in a cache.
type Free = HashMap<usize, Vec<Vec<f32>>>;

/// Floats of a message. A clone is of the same memory, until one of both is written.
#[derive(Clone)]
pub struct Floats {
    memory: Arc<Memory>,
    part: Range<usize>,
}

struct Memory {
    values: Vec<f32>,
    /// Where the memory goes when nothing uses it any more.
    home: Option<Pool>,
}

impl Pool {
    fn free(&self) -> MutexGuard<'_, Free> {
        // What is behind the lock is whole at any moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many floats, of any value: they are to be written.
    pub fn take(&self, len: usize) -> Floats {
        let used = self.free().get_mut(&len).and_then(Vec::pop);
        let values = used.unwrap_or_else(|| vec![0.0; len]);
        Floats::of(values, Some(self.clone()))
    }

    /// A copy of `values`.
    pub fn copy(&self, values: &[f32]) -> Floats {
        let mut floats = self.take(values.len());
        floats.copy_from_slice(values);
        floats
    }
}

impl Floats {
    fn of(values: Vec<f32>, home: Option<Pool>) -> Self {
        Self {
            part: 0..values.len(),
            memory: Arc::new(Memory { values, home }),
        }
    }

    /// A part of them, in the same memory.
    ///
    /// # Panics
    /// If `part` is not within them.
    pub fn part(&self, part: Range<usize>) -> Self {
        assert!(
            part.start <= part.end && part.end <= self.len(),
            "{part:?} of {} floats",
            self.len()
        );
        let from = self.part.start;
        Self {
            memory: self.memory.clone(),
            part: from + part.start..from + part.end,
        }
    }

    /// A view of them as weights.
    pub(crate) fn view(&mut self) -> WeightsView<'_> {
        let words = <[AtomicU32]>::mut_from_bytes((**self).as_mut_bytes());
        // Both have 4 bytes and their alignment, so this cannot fail.
        WeightsView::of(words.map_or(&[][..], |words| words))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let values = std::mem::take(&mut self.values);
            home.free().entry(values.len()).or_default().push(values);
        }
    }
}

impl From<Vec<f32>> for Floats {
    fn from(values: Vec<f32>) -> Self {
        Self::of(values, None)
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory.values[self.part.clone()]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        if Arc::get_mut(&mut self.memory).is_none() {
            *self = match &self.memory.home {
                Some(home) => home.copy(self),
                None => self.to_vec().into(),
            };
        }
        let part = self.part.clone();
        let memory = Arc::get_mut(&mut self.memory);
        // Nothing shares it now.
        memory.map_or(&mut [], |memory| &mut memory.values[part])
    }
}

impl PartialEq for Floats {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Floats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_for_the_same_length_alone() {
        let pool = Pool::default();
        let first = pool.copy(&[1.0, 2.0]);
        let (at, copy) = (first.as_ptr(), pool.copy(&first));
        assert_ne!(copy.as_ptr(), at);
        drop(first);
        assert_ne!(pool.take(3).as_ptr(), at);
        let again = pool.take(2);
        assert_eq!((again.as_ptr(), &*again), (at, &[1.0, 2.0][..]));
        assert_eq!(copy, again);
        assert_eq!(pool.free().values().map(Vec::len).sum::<usize>(), 1);
    }

    /// Messages may share the memory of a gradient; what is written is in no other.
    #[test]
    fn who_writes_what_others_share_has_a_copy() {
        let pool = Pool::default();
        let mut whole = pool.copy(&[1.0, 2.0, 3.0, 4.0]);
        let at = whole.as_ptr();
        let mut parts = [whole.part(0..1), whole.part(1..4).part(1..3)];
        assert_eq!((&*parts[0], &*parts[1]), (&[1.0][..], &[3.0, 4.0][..]));
        assert_eq!(parts[1].as_ptr(), at.wrapping_add(2));
        parts[1][0] = 5.0;
        parts[0].view().store(0, 6.0);
        assert_eq!((&*parts[0], &*parts[1]), (&[6.0][..], &[5.0, 4.0][..]));
        assert_eq!(&*whole, &[1.0, 2.0, 3.0, 4.0][..]);
        whole[1] = 7.0;
        assert_eq!(whole.as_ptr(), at, "nothing shares it any more");
        let twin = whole.clone();
        drop(whole);
        assert_eq!(&*twin, &[1.0, 7.0, 3.0, 4.0][..]);
        assert!(!pool.free().contains_key(&4), "it is in use");
        drop(twin);
        assert_eq!(pool.take(4).as_ptr(), at);
    }

    #[test]
    #[should_panic(expected = "1..4 of 3 floats")]
    fn a_part_is_within_them() {
        Floats::from(vec![0.0; 9]).part(2..5).part(1..4);
    }

    #[test]
    fn a_view_is_of_the_same_memory() {
        let mut floats = Floats::from(vec![1.0, 2.0, 3.0]);
        let view = floats.view();
        assert_eq!((view.len(), view.load(1)), (3, 2.0));
        view.store(1, 5.0);
        assert_eq!(&*floats, [1.0, 5.0, 3.0]);
    }
}
