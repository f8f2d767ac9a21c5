//! A view of shared weights: raw pointer and length behind a type.
//!
//! Touches the memory it was given, one 32-bit word at a time with relaxed ordering.
//! Invariant: what is stored through it is never -0.0 (`store` turns it into 0.0).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Weights that other threads and processes read and write at the same time.
///
/// No `&[f32]` over them exists, ever: each weight is 32 bits, loaded and stored with
/// relaxed ordering, and foreign code (BLAS, kernel, NIC) gets pointer and length.
#[derive(Clone, Copy, Debug)]
pub struct WeightsView<'a> {
    ptr: *mut f32,
    len: usize,
    _buffer: PhantomData<&'a [AtomicU32]>,
}

// SAFETY: every access goes through relaxed atomics (or kernels that stand for them),
// so a view may be used from any thread.
unsafe impl Send for WeightsView<'_> {}
// SAFETY: as above.
unsafe impl Sync for WeightsView<'_> {}

impl<'a> WeightsView<'a> {
    /// A view of `len` weights from `ptr` on.
    ///
    /// # Safety
    /// `ptr` must be valid for reads and writes of `len` f32 for `'a`, 4-byte aligned, and
    /// no `&[f32]`/`&mut [f32]` over the same memory may exist during `'a`.
    pub unsafe fn from_raw(ptr: *mut f32, len: usize) -> Self {
        Self {
            ptr,
            len,
            _buffer: PhantomData,
        }
    }

    /// A view of memory that this process holds as atomics (tests, private copies).
    pub fn of(words: &'a [AtomicU32]) -> Self {
        Self {
            ptr: words.as_ptr() as *mut f32,
            len: words.len(),
            _buffer: PhantomData,
        }
    }

    /// Number of weights.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the view holds no weight.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `start..start+len`. Panics if it is out of bounds.
    #[inline]
    pub fn slice(&self, start: usize, len: usize) -> WeightsView<'a> {
        assert!(
            start <= self.len && len <= self.len - start,
            "weights {start}+{len} of {}",
            self.len
        );
        // SAFETY: in bounds of a valid view, as just checked.
        unsafe { Self::from_raw(self.ptr.add(start), len) }
    }

    /// The weights as the words they are.
    #[inline]
    pub fn words(&self) -> &'a [AtomicU32] {
        // SAFETY: a valid view; AtomicU32 has the size and alignment of f32, and may change under
        // a shared reference.
        unsafe { std::slice::from_raw_parts(self.ptr.cast::<AtomicU32>(), self.len) }
    }

    /// Pointer for foreign code (GEMM, kernel, NIC).
    #[inline]
    pub fn as_ptr(&self) -> *mut f32 {
        self.ptr
    }

    /// Weight `i` as the word it is. Panics if it is out of bounds.
    #[inline]
    pub fn word(&self, i: usize) -> &'a AtomicU32 {
        assert!(i < self.len, "weight {i} of {}", self.len);
        // SAFETY: in bounds; AtomicU32 has the size and alignment of f32.
        unsafe { &*self.ptr.add(i).cast::<AtomicU32>() }
    }

    /// Weight `i`.
    #[inline]
    pub fn load(&self, i: usize) -> f32 {
        f32::from_bits(self.word(i).load(Relaxed))
    }

    /// Sets weight `i`; -0.0 is stored as 0.0.
    #[inline]
    pub fn store(&self, i: usize, value: f32) {
        self.word(i).store((value + 0.0).to_bits(), Relaxed);
    }

    /// Adds to weight `i` by a load and a store: a write in between is lost (Hogwild).
    #[inline]
    pub fn racy_add(&self, i: usize, value: f32) {
        self.store(i, self.load(i) + value);
    }

    /// Adds to weight `i` and loses no other write.
    #[inline]
    pub fn atomic_add(&self, i: usize, value: f32) {
        let add = |bits| Some((f32::from_bits(bits) + value + 0.0).to_bits());
        let _ = self.word(i).fetch_update(Relaxed, Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_no_negative_zero() {
        let words: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let w = WeightsView::of(&words);
        w.store(1, -0.0);
        assert_eq!(w.load(1).to_bits(), 0);
        w.racy_add(2, 1.5);
        w.atomic_add(2, -1.5);
        w.atomic_add(3, -0.0);
        assert_eq!(
            words.iter().map(|x| x.load(Relaxed)).collect::<Vec<_>>(),
            [0; 4]
        );
    }

    #[test]
    #[should_panic(expected = "weights 3+2 of 4")]
    fn slice_is_checked() {
        let words: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
        WeightsView::of(&words).slice(3, 2);
    }
}
