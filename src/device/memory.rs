//! Memory of the host that devices copy from and to, and parts of any memory.
//!
//! Touches anonymous mappings and the memory it is lent. Invariant: a [`HostMemory`] holds what
//! owns its words, so they stay valid for as long as any clone of it exists, also one that waits on
//! a stream.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::Mutex;

use memmap2::{MmapMut, MmapRaw};

use crate::weights::WeightsView;

/// Words that copies and kernels can be given parts of.
pub trait Memory: Clone + Send + Sync + fmt::Debug + 'static {
    /// Number of words.
    fn len(&self) -> usize;

    /// The device's address of the first word, for a library of this process that works on the
    /// same device. It holds as long as any clone of the memory exists.
    fn address(&self) -> u64;

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it.
    fn all(&self) -> Part<'_, Self> {
        self.part(0..self.len())
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it does not lie within.
    fn part(&self, range: Range<usize>) -> Part<'_, Self> {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "words {range:?} of {}",
            self.len()
        );
        Part {
            memory: self,
            range,
        }
    }
}

/// A part of some memory; within it, by construction.
#[derive(Debug)]
pub struct Part<'a, M> {
    memory: &'a M,
    range: Range<usize>,
}

impl<M> Clone for Part<'_, M> {
    fn clone(&self) -> Self {
        Self {
            memory: self.memory,
            range: self.range.clone(),
        }
    }
}

impl<'a, M> Part<'a, M> {
    /// The memory it is a part of.
    pub fn memory(&self) -> &'a M {
        self.memory
    }

    /// Its first word.
    pub fn start(&self) -> usize {
        self.range.start
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if it has no word.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// Words of the host. Clones are the same words.
#[derive(Clone)]
pub struct HostMemory(Arc<Inner>);

struct Inner {
    /// What a device did to the memory ([`HostMemory::pin_once`]) and undoes when this is dropped:
    /// first of all fields, while the memory is still there.
    #[cfg(feature = "cuda")]
    pinned: Mutex<Option<Box<dyn Any + Send>>>,
    ptr: *mut f32,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the words are only touched as `WeightsView` allows, from any thread; the rest is Send and
// Sync.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "HostMemory({} words)", self.0.len)
    }
}

impl HostMemory {
    /// New words, all zero, on pages of their own.
    ///
    /// # Errors
    /// No memory.
    pub fn zeroed(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(4).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = MmapRaw::from(MmapMut::map_anon(bytes.max(1))?);
        Ok(Self::of(Arc::new(pages), |pages| {
            // SAFETY: a mapping of at least `words` words, page-aligned, zero, that lives as long
            // as it is borrowed and can only be reached through this view.
            unsafe { WeightsView::from_raw(pages.as_mut_ptr().cast(), words) }
        }))
    }

    /// Words that `owner` holds: the shared buffer, a state file.
    pub fn of<T: Any + Send + Sync>(
        owner: Arc<T>,
        view: impl for<'a> FnOnce(&'a T) -> WeightsView<'a>,
    ) -> Self {
        let view = view(&owner);
        Self(Arc::new(Inner {
            #[cfg(feature = "cuda")]
            pinned: Mutex::new(None),
            // Valid for as long as `owner` is borrowed, which this `Arc` does until the end.
            ptr: view.as_ptr(),
            len: view.len(),
            _owner: owner,
        }))
    }

    /// A view of all words.
    pub fn view(&self) -> WeightsView<'_> {
        // SAFETY: they come from a view that holds as long as the owner is borrowed, and the
        // owner lives, behind a shared `Arc`, as long as `self`.
        unsafe { WeightsView::from_raw(self.0.ptr, self.0.len) }
    }
}

#[cfg(feature = "cuda")]
impl HostMemory {
    /// Runs `pin` unless it was done before, and keeps what it gives until the memory goes.
    pub(super) fn pin_once<E>(
        &self,
        pin: impl FnOnce(WeightsView<'_>) -> Result<Box<dyn Any + Send>, E>,
    ) -> Result<(), E> {
        let mut pinned = self.0.pinned.lock().unwrap_or_else(|e| e.into_inner());
        if pinned.is_none() {
            *pinned = Some(pin(self.view())?);
        }
        Ok(())
    }

    /// Whether both are clones of one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Memory for HostMemory {
    fn len(&self) -> usize {
        self.0.len
    }

    fn address(&self) -> u64 {
        self.0.ptr.expose_provenance() as u64
    }
}
