//! The GPUs of this host, and the primary context of one.
//!
//! Touches the driver. Invariants: a context is released after all that was made in it. GPUs are
//! numbered as `nvidia-smi` does, by their place on the PCI bus.

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use super::driver::{
    Bytes16, CudaError, Driver, Handle, JIT_ERROR_LOG, PCI_PLACE, SCHED_BLOCKING_SYNC, done,
};

/// A GPU of this host.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    /// Its number for the driver.
    ordinal: c_int,
    pub(super) name: String,
}

impl Gpu {
    /// Whether that is its number for the driver.
    pub(super) fn has_ordinal(&self, ordinal: usize) -> bool {
        usize::try_from(self.ordinal) == Ok(ordinal)
    }
}

/// All GPUs that the driver lists.
pub(super) fn gpus(driver: &Driver) -> Result<Vec<Gpu>, CudaError> {
    let mut count = 0;
    // SAFETY: a place for a number.
    done(unsafe { (driver.device_count)(&mut count) })?;
    let mut gpus = Vec::new();
    for index in 0..count {
        let mut ordinal = 0;
        // SAFETY: as above, of an index below the count.
        done(unsafe { (driver.device)(&mut ordinal, index) })?;
        let name = name(driver, ordinal)?;
        gpus.push((place(driver, ordinal), Gpu { ordinal, name }));
    }
    // A user who has chosen an order has the driver's.
    if std::env::var_os("CUDA_DEVICE_ORDER").is_none() {
        gpus.sort_by_key(|(place, _)| *place);
    }
    Ok(gpus.into_iter().map(|(_, gpu)| gpu).collect())
}

fn name(driver: &Driver, ordinal: c_int) -> Result<String, CudaError> {
    let mut text = [0; 256];
    // SAFETY: a place for so many bytes, the last of which the driver makes a zero.
    done(unsafe { (driver.device_name)(text.as_mut_ptr(), 256, ordinal) })?;
    text[255] = 0;
    // SAFETY: it ends with a zero.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

/// Domain, bus and device; what is not told counts as 0.
fn place(driver: &Driver, ordinal: c_int) -> [c_int; 3] {
    PCI_PLACE.map(|attribute| {
        let mut value = 0;
        // SAFETY: a place for a number.
        let told = done(unsafe { (driver.device_attribute)(&mut value, attribute, ordinal) });
        told.map_or(0, |()| value)
    })
}

/// The primary context of a GPU: that of all libraries in this process.
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    ordinal: c_int,
    handle: Handle,
}

// SAFETY: a handle of the driver, which any thread may use.
unsafe impl Send for Context {}
// SAFETY: as above; it is never written.
unsafe impl Sync for Context {}

impl Context {
    /// The context, in which threads that wait for the GPU sleep.
    pub(super) fn new(driver: &'static Driver, gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        // Threads that wait sleep, and leave the core to solvers. Another library may have made the
        // context already, and then its choice stays.
        // SAFETY: of a GPU that the driver lists.
        let _ = unsafe { (driver.context_flags)(gpu.ordinal, SCHED_BLOCKING_SYNC) };
        Self::of_all(driver, gpu)
    }

    /// The context as it is, or is made by default.
    pub(super) fn of_all(driver: &'static Driver, gpu: &Gpu) -> Result<Arc<Self>, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for a handle.
        done(unsafe { (driver.context_retain)(&mut handle, gpu.ordinal) })?;
        Ok(Arc::new(Self {
            driver,
            ordinal: gpu.ordinal,
            handle,
        }))
    }

    /// Makes it the context of this thread's calls.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: retained until this is dropped.
        done(unsafe { (self.driver.context_bind)(self.handle) })
    }

    /// Waits for all work of the context.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: a context is current.
        done(unsafe { (self.driver.context_synchronize)() })
    }

    pub(super) fn uuid(&self) -> Result<Bytes16, CudaError> {
        let mut uuid = [0; 16];
        // SAFETY: a place for 16 bytes.
        done(unsafe { (self.driver.device_uuid)(&mut uuid, self.ordinal) })?;
        Ok(uuid)
    }

    /// Loads PTX, which the driver compiles for this GPU. It stays loaded as long as the context.
    ///
    /// # Errors
    /// What the driver's compiler says.
    pub(super) fn load(&self, ptx: &str) -> Result<Handle, String> {
        self.bind().map_err(|error| error.to_string())?;
        let text = CString::new(ptx).map_err(|error| error.to_string())?;
        let mut log = [0u8; 4096];
        let values = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len()),
        ];
        let mut module = std::ptr::null_mut();
        // SAFETY: text that ends with a zero; two options with a value each, as cuda.h describes.
        let result = done(unsafe {
            let options = JIT_ERROR_LOG.as_ptr();
            let text = text.as_ptr().cast();
            (self.driver.module_load)(&mut module, text, 2, options, values.as_ptr())
        });
        let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
        let said = String::from_utf8_lossy(said);
        result.map_err(|error| format!("{error}: {}", said.trim()))?;
        Ok(module)
    }

    /// The function `name` of a module that was loaded here.
    pub(super) fn function(&self, module: Handle, name: &str) -> Result<Handle, CudaError> {
        let name = CString::new(name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: a module of this context, which is current, and a text.
        done(unsafe { (self.driver.module_function)(&mut function, module, name.as_ptr()) })?;
        Ok(function)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once.
        let _ = unsafe { (self.driver.context_release)(self.ordinal) };
    }
}
