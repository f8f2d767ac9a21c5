//! Streams and events of the driver.
//!
//! Touches the driver. Invariants: a stream holds all memory it was ever given until it has been
//! waited for. Every call is made in the stream's own context. Kernels are launched only as their
//! `plan` says.

mod products;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::blas::Blas;
use super::context::Context;
use super::driver::{
    CudaError, Driver, EVENT_BLOCKING_NO_TIMING, Handle, STREAM_NON_BLOCKING, code, done,
};
use super::{CudaDevice, CudaMemory};
use crate::device::kernels::PRODUCT;
use crate::device::{DeviceError, Event, HostMemory, Kernel, Memory, Number, Part, Shape, Stream};

/// A stream of a CUDA device.
pub struct CudaStream {
    device: CudaDevice,
    handle: Handle,
    held: Mutex<Held>,
    /// What multiplies, once something was multiplied; none: the own kernel.
    blas: Mutex<Option<Option<Blas>>>,
}

// SAFETY: a handle of the driver, which any thread may use.
unsafe impl Send for CudaStream {}
// SAFETY: as above; it is never written.
unsafe impl Sync for CudaStream {}

/// What the work on a stream uses: few memories, each once.
#[derive(Default)]
struct Held {
    device: Vec<CudaMemory>,
    host: Vec<HostMemory>,
}

impl Held {
    fn device(&mut self, memory: &CudaMemory) {
        let same = |held: &CudaMemory| held.address() == memory.address();
        if !self.device.iter().any(same) {
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
    pub(super) fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        let context = device.context();
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for a handle; the context is current.
        done(unsafe { (context.driver.stream_create)(&mut handle, STREAM_NON_BLOCKING) })?;
        Ok(Self {
            device: device.clone(),
            handle,
            held: Mutex::default(),
            blas: Mutex::default(),
        })
    }

    fn failed(&self, what: &str, error: CudaError) -> DeviceError {
        self.device.failed(what, error)
    }

    /// Notes what is about to be used. The guard is to be kept until the work is on the stream: a
    /// `finish` in between would let go of it.
    fn hold(&self, hold: impl FnOnce(&mut Held)) -> MutexGuard<'_, Held> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        hold(&mut held);
        held
    }

    /// Makes a call in the context of this stream.
    fn call(&self, what: &str, call: impl FnOnce(&Driver) -> u32) -> Result<(), DeviceError> {
        let context = self.device.context();
        let made = context.bind().and_then(|()| done(call(context.driver)));
        made.map_err(|error| self.failed(what, error))
    }

    /// Puts a kernel on the stream.
    fn launch_own(
        &self,
        kernel: &'static Kernel,
        shape: Shape,
        parts: &[Part<'_, CudaMemory>],
        numbers: &[Number],
    ) -> Result<(), DeviceError> {
        let function = self.device.function(kernel)?;
        let _held = self.hold(|held| parts.iter().for_each(|part| held.device(part.memory())));
        let addresses = parts.iter();
        let mut addresses: Vec<u64> = addresses
            .map(|part| part.memory().address_of(part.start()))
            .collect();
        let words = numbers.iter().map(|number| match *number {
            Number::U(n) => n,
            Number::F(x) => x.to_bits(),
        });
        let mut words: Vec<u32> = words.collect();
        let addresses = addresses
            .iter_mut()
            .map(|a| (a as *mut u64).cast::<c_void>());
        let words = words.iter_mut().map(|w| (w as *mut u32).cast::<c_void>());
        let arguments: Vec<Handle> = addresses.chain(words).collect();
        let ([x, y, z], [tx, ty, tz]) = (shape.grid, shape.block);
        let (arguments, none) = (arguments.as_ptr(), std::ptr::null());
        // SAFETY: a function of a loaded module, given what its list entry says (pointers, then
        // 4-byte numbers); `plan` has checked that it stays within the parts, which the stream
        // holds.
        self.call(kernel.name, |driver| unsafe {
            (driver.launch)(
                function,
                x,
                y,
                z,
                tx,
                ty,
                tz,
                0,
                self.handle,
                arguments,
                none,
            )
        })
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
        let (one, other) = (from.len(), to.len());
        assert_eq!(one, other, "an upload has two sides of one length");
        let _held = self.hold(|held| {
            held.host(from.memory());
            held.device(to.memory());
        });
        let words = from.memory().view().slice(from.start(), from.len());
        let (at, to) = (words.as_ptr().cast(), to.memory().address_of(to.start()));
        // SAFETY: both sides lie within memories that the stream holds until it was waited for;
        // racing writers decide which value of a word is read, as everywhere.
        self.call("an upload", |driver| unsafe {
            (driver.upload)(to, at, one * 4, self.handle)
        })
    }

    fn download(
        &self,
        from: Part<'_, CudaMemory>,
        to: Part<'_, HostMemory>,
    ) -> Result<(), DeviceError> {
        let (one, other) = (from.len(), to.len());
        assert_eq!(one, other, "a download has two sides of one length");
        let _held = self.hold(|held| {
            held.device(from.memory());
            held.host(to.memory());
        });
        let words = to.memory().view().slice(to.start(), to.len());
        let (at, from) = (
            words.as_ptr().cast(),
            from.memory().address_of(from.start()),
        );
        // SAFETY: as in `upload`.
        self.call("a download", |driver| unsafe {
            (driver.download)(at, from, one * 4, self.handle)
        })
    }

    fn launch(
        &self,
        kernel: &'static Kernel,
        parts: &[Part<'_, CudaMemory>],
        numbers: &[Number],
    ) -> Result<(), DeviceError> {
        let lens: Vec<usize> = parts.iter().map(Part::len).collect();
        let shape = (kernel.plan)(&lens, numbers);
        if kernel.name == PRODUCT.name && self.multiply(parts, numbers)? {
            return Ok(());
        }
        self.launch_own(kernel, shape, parts, numbers)
    }

    fn record(&self) -> Result<CudaEvent, DeviceError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        self.call("making an event", |driver| unsafe {
            (driver.event_create)(&mut handle, EVENT_BLOCKING_NO_TIMING)
        })?;
        let event = CudaEvent(Arc::new(Moment {
            device: self.device.clone(),
            handle,
        }));
        // SAFETY: an event and a stream of one context.
        self.call("recording an event", |driver| unsafe {
            (driver.event_record)(handle, self.handle)
        })?;
        Ok(event)
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        // SAFETY: an event that lives, and this stream.
        self.call("waiting for an event", |driver| unsafe {
            (driver.stream_wait)(self.handle, event.0.handle, 0)
        })
    }

    fn handle(&self) -> Option<usize> {
        Some(self.handle.expose_provenance())
    }

    fn finish(&self) -> Result<(), DeviceError> {
        // Locked until the wait is over, so that memory of work put here meanwhile is not released.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a stream that lives.
        let finished = self.call("the work on a stream", |driver| unsafe {
            (driver.stream_synchronize)(self.handle)
        });
        *held = Held::default();
        finished
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Waits before the memory that its work uses is released. A failure is returned by other
        // calls.
        let _ = self.finish();
        // The library goes before the stream that it was given.
        let _ = self.device.context().bind();
        let blas = self.blas.get_mut().unwrap_or_else(PoisonError::into_inner);
        *blas = None;
        // SAFETY: made once; nothing is on it any more.
        let _ = self.call("the end of a stream", |driver| unsafe {
            (driver.stream_destroy)(self.handle)
        });
    }
}

/// An event of the driver.
#[derive(Clone)]
pub struct CudaEvent(Arc<Moment>);

struct Moment {
    device: CudaDevice,
    handle: Handle,
}

// SAFETY: a handle of the driver, which any thread may use.
unsafe impl Send for Moment {}
// SAFETY: as above; it is never written.
unsafe impl Sync for Moment {}

impl Moment {
    fn context(&self) -> &Context {
        self.device.context()
    }

    fn call(&self, call: impl FnOnce(&Driver) -> u32) -> Result<(), CudaError> {
        self.context().bind()?;
        done(call(self.context().driver))
    }

    fn failed(&self, error: CudaError) -> DeviceError {
        self.device.failed("work before an event", error)
    }
}

impl Event for CudaEvent {
    fn wait(&self) -> Result<(), DeviceError> {
        let event = &self.0;
        // SAFETY: an event that lives.
        let done = event.call(|driver| unsafe { (driver.event_synchronize)(event.handle) });
        done.map_err(|error| event.failed(error))
    }

    fn is_done(&self) -> Result<bool, DeviceError> {
        let event = &self.0;
        // SAFETY: an event that lives.
        match event.call(|driver| unsafe { (driver.event_query)(event.handle) }) {
            Ok(()) => Ok(true),
            Err(CudaError(code::NOT_READY)) => Ok(false),
            Err(error) => Err(event.failed(error)),
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // SAFETY: made once. The driver frees it once what it stands for is done.
        let _ = self.call(|driver| unsafe { (driver.event_destroy)(self.handle) });
    }
}
