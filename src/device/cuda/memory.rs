//! Memory of a GPU, and registering host memory with the driver.
//!
//! Touches the driver. Invariant: what is allocated or registered here is freed once, in its
//! context, after the last user (streams hold what they use).

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::driver::{Address, CudaError, REGISTER_PORTABLE, code, done};
use crate::device::{Memory, SharedHandle};
use crate::weights::WeightsView;

/// Memory of a CUDA device.
#[derive(Clone)]
pub struct CudaMemory(Arc<Allocation>);

struct Allocation {
    context: Arc<Context>,
    address: Address,
    words: usize,
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "CudaMemory({} words)", self.0.words)
    }
}

impl CudaMemory {
    pub(super) fn zeroed(context: &Arc<Context>, words: usize) -> Result<Self, CudaError> {
        context.bind()?;
        let bytes = words.checked_mul(4).ok_or(CudaError(code::OUT_OF_MEMORY))?;
        let bytes = bytes.max(4);
        let mut address = 0;
        // SAFETY: a place for an address; the context is current. cuMemAlloc, not a pool: only its
        // memory can be shared by IPC.
        done(unsafe { (context.driver.alloc)(&mut address, bytes) })?;
        let memory = Self(Arc::new(Allocation {
            context: context.clone(),
            address,
            words,
        }));
        // SAFETY: all of the memory just allocated.
        done(unsafe { (context.driver.fill)(address, 0, bytes) })?;
        // The memset runs on the default stream, for which ours do not wait.
        context.synchronize()?;
        Ok(memory)
    }

    /// The address of word `start` on the device.
    pub(super) fn address_of(&self, start: usize) -> Address {
        self.0.address + 4 * start as u64
    }

    pub(super) fn share(&self) -> Result<SharedHandle, CudaError> {
        let context = &self.0.context;
        context.bind()?;
        let mut handle = [0; 64];
        // SAFETY: a live allocation of cuMemAlloc, and a place for the handle.
        done(unsafe { (context.driver.ipc_handle)(&mut handle, self.0.address) })?;
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        Ok(SharedHandle {
            handle: hex(&handle),
            device_uuid: hex(&context.uuid()?),
            words: self.0.words,
        })
    }
}

impl Memory for CudaMemory {
    fn len(&self) -> usize {
        self.0.words
    }

    fn address(&self) -> u64 {
        self.0.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A context that has failed frees its memory itself when it goes.
        if self.context.bind().is_ok() {
            // SAFETY: allocated once, in this context; every stream that uses it holds it.
            let _ = unsafe { (self.context.driver.free)(self.address) };
        }
    }
}

/// How many [`Registered`] there are of the words at an address: the driver knows them once.
static REGISTERED: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

fn registered() -> MutexGuard<'static, Option<HashMap<usize, usize>>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Host memory that is registered with the driver until the last of its kind is dropped.
struct Registered {
    context: Arc<Context>,
    at: *mut c_void,
}

// SAFETY: only the address is kept, for the driver, which may be called from any thread.
unsafe impl Send for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut registered = registered();
        let uses = registered.get_or_insert_default();
        let Some(left) = uses.get_mut(&self.at.addr()) else {
            return;
        };
        *left -= 1;
        if *left > 0 {
            return;
        }
        uses.remove(&self.at.addr());
        if self.context.bind().is_ok() {
            // SAFETY: registered once, by `register`, and still mapped: the owner is dropped after
            // this.
            let _ = unsafe { (self.context.driver.unregister)(self.at) };
        }
    }
}

/// Registers host memory for all contexts; undone when the last result for it is dropped.
///
/// # Errors
/// The driver refuses. Copies are correct without, but slower.
pub(super) fn register(
    context: &Arc<Context>,
    words: WeightsView<'_>,
) -> Result<Box<dyn Any + Send>, CudaError> {
    if words.is_empty() {
        return Ok(Box::new(()));
    }
    let (at, bytes) = (words.as_ptr().cast::<c_void>(), words.len() * 4);
    // Locked meanwhile: another thread may be about to register or release the same words.
    let mut registered = registered();
    let uses = registered.get_or_insert_default();
    if !uses.contains_key(&at.addr()) {
        context.bind()?;
        // SAFETY: a valid range, which its owner keeps until after the result is dropped.
        done(unsafe { (context.driver.register)(at, bytes, REGISTER_PORTABLE) })?;
    }
    *uses.entry(at.addr()).or_default() += 1;
    Ok(Box::new(Registered {
        context: context.clone(),
        at,
    }))
}
