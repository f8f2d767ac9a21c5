//! Batches, made ahead of the solver by a thread of their own.
//!
//! Holds [`Batches`], which hands out transformed batches, and the order of images. Touches
//! no files. Three buffers go round between the thread and the solver, so the thread is at most
//! two batches ahead and nothing is allocated after the start.
//!
//! Invariants: what a batch holds depends on images, transform, phase, batch size, shard, seed
//! and cursor alone, so a restarted solver goes on exactly. The thread ends when [`Batches`] is
//! dropped.
//!
//! Order: images are dealt to shards by a permutation that is the same for every seed. In training,
//! epoch e of a shard is a permutation of its images drawn from (seed, shard, e). In tests the
//! images come as they lie in the file. After the last image the next epoch begins, in the middle
//! of a batch if need be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use rand_xoshiro::Xoshiro256PlusPlus;

use super::transform::{Checked, below};
use super::{Images, Transform, TransformError, mix, stream};
use crate::solver::Phase;

/// Buffers that go round: one with the solver, the others made ahead.
const BUFFERS: usize = 3;

/// Part `index` of the images when they are dealt to `of` parties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    /// 0 to `of` - 1.
    pub index: u32,
    /// Number of shards.
    pub of: u32,
}

impl Shard {
    /// All images.
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };
}

/// Images and labels, ready for a net.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// n·c·h·w values, NCHW, of the transform's output shape.
    pub images: Vec<f32>,
    /// n classes.
    pub labels: Vec<u32>,
    /// Images of the shard handed out up to the end of this batch: [`Batches::new`] with this
    /// as `start_cursor` goes on with the batch after it.
    pub cursor: u64,
}

/// Why there can be no batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchesError {
    /// A batch of nothing.
    #[error("batches: the batch size is 0; give at least 1")]
    EmptyBatch,
    /// More memory than one buffer may have.
    #[error(
        "batches: {batch} images of {values} values each do not fit in memory; use smaller batches"
    )]
    TooLarge {
        /// The batch size asked for.
        batch: usize,
        /// Values of one transformed image.
        values: usize,
    },
    /// A shard that does not exist.
    #[error("batches: there is no shard {index} of {of}; shards count from 0")]
    NoShard {
        /// The shard asked for.
        index: u32,
        /// Number of shards.
        of: u32,
    },
    /// A shard without images.
    #[error(
        "batches: {images} images are too few for {of} shards; use fewer solvers or more images"
    )]
    EmptyShard {
        /// Number of images.
        images: usize,
        /// Number of shards.
        of: u32,
    },
    /// Pixels, labels and shape contradict each other.
    #[error("batches: {pixels} pixels are not {labels} images of {image_len} each")]
    BadImages {
        /// Bytes of pixels.
        pixels: usize,
        /// Number of labels.
        labels: usize,
        /// Values of an image: c·h·w.
        image_len: usize,
    },
    /// The transform does not fit the images.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// The system gives no thread.
    #[error(
        "batches: cannot start the prefetch thread: {0}; raise the limit of processes (ulimit -u)"
    )]
    Thread(String),
}

/// An endless row of batches.
#[derive(Debug)]
pub struct Batches {
    current: Batch,
    /// `None` only while dropping.
    made: Option<Receiver<Batch>>,
    used: Option<Sender<Batch>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    epoch_len: usize,
    shape: [usize; 3],
}

impl Batches {
    /// Starts making batches of `batch` images, the first one after `start_cursor` images of
    /// the shard (0, or the `cursor` of the last batch that was used).
    ///
    /// # Errors
    /// Batch size, shard, images and transform do not fit each other.
    pub fn new(
        images: Arc<Images>,
        transform: Transform,
        phase: Phase,
        batch: usize,
        shard: Shard,
        seed: u64,
        start_cursor: u64,
    ) -> Result<Self, BatchesError> {
        let mut maker = Maker::new(images, transform, phase, batch, shard, seed, start_cursor)?;
        let epoch_len = maker.order.members.len();
        let shape = maker.transform.output_shape();
        let (used, to_fill) = channel::<Batch>();
        let (filled, made) = channel::<Batch>();
        for _ in 0..BUFFERS - 1 {
            // Cannot fail: the receiver is here.
            let _ = used.send(Batch::default());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("dogwild-batches".to_owned())
            .spawn(move || {
                while let Ok(mut buffer) = to_fill.recv() {
                    if !maker.fill(&mut buffer, &stopped) || filled.send(buffer).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| BatchesError::Thread(e.to_string()))?;
        let current = Batch {
            cursor: start_cursor,
            ..Batch::default()
        };
        let (made, used, thread) = (Some(made), Some(used), Some(thread));
        Ok(Self {
            current,
            made,
            used,
            stop,
            thread,
            epoch_len,
            shape,
        })
    }

    /// The next batch, valid until the next call. Waits if the thread is behind.
    #[expect(
        clippy::should_implement_trait,
        reason = "lends its item, which Iterator cannot"
    )]
    pub fn next(&mut self) -> &Batch {
        if let (Some(made), Some(used)) = (&self.made, &self.used) {
            let next = made
                .recv()
                .expect("the prefetch thread lives as long as its Batches");
            let last = std::mem::replace(&mut self.current, next);
            // The thread takes it, or has panicked, which the next `recv` reports.
            let _ = used.send(last);
        }
        &self.current
    }

    /// Images of one epoch of this shard.
    pub fn epoch_len(&self) -> usize {
        self.epoch_len
    }

    /// Channels, height, width of the transformed images.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.made = None;
        self.used = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Makes one batch after the other.
struct Maker {
    images: Arc<Images>,
    transform: Checked,
    phase: Phase,
    batch: usize,
    order: Order,
    cursor: u64,
}

impl Maker {
    fn new(
        images: Arc<Images>,
        transform: Transform,
        phase: Phase,
        batch: usize,
        shard: Shard,
        seed: u64,
        cursor: u64,
    ) -> Result<Self, BatchesError> {
        let transform = transform.check(images.shape)?;
        let values = transform.output_shape().iter().product::<usize>();
        if batch == 0 {
            return Err(BatchesError::EmptyBatch);
        }
        if batch
            .checked_mul(values)
            .is_none_or(|values| values > isize::MAX as usize / 4)
        {
            return Err(BatchesError::TooLarge { batch, values });
        }
        let Images { pixels, labels, .. } = &*images;
        if labels.len().checked_mul(images.image_len()) != Some(pixels.len()) {
            let (pixels, labels) = (pixels.len(), labels.len());
            return Err(BatchesError::BadImages {
                pixels,
                labels,
                image_len: images.image_len(),
            });
        }
        let order = Order::new(images.len(), phase, shard, seed)?;
        Ok(Self {
            images,
            transform,
            phase,
            batch,
            order,
            cursor,
        })
    }

    /// Fills `out` with the next batch; false if it was stopped before the end.
    fn fill(&mut self, out: &mut Batch, stop: &AtomicBool) -> bool {
        let values = self.transform.output_shape().iter().product::<usize>();
        out.images.resize(self.batch * values, 0.0);
        out.labels.resize(self.batch, 0);
        let random = self.phase == Phase::Train && self.transform.is_random();
        let mut rng = stream(0, 0);
        for (image, label) in out
            .images
            .chunks_exact_mut(values.max(1))
            .zip(&mut out.labels)
        {
            if stop.load(Relaxed) {
                return false;
            }
            let index = self.order.at(self.cursor);
            if random {
                rng = stream(self.order.seed ^ TRANSFORM_KEY, self.cursor);
            }
            self.transform
                .apply(self.images.image(index), self.phase, &mut rng, image);
            *label = u32::from(self.images.labels[index]);
            self.cursor = self.cursor.wrapping_add(1);
        }
        out.cursor = self.cursor;
        true
    }
}

/// Keeps the streams of crops and mirrors apart from those of the shuffles.
const TRANSFORM_KEY: u64 = 0x7472_616e_7366_6f72;

/// Deals images to shards whatever the seed, so that shards of solvers with different seeds
/// do not overlap either.
const DEAL_SEED: u64 = 0x6465_616c;

/// Which image comes at which cursor.
struct Order {
    phase: Phase,
    /// The shard's own: from the job's seed and the shard.
    seed: u64,
    /// The shard's images, ascending.
    members: Vec<u32>,
    /// `members` as `epoch` has them.
    shuffled: Vec<u32>,
    epoch: Option<u64>,
}

impl Order {
    fn new(images: usize, phase: Phase, shard: Shard, seed: u64) -> Result<Self, BatchesError> {
        let Shard { index, of } = shard;
        if index >= of {
            return Err(BatchesError::NoShard { index, of });
        }
        let Some(count) = u32::try_from(images).ok().filter(|&count| count >= of) else {
            return Err(BatchesError::EmptyShard { images, of });
        };
        let mut members: Vec<u32> = (0..count).collect();
        if of > 1 {
            shuffle(&mut members, &mut stream(DEAL_SEED, 0));
            members = members
                .into_iter()
                .skip(index as usize)
                .step_by(of as usize)
                .collect();
            members.sort_unstable();
        }
        let seed = mix(seed ^ mix(u64::from(index) << 32 | u64::from(of)));
        Ok(Self {
            phase,
            seed,
            shuffled: members.clone(),
            members,
            epoch: None,
        })
    }

    fn at(&mut self, cursor: u64) -> usize {
        let len = self.members.len() as u64;
        let (epoch, place) = (cursor / len, (cursor % len) as usize);
        if self.phase == Phase::Test {
            return self.members[place] as usize;
        }
        if self.epoch != Some(epoch) {
            self.shuffled.copy_from_slice(&self.members);
            shuffle(&mut self.shuffled, &mut stream(self.seed, epoch));
            self.epoch = Some(epoch);
        }
        self.shuffled[place] as usize
    }
}

/// Fisher and Yates' shuffle.
fn shuffle(items: &mut [u32], rng: &mut Xoshiro256PlusPlus) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(rng, last + 1));
    }
}

#[cfg(test)]
mod tests;
