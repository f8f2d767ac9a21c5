//! Batches on their way to a device: while one is worked on, the next one goes up, on a stream of
//! its own.
//!
//! Touches the device and two places for a batch, on both sides. Invariant: a place is written
//! again only when the batch that was there has been worked on, which its user waits for.

use std::sync::atomic::Ordering::Relaxed;

use crate::device::{Device, DeviceError, HostMemory, Memory, Stream, pinned};

/// Batches that may be there at once.
const PLACES: usize = 2;

/// Where a batch goes.
struct Place<D: Device> {
    host_images: HostMemory,
    host_labels: HostMemory,
    images: D::Memory,
    labels: D::Memory,
    /// All of it is on the device.
    there: Option<D::Event>,
}

/// Brings batches up.
pub(super) struct Feed<D: Device> {
    stream: D::Stream,
    places: [Place<D>; PLACES],
    /// Batches that were put on their way, and those that were taken.
    fed: usize,
    taken: usize,
}

impl<D: Device> Feed<D> {
    /// For batches of `batch` images of `values` values each.
    pub(super) fn new(device: &D, values: usize, batch: usize) -> Result<Self, DeviceError> {
        let place = || -> Result<_, DeviceError> {
            Ok(Place {
                host_images: pinned(device, values * batch)?,
                host_labels: pinned(device, batch)?,
                images: device.alloc(values * batch)?,
                labels: device.alloc(batch)?,
                there: None,
            })
        };
        Ok(Self {
            stream: device.stream()?,
            places: [place()?, place()?],
            fed: 0,
            taken: 0,
        })
    }

    /// Puts a batch (NCHW) on its way.
    ///
    /// # Panics
    /// If it has another size, or one is worked on and another one has come.
    pub(super) fn put(&mut self, images: &[f32], labels: &[u32]) -> Result<(), DeviceError> {
        assert!(
            self.fed < self.taken + PLACES - usize::from(self.taken > 0),
            "a batch is fed while one is worked on"
        );
        let place = &mut self.places[self.fed % PLACES];
        place.load(images, labels);
        let stream = &self.stream;
        stream.upload(place.host_images.all(), place.images.all())?;
        stream.upload(place.host_labels.all(), place.labels.all())?;
        place.there = Some(stream.record()?);
        self.fed += 1;
        Ok(())
    }

    /// Takes the next batch: what is put on `stream` from now on finds it. The one before has been
    /// worked on.
    ///
    /// # Panics
    /// If none was put on its way.
    pub(super) fn take(&mut self, stream: &D::Stream) -> Result<(), DeviceError> {
        assert!(self.taken < self.fed, "a batch is fed before it is used");
        self.taken += 1;
        match &self.now().there {
            Some(there) => stream.wait(there),
            None => Ok(()),
        }
    }

    /// The images of the batch that is worked on: `[value][image]`.
    pub(super) fn images(&self) -> &D::Memory {
        &self.now().images
    }

    /// Its labels.
    pub(super) fn labels(&self) -> &D::Memory {
        &self.now().labels
    }

    fn now(&self) -> &Place<D> {
        &self.places[(self.taken + PLACES - 1) % PLACES]
    }
}

impl<D: Device> Place<D> {
    /// Images and labels into the memory that goes up, images innermost.
    fn load(&self, images: &[f32], labels: &[u32]) {
        let (n, to) = (self.labels.len(), self.host_images.view());
        let given = (labels.len(), images.len());
        assert_eq!(given, (n, to.len()), "a batch of the net's size");
        let values = images.len() / n;
        for (i, image) in images.chunks_exact(values).enumerate() {
            for (at, &value) in image.iter().enumerate() {
                to.store(at * n + i, value);
            }
        }
        for (i, &label) in labels.iter().enumerate() {
            self.host_labels.view().word(i).store(label, Relaxed);
        }
    }
}
