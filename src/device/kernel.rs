//! A kernel: one name, and what it is on each kind of device.
//!
//! Pure data. Invariant: `plan` sees lengths and numbers before any device does, so that neither
//! the host's function nor the CUDA one can be made to reach outside the parts it was given.

use crate::weights::WeightsView;

/// A number that a kernel takes in addition to memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A size or a count.
    U(u32),
    /// A factor or another value.
    F(f32),
}

impl Number {
    /// Returns a count.
    ///
    /// # Panics
    /// If it is a value.
    pub fn u(self) -> usize {
        match self {
            Self::U(n) => n as usize,
            Self::F(x) => panic!("{x} where the kernel takes a count"),
        }
    }

    /// Returns a value.
    ///
    /// # Panics
    /// If it is a count.
    pub fn f(self) -> f32 {
        match self {
            Self::F(x) => x,
            Self::U(n) => panic!("the count {n} where the kernel takes a value"),
        }
    }
}

/// How many threads CUDA runs: blocks, and threads of a block, each in three directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
}

impl Shape {
    /// Threads of a block where one thread does one item.
    const THREADS: u32 = 256;

    /// One thread for each of `items`.
    ///
    /// # Panics
    /// If there are 2³² or more.
    pub fn of(items: usize) -> Self {
        let items = u32::try_from(items).expect("fewer than 2^32 items for a kernel");
        Self {
            grid: [items.div_ceil(Self::THREADS).max(1), 1, 1],
            block: [Self::THREADS, 1, 1],
        }
    }
}

/// A kernel. On every device it is given the same parts, then the same numbers, in this order.
#[derive(Debug)]
pub struct Kernel {
    /// Its name, also that of the CUDA function.
    pub name: &'static str,
    /// The CUDA C it is in: `sync.cu` or `net.cu`.
    pub source: &'static str,
    /// Checks the lengths of the parts and the numbers, and says how many threads there are to be.
    /// Panics if they do not fit: a bug of the caller.
    pub plan: fn(&[usize], &[Number]) -> Shape,
    /// What it does, on the host device.
    pub host: fn(&[WeightsView<'_>], &[Number]),
}
