//! The functions of NVIDIA's driver that are used, found in `libcuda.so.1` when first asked for.
//!
//! Touches that library. Declared by cuda.h of CUDA 11.8, whose names every later driver keeps.
//! Invariant: a result is a number and no enum of Rust: a newer driver may return numbers that an
//! enum does not list, which would be undefined behaviour.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

use libloading::Library;

use crate::device::DeviceError;

/// A context, stream, event, module or function of the driver.
pub(super) type Handle = *mut c_void;
/// An address in a GPU's memory.
pub(super) type Address = u64;

/// Results that something is done about.
pub(super) mod code {
    pub(in super::super) const OUT_OF_MEMORY: u32 = 2;
    pub(in super::super) const STUB_LIBRARY: u32 = 34;
    pub(in super::super) const NO_DEVICE: u32 = 100;
    pub(in super::super) const NOT_READY: u32 = 600;
    pub(in super::super) const SYSTEM_NOT_READY: u32 = 802;
    pub(in super::super) const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub(in super::super) const COMPAT_NOT_SUPPORTED: u32 = 804;
    pub(in super::super) const UNKNOWN: u32 = 999;
}

/// Waiting threads sleep: `CU_CTX_SCHED_BLOCKING_SYNC`.
pub(super) const SCHED_BLOCKING_SYNC: c_uint = 4;
/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_BLOCKING_NO_TIMING: c_uint = 1 | 2;
/// Work does not wait for that of the default stream: `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// For all contexts: `CU_MEMHOSTREGISTER_PORTABLE`.
pub(super) const REGISTER_PORTABLE: c_uint = 1;
/// `CU_JIT_ERROR_LOG_BUFFER` and its size in bytes.
pub(super) const JIT_ERROR_LOG: [c_uint; 2] = [5, 6];
/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `..._PCI_BUS_ID` and `..._PCI_DEVICE_ID`.
pub(super) const PCI_PLACE: [c_int; 3] = [50, 33, 34];

/// What the driver takes and gives where a type of its own is passed.
pub(super) type Bytes16 = [u8; 16];
pub(super) type IpcHandle = [u8; 64];

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions, by what they do.
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            /// The functions are in it.
            _library: Library,
        }

        impl Driver {
            /// Finds all of them. A name that is not there is given back.
            fn of(library: Library) -> Result<Self, &'static str> {
                // SAFETY: each is declared as cuda.h does; they live as long as the library.
                unsafe {
                    Ok(Self {
                        $($name: *library.get($symbol).map_err(|_| $symbol)?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (u32, *mut *const c_char);
    error_string = "cuGetErrorString" (u32, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid" (*mut Bytes16, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_flags = "cuDevicePrimaryCtxSetFlags_v2" (c_int, c_uint);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_bind = "cuCtxSetCurrent" (Handle);
    context_synchronize = "cuCtxSynchronize" ();
    module_load = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *const c_uint, *const Handle);
    module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    alloc = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    fill = "cuMemsetD8_v2" (Address, u8, usize);
    ipc_handle = "cuIpcGetMemHandle" (*mut IpcHandle, Address);
    register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister" (*mut c_void);
    upload = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
    download = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    stream_create = "cuStreamCreate" (*mut Handle, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    stream_synchronize = "cuStreamSynchronize" (Handle);
    stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_destroy = "cuEventDestroy_v2" (Handle);
    event_record = "cuEventRecord" (Handle, Handle);
    event_synchronize = "cuEventSynchronize" (Handle);
    event_query = "cuEventQuery" (Handle);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *const Handle, *const Handle
    );
}

/// A result that is no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CudaError(pub(super) u32);

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Ok(driver)) = LOADED.get() else {
            return write!(f, "CUDA error {}", self.0);
        };
        match (
            driver.text(driver.error_name, self.0),
            driver.text(driver.error_string, self.0),
        ) {
            (Some(name), Some(text)) => write!(f, "{name} ({}): {text}", self.0),
            _ => write!(f, "CUDA error {}, which this driver does not name", self.0),
        }
    }
}

/// The result of a call.
pub(super) fn done(result: u32) -> Result<(), CudaError> {
    match result {
        0 => Ok(()),
        other => Err(CudaError(other)),
    }
}

static LOADED: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();

/// What to do about a missing driver.
pub(super) const GET_DRIVER: &str = "install NVIDIA's driver (Debian: apt install nvidia-driver libcuda1) and see that `nvidia-smi` \
     lists the GPU; in a container, start it with `--gpus all`; the host's own device works without";

impl Driver {
    /// The driver, loaded and started.
    ///
    /// # Errors
    /// [`DeviceError::Missing`]: it is not here, or does not start, and why.
    pub(super) fn get() -> Result<&'static Self, DeviceError> {
        let driver = LOADED.get_or_init(Self::load).as_ref();
        let driver = driver.map_err(Clone::clone)?;
        // SAFETY: a call without conditions; each later one does nothing.
        done(unsafe { (driver.init)(0) }).map_err(|error| DeviceError::Missing {
            what: does_not_start(error),
            how: GET_DRIVER,
        })?;
        Ok(driver)
    }

    fn load() -> Result<Self, DeviceError> {
        let missing = |what: String| DeviceError::Missing {
            what,
            how: GET_DRIVER,
        };
        // SAFETY: it only loads the library, whose initialisers are NVIDIA's.
        let library = unsafe { Library::new("libcuda.so.1") };
        let library = library.map_err(|error| {
            missing(format!(
                "CUDA needs NVIDIA's driver (libcuda.so.1), which is not here ({error})"
            ))
        })?;
        Self::of(library).map_err(|name| {
            missing(format!(
                "NVIDIA's driver is too old: libcuda.so.1 has no {name}; 520 (CUDA 11.8) or newer is needed"
            ))
        })
    }

    /// A text that the driver has for a result.
    fn text(
        &self,
        of: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
        result: u32,
    ) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: a place for the address of a text that is never freed.
        let known = unsafe { of(result, &mut text) } == 0 && !text.is_null();
        if !known {
            return None;
        }
        // SAFETY: as above, and it ends with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }

    /// The CUDA version that the driver is for, as `12.4`.
    pub(super) fn version(&self) -> String {
        let mut version = 0;
        // SAFETY: a place for a number.
        match done(unsafe { (self.driver_version)(&mut version) }) {
            Ok(()) => format!("{}.{}", version / 1000, version % 1000 / 10),
            Err(_) => "unknown".into(),
        }
    }
}

/// Why the driver does not start.
fn does_not_start(error: CudaError) -> String {
    let why = match error.0 {
        code::NO_DEVICE => return "NVIDIA's driver is here, but finds no GPU".into(),
        code::STUB_LIBRARY => {
            "libcuda.so.1 is the stub for linking and no driver: take its folder off LD_LIBRARY_PATH"
        }
        code::SYSTEM_NOT_READY => {
            "the system is not ready: on machines with NVSwitch, start nvidia-fabricmanager"
        }
        code::SYSTEM_DRIVER_MISMATCH => {
            "libcuda.so.1 is of another version than the driver in the kernel: load the new one (reboot)"
        }
        code::COMPAT_NOT_SUPPORTED => {
            "libcuda.so.1 is that of a compatibility package, which this GPU does not take: take it off \
             LD_LIBRARY_PATH"
        }
        code::UNKNOWN => {
            "the driver gives no reason: see `dmesg`; after a suspend, load the module nvidia_uvm again"
        }
        _ => "see `dmesg`",
    };
    format!("NVIDIA's driver is here, but does not start: {error}; {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also numbers that no driver had when this was written.
    #[test]
    fn each_result_is_told() {
        assert_eq!(done(0), Ok(()));
        for (number, part) in [
            (100, "finds no GPU"),
            (34, "stub"),
            (802, "fabricmanager"),
            (803, "another version"),
            (804, "compatibility"),
            (999, "dmesg"),
            (123_456, "123456"),
        ] {
            let said = does_not_start(done(number).expect_err("no success"));
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
