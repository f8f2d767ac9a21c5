//! Devices with a memory of their own: what a GPU can do, as a trait, and its implementations.
//!
//! Holds [`Device`], [`Stream`] and [`Event`], memory of both sides ([`HostMemory`], [`Part`]), the
//! [`kernels`] by name, and [`Which`], how a device is named. The implementations are [`host`]
//! (threads and memcpy, on any machine) and, with the feature `cuda`, [`cuda`]. Touches memory,
//! threads and the driver; knows no solver, no network, no clock.
//!
//! Invariants:
//! - Everything put on a stream happens in that order, later, and never before the call that put it
//!   there. Streams wait for each other only through events. An event exists only once it is
//!   recorded, so streams cannot wait for each other in a circle.
//! - What is on a stream keeps the memory it uses alive (`Arc`s), so none of this needs `unsafe`
//!   from a caller.
//! - Memory is 32-bit words that others may change at any time
//!   ([`WeightsView`](crate::weights::WeightsView)): a race decides what is read, never whether the
//!   program is sound. A caller that needs a definite result orders by events.
//! - After an error of a stream everything later on it, and on streams that wait for it, fails too.
#![allow(unsafe_code)]

#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod host;
mod kernel;
pub mod kernels;
mod memory;
pub(crate) mod product;
mod which;

pub use error::DeviceError;
pub use kernel::{Kernel, Number, Shape};
pub use memory::{HostMemory, Memory, Part};
pub use which::Which;

/// Pins host memory if the driver can: without it copies are correct, and slower.
pub fn pin<D: Device>(device: &D, memory: &HostMemory) {
    if let Err(error) = device.pin(memory) {
        log::warn!(
            "copies of {} MB will be slow: {error}; raise the limit of locked memory (ulimit -l)",
            (4 * memory.len()).div_ceil(1_000_000)
        );
    }
}

/// New words of the host, all zero, pinned if the driver can.
///
/// # Errors
/// No memory.
pub fn pinned<D: Device>(device: &D, words: usize) -> Result<HostMemory, DeviceError> {
    let memory = HostMemory::zeroed(words).map_err(|error| DeviceError::NoMemory {
        device: "the host".to_owned(),
        bytes: words.saturating_mul(4),
        why: error.to_string(),
    })?;
    pin(device, &memory);
    Ok(memory)
}

/// A device, or one of several logical ones on the same hardware. Clones are the same device.
pub trait Device: Clone + Send + Sync + 'static {
    /// Its memory: 32-bit words. Clones are the same memory, which is freed with the last of them
    /// and of the work that uses it.
    type Memory: Memory;
    /// What work is put on.
    type Stream: Stream<Memory = Self::Memory, Event = Self::Event>;
    /// A moment on a stream.
    type Event: Event;

    /// What it is, for messages: `host device 0`, `cuda device 1 (NVIDIA H100 ...)`.
    fn name(&self) -> String;

    /// `words` words of device memory, all zero.
    ///
    /// # Errors
    /// The device has no memory for them, or has failed.
    fn alloc(&self, words: usize) -> Result<Self::Memory, DeviceError>;

    /// A new stream. It runs in parallel with all others.
    ///
    /// # Errors
    /// The system gives no thread, or the driver refuses.
    fn stream(&self) -> Result<Self::Stream, DeviceError>;

    /// Makes host memory known to the device (CUDA: registers it as pinned), so that copies of it
    /// run in parallel with everything else. Without it copies are correct but slower, and the call
    /// that starts one may wait for it. Once is enough for all devices; the memory stays known
    /// until its last clone is gone.
    ///
    /// # Errors
    /// The driver refuses (`ulimit -l`, or a kind of memory it cannot pin).
    fn pin(&self, memory: &HostMemory) -> Result<(), DeviceError>;

    /// A handle by which another process can open `memory`.
    ///
    /// # Errors
    /// [`DeviceError::NotShared`]: a device of this kind cannot do that; or the driver refuses.
    fn share(&self, memory: &Self::Memory) -> Result<SharedHandle, DeviceError>;
}

/// What another process needs to use device memory in place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SharedHandle {
    /// The bytes of CUDA's `CUipcMemHandle`, in hexadecimal.
    pub handle: String,
    /// The GPU's UUID, in hexadecimal: handles open on that GPU only.
    pub device_uuid: String,
    /// Length of the memory, in 32-bit words.
    pub words: usize,
}

/// A queue of work on a device. Dropping it waits for what is on it.
pub trait Stream: Send + Sync {
    /// The device's memory.
    type Memory: Memory;
    /// The device's events.
    type Event: Event;

    /// Copies host words to the device.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If the two differ in length.
    fn upload(
        &self,
        from: Part<'_, HostMemory>,
        to: Part<'_, Self::Memory>,
    ) -> Result<(), DeviceError>;

    /// Copies device words to the host. They are there once an event recorded later is done.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If the two differ in length.
    fn download(
        &self,
        from: Part<'_, Self::Memory>,
        to: Part<'_, HostMemory>,
    ) -> Result<(), DeviceError>;

    /// Runs a kernel. [`kernels`] has a function for each, with names for its arguments.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// If parts or numbers do not fit the kernel.
    fn launch(
        &self,
        kernel: &'static Kernel,
        parts: &[Part<'_, Self::Memory>],
        numbers: &[Number],
    ) -> Result<(), DeviceError>;

    /// An event that is done once everything put here so far is.
    ///
    /// # Errors
    /// The device has failed.
    fn record(&self) -> Result<Self::Event, DeviceError>;

    /// Lets what is put here later wait for `event`, of this or another stream; the caller does not
    /// wait.
    ///
    /// # Errors
    /// The device has failed.
    fn wait(&self, event: &Self::Event) -> Result<(), DeviceError>;

    /// The stream as the driver knows it (CUDA: a `CUstream`), for a library of this process that
    /// works on the same device. It holds as long as the stream exists. `None`: the device has no
    /// driver.
    fn handle(&self) -> Option<usize> {
        None
    }

    /// Waits until everything put here is done.
    ///
    /// # Errors
    /// Some of it failed.
    fn finish(&self) -> Result<(), DeviceError> {
        self.record()?.wait()
    }
}

/// A moment on a stream. Clones are the same moment.
pub trait Event: Clone + Send + Sync + 'static {
    /// Waits for it.
    ///
    /// # Errors
    /// Something before it on its stream failed.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Whether it has come.
    ///
    /// # Errors
    /// Something before it on its stream failed.
    fn is_done(&self) -> Result<bool, DeviceError>;
}

#[cfg(test)]
mod tests;
