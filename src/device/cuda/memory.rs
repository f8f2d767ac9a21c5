//! Memory of a GPU, and registering host memory with the driver.
//!
//! Touches the driver. Invariant: what is allocated or registered here is freed once, in its
//! context, after the last user (streams hold what they use).

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

use crate::device::{Memory, SharedHandle};
use crate::weights::WeightsView;

/// Memory of a CUDA device.
#[derive(Clone)]
pub struct CudaMemory(Arc<Allocation>);

struct Allocation {
    context: Arc<CudaContext>,
    ptr: sys::CUdeviceptr,
    words: usize,
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "CudaMemory({} words)", self.0.words)
    }
}

impl CudaMemory {
    pub(super) fn zeroed(context: &Arc<CudaContext>, words: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let bytes = words
            .checked_mul(4)
            .ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?
            .max(4);
        // SAFETY: the context is current. cuMemAlloc, not a pool: only its memory can be shared by
        // IPC.
        let ptr = unsafe { result::malloc_sync(bytes) }?;
        let memory = Self(Arc::new(Allocation {
            context: context.clone(),
            ptr,
            words,
        }));
        // SAFETY: all of the memory just allocated.
        unsafe { result::memset_d8_sync(ptr, 0, bytes) }?;
        // The memset runs on the default stream, for which ours do not wait.
        context.synchronize()?;
        Ok(memory)
    }

    /// The address of word `start` on the device.
    pub(super) fn address(&self, start: usize) -> sys::CUdeviceptr {
        self.0.ptr + 4 * start as u64
    }

    pub(super) fn share(&self) -> Result<SharedHandle, DriverError> {
        self.0.context.bind_to_thread()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: a live allocation of cuMemAlloc, and a place for the handle.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, self.0.ptr) }.result()?;
        let uuid = self.0.context.uuid()?;
        let hex = |bytes: &[std::ffi::c_char]| -> String {
            bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect()
        };
        Ok(SharedHandle {
            handle: hex(&handle.reserved),
            device_uuid: hex(&uuid.bytes),
            words: self.0.words,
        })
    }
}

impl Memory for CudaMemory {
    fn len(&self) -> usize {
        self.0.words
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A context that has failed frees its memory itself when it goes.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated once, in this context; every stream that uses it holds it.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Host memory that is registered with the driver until this is dropped.
struct Registered {
    context: Arc<CudaContext>,
    ptr: *mut c_void,
}

// SAFETY: only the address is kept, for the driver, which may be called from any thread.
unsafe impl Send for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: registered once, by `register`, and still mapped: the owner is dropped after
            // this.
            let _ = unsafe { sys::cuMemHostUnregister(self.ptr) }.result();
        }
    }
}

/// Registers host memory for all contexts; undone when the result is dropped.
pub(super) fn register(
    context: &Arc<CudaContext>,
    words: WeightsView<'_>,
) -> Result<Box<dyn Any + Send>, DriverError> {
    context.bind_to_thread()?;
    if words.is_empty() {
        return Ok(Box::new(()));
    }
    let (ptr, bytes) = (words.as_ptr().cast::<c_void>(), words.len() * 4);
    // SAFETY: a valid range, which its owner keeps until after the result is dropped.
    let done = unsafe { sys::cuMemHostRegister_v2(ptr, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
    match done.result() {
        Ok(()) => Ok(Box::new(Registered {
            context: context.clone(),
            ptr,
        })),
        // By another `HostMemory` over the same words, which will unregister it.
        Err(DriverError(sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)) => {
            Ok(Box::new(()))
        }
        Err(error) => Err(error),
    }
}
