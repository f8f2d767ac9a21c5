//! Streams and events of the driver.
//!
//! Touches the driver. Invariants: a stream holds all memory it was ever given until it has been
//! waited for. Every call is made in the stream's own context. Kernels are launched only as their
//! `plan` says.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{self, sys};

use super::{CudaDevice, CudaMemory};
use crate::device::{DeviceError, Event, HostMemory, Kernel, Number, Part, Stream};

/// A stream of a CUDA device.
pub struct CudaStream {
    device: CudaDevice,
    stream: Arc<driver::CudaStream>,
    held: Mutex<Held>,
}

/// What the work on a stream uses: few memories, each once.
#[derive(Default)]
struct Held {
    device: Vec<CudaMemory>,
    host: Vec<HostMemory>,
}

impl Held {
    fn device(&mut self, memory: &CudaMemory) {
        if !self
            .device
            .iter()
            .any(|held| held.address(0) == memory.address(0))
        {
            self.device.push(memory.clone());
        }
    }

    fn host(&mut self, memory: &HostMemory) {
        if !self.host.iter().any(|held| held.is_same(memory)) {
            self.host.push(memory.clone());
        }
    }
}

impl CudaStream {
    pub(super) fn new(device: &CudaDevice) -> Result<Self, DriverError> {
        Ok(Self {
            device: device.clone(),
            stream: device.0.context.new_stream()?,
            held: Mutex::default(),
        })
    }

    fn failed(&self, what: &str, error: DriverError) -> DeviceError {
        self.device.failed(what, error)
    }

    /// Notes what is about to be used. The guard is to be kept until the work is on the stream: a
    /// `finish` in between would let go of it.
    fn hold(&self, hold: impl FnOnce(&mut Held)) -> MutexGuard<'_, Held> {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        hold(&mut held);
        held
    }
}

impl Stream for CudaStream {
    type Memory = CudaMemory;
    type Event = CudaEvent;

    fn upload(
        &self,
        from: Part<'_, HostMemory>,
        to: Part<'_, CudaMemory>,
    ) -> Result<(), DeviceError> {
        assert_eq!(
            from.len(),
            to.len(),
            "an upload has two sides of one length"
        );
        let _held = self.hold(|held| {
            held.host(from.memory());
            held.device(to.memory());
        });
        let words = from.memory().view().slice(from.start(), from.len());
        let copy = || {
            self.stream.context().bind_to_thread()?;
            // SAFETY: both sides lie within memories that the stream holds until it was waited for;
            // racing writers decide which value of a word is read, as everywhere.
            unsafe {
                sys::cuMemcpyHtoDAsync_v2(
                    to.memory().address(to.start()),
                    words.as_ptr().cast(),
                    from.len() * 4,
                    self.stream.cu_stream(),
                )
            }
            .result()
        };
        copy().map_err(|error| self.failed("an upload", error))
    }

    fn download(
        &self,
        from: Part<'_, CudaMemory>,
        to: Part<'_, HostMemory>,
    ) -> Result<(), DeviceError> {
        assert_eq!(
            from.len(),
            to.len(),
            "a download has two sides of one length"
        );
        let _held = self.hold(|held| {
            held.device(from.memory());
            held.host(to.memory());
        });
        let words = to.memory().view().slice(to.start(), to.len());
        let copy = || {
            self.stream.context().bind_to_thread()?;
            // SAFETY: as in `upload`.
            unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    words.as_ptr().cast(),
                    from.memory().address(from.start()),
                    from.len() * 4,
                    self.stream.cu_stream(),
                )
            }
            .result()
        };
        copy().map_err(|error| self.failed("a download", error))
    }

    fn launch(
        &self,
        kernel: &'static Kernel,
        parts: &[Part<'_, CudaMemory>],
        numbers: &[Number],
    ) -> Result<(), DeviceError> {
        let lens: Vec<usize> = parts.iter().map(Part::len).collect();
        let shape = (kernel.plan)(&lens, numbers);
        let Some(function) = self.device.0.functions.get(kernel.name) else {
            return Err(DeviceError::Failed {
                device: self.device.0.name.clone(),
                why: format!("the kernel {} is not among its kernels", kernel.name),
            });
        };
        let _held = self.hold(|held| parts.iter().for_each(|part| held.device(part.memory())));
        let mut addresses: Vec<u64> = parts
            .iter()
            .map(|part| part.memory().address(part.start()))
            .collect();
        let mut words: Vec<u32> = numbers
            .iter()
            .map(|number| match *number {
                Number::U(n) => n,
                Number::F(x) => x.to_bits(),
            })
            .collect();
        let addresses = addresses
            .iter_mut()
            .map(|a| (a as *mut u64).cast::<c_void>());
        let words = words.iter_mut().map(|w| (w as *mut u32).cast::<c_void>());
        let mut arguments: Vec<*mut c_void> = addresses.chain(words).collect();
        let mut run = || {
            self.stream.context().bind_to_thread()?;
            // SAFETY: a function of a loaded module, given what its list entry says (pointers, then
            // 4-byte numbers); `plan` has checked that it stays within the parts, which the stream
            // holds.
            unsafe {
                result::launch_kernel(
                    function.0,
                    shape.grid.into(),
                    shape.block.into(),
                    0,
                    self.stream.cu_stream(),
                    &mut arguments,
                )
            }
        };
        run().map_err(|error| self.failed(kernel.name, error))
    }

    fn record(&self) -> Result<CudaEvent, DeviceError> {
        let event = self
            .stream
            .record_event(None)
            .map_err(|error| self.failed("recording an event", error))?;
        Ok(CudaEvent(Arc::new(Moment {
            device: self.device.clone(),
            event,
        })))
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        self.stream
            .wait(&event.0.event)
            .map_err(|error| self.failed("waiting for an event", error))
    }

    fn finish(&self) -> Result<(), DeviceError> {
        // Locked until the wait is over, so that memory of work put here meanwhile is not released.
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        let done = self.stream.synchronize();
        *held = Held::default();
        done.map_err(|error| self.failed("the work on a stream", error))
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Waits before the memory that its work uses is released. A failure is returned by other
        // calls.
        let _ = self.stream.synchronize();
    }
}

/// An event of the driver.
#[derive(Clone)]
pub struct CudaEvent(Arc<Moment>);

struct Moment {
    device: CudaDevice,
    event: driver::CudaEvent,
}

impl Event for CudaEvent {
    fn wait(&self) -> Result<(), DeviceError> {
        let done = self.0.event.synchronize();
        done.map_err(|error| self.0.device.failed("work before an event", error))
    }

    fn is_done(&self) -> Result<bool, DeviceError> {
        let query = || {
            self.0.event.context().bind_to_thread()?;
            self.0.event.try_is_complete()
        };
        query().map_err(|error| self.0.device.failed("work before an event", error))
    }
}
