//! The floats of a payload, in memory that is used again.
//!
//! A cluster moves as many bytes in each iteration as in the one before. New memory for each
//! message costs a page fault for every 4 KiB and a write of zeros, as much as the copy into it.
//! Invariant: what a [`Pool`] gives was written by this process before, and is of the right length.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerocopy::{FromBytes, IntoBytes};

use crate::weights::WeightsView;

/// Memory of one member for payloads: as much as was in use at once, until the member ends.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Mutex<Free>>);

/// Memory that nothing uses, by its length. What was used last is used next: it may be in a cache.
type Free = HashMap<usize, Vec<Vec<f32>>>;

/// Floats of a message.
pub struct Floats {
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
        Floats {
            values: used.unwrap_or_else(|| vec![0.0; len]),
            home: Some(self.clone()),
        }
    }

    /// A copy of `values`.
    pub fn copy(&self, values: &[f32]) -> Floats {
        let mut floats = self.take(values.len());
        floats.copy_from_slice(values);
        floats
    }
}

impl Floats {
    /// A view of them as weights.
    pub(crate) fn view(&mut self) -> WeightsView<'_> {
        let words = <[AtomicU32]>::mut_from_bytes(self.values.as_mut_slice().as_mut_bytes());
        // Both have 4 bytes and their alignment, so this cannot fail.
        WeightsView::of(words.map_or(&[][..], |words| words))
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let values = std::mem::take(&mut self.values);
            home.free().entry(values.len()).or_default().push(values);
        }
    }
}

impl Clone for Floats {
    fn clone(&self) -> Self {
        match &self.home {
            Some(home) => home.copy(self),
            None => self.values.clone().into(),
        }
    }
}

impl From<Vec<f32>> for Floats {
    fn from(values: Vec<f32>) -> Self {
        Self { values, home: None }
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl PartialEq for Floats {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl fmt::Debug for Floats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_for_the_same_length_alone() {
        let pool = Pool::default();
        let first = pool.copy(&[1.0, 2.0]);
        let (at, copy) = (first.as_ptr(), first.clone());
        assert_ne!(copy.as_ptr(), at);
        drop(first);
        assert_ne!(pool.take(3).as_ptr(), at);
        let again = pool.take(2);
        assert_eq!((again.as_ptr(), &*again), (at, &[1.0, 2.0][..]));
        assert_eq!(copy, again);
        assert_eq!(pool.free().values().map(Vec::len).sum::<usize>(), 1);
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
