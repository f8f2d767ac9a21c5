//! CUDA devices: the driver and NVRTC, both looked for at run time.
//!
//! Touches the driver through `cudarc`. Several logical devices may be one GPU: they share its
//! context. Invariants: nothing of `cudarc` is called before [`present`] found the libraries (it
//! panics without them). Every stream and event is used in the context it was made in. A stream
//! holds the memory that its work uses until that work is known to be done.

mod compile;
mod memory;
mod stream;

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

use super::{Device, DeviceError, HostMemory, SharedHandle, kernels};

pub use compile::compile;
pub use memory::CudaMemory;
pub use stream::{CudaEvent, CudaStream};

/// What to do about a missing driver.
const GET_DRIVER: &str = "install NVIDIA's driver (Debian: apt install nvidia-driver libcuda1) and see that `nvidia-smi` \
     lists the GPU; in a container, start it with `--gpus all`; the host's own device works without";
/// What to do about a missing compiler.
const GET_NVRTC: &str = "install it (`pip install nvidia-cuda-nvrtc-cu12`, or NVIDIA's cuda-nvrtc package) and put the \
     folder of libnvrtc.so.12 on LD_LIBRARY_PATH; the host's own device works without";

/// A CUDA device. Clones are the same device.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    context: Arc<CudaContext>,
    name: String,
    /// Kernels by name. Their modules stay loaded as long as the context.
    functions: HashMap<&'static str, Function>,
}

#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: a handle of the driver, which any thread may use in the context it belongs to.
unsafe impl Send for Function {}
// SAFETY: as above; it is never written.
unsafe impl Sync for Function {}

/// Whether the driver's library and the compiler's can be loaded; says what is missing, and how to
/// get it.
///
/// # Errors
/// [`DeviceError::Missing`].
pub fn present() -> Result<(), DeviceError> {
    // SAFETY: it only tries to load the library, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::Missing {
            what: "CUDA needs NVIDIA's driver (libcuda.so.1), which is not here",
            how: GET_DRIVER,
        });
    }
    compiler_present()
}

/// Whether the compiler's library can be loaded.
///
/// # Errors
/// [`DeviceError::Missing`].
pub fn compiler_present() -> Result<(), DeviceError> {
    // SAFETY: as in `present`.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DeviceError::Missing {
            what: "CUDA kernels need NVRTC (libnvrtc.so.12) to be compiled, which is not here",
            how: GET_NVRTC,
        });
    }
    Ok(())
}

/// Names of the GPUs of this host, in the driver's order.
///
/// # Errors
/// The driver or the compiler is missing, or the driver finds no GPU that works.
pub fn gpus() -> Result<Vec<String>, DeviceError> {
    present()?;
    let list = || -> Result<Vec<String>, DriverError> {
        result::init()?;
        (0..result::device::get_count()?)
            .map(|i| result::device::get_name(result::device::get(i)?))
            .collect()
    };
    list().map_err(|error| DeviceError::Missing {
        what: match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => "NVIDIA's driver is here, but finds no GPU",
            sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "NVIDIA's libcuda.so.1 is of another version than the driver in the kernel"
            }
            _ => "NVIDIA's driver is here, but does not start",
        },
        how: GET_DRIVER,
    })
}

impl CudaDevice {
    /// GPU number `index`, with all kernels compiled for it.
    ///
    /// # Errors
    /// Driver or compiler is missing, there is no such GPU, or it does not take the kernels.
    pub fn open(index: usize) -> Result<Self, DeviceError> {
        let gpus = gpus()?;
        let Some(gpu) = gpus.get(index) else {
            return Err(DeviceError::NoSuch { index, there: gpus });
        };
        let name = format!("cuda device {index} ({gpu})");
        let failed = |what: &'static str| {
            let device = name.clone();
            move |error: DriverError| DeviceError::Failed {
                device,
                why: format!("{what}: {error}"),
            }
        };
        let context = CudaContext::new(index).map_err(failed("its context"))?;
        let (major, minor) = context
            .compute_capability()
            .map_err(failed("its compute capability"))?;
        let mut functions = HashMap::new();
        for (source, text) in kernels::SOURCES {
            let ptx = compile(source, text, &format!("compute_{major}{minor}"))?;
            let text = CString::new(ptx.to_src()).expect("PTX is text");
            // SAFETY: a NUL-terminated PTX text; the context is current (`CudaContext::new`).
            let module = unsafe { result::module::load_data(text.as_ptr().cast()) }
                .map_err(failed("loading the kernels"))?;
            for kernel in kernels::ALL.iter().filter(|kernel| kernel.source == source) {
                let symbol = CString::new(kernel.name).expect("a name");
                // SAFETY: the module was just loaded and is never unloaded.
                let function = unsafe { result::module::get_function(module, symbol) }
                    .map_err(failed(kernel.name))?;
                functions.insert(kernel.name, Function(function));
            }
        }
        Ok(Self(Arc::new(Inner {
            context,
            name,
            functions,
        })))
    }

    fn failed(&self, what: &str, error: DriverError) -> DeviceError {
        DeviceError::Failed {
            device: self.0.name.clone(),
            why: format!("{what}: {error}"),
        }
    }
}

impl Device for CudaDevice {
    type Memory = CudaMemory;
    type Stream = CudaStream;
    type Event = CudaEvent;

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn alloc(&self, words: usize) -> Result<CudaMemory, DeviceError> {
        CudaMemory::zeroed(&self.0.context, words).map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::NoMemory {
                device: self.name(),
                bytes: words.saturating_mul(4),
                why: error.to_string(),
            },
            _ => self.failed("allocating memory", error),
        })
    }

    fn stream(&self) -> Result<CudaStream, DeviceError> {
        CudaStream::new(self).map_err(|error| self.failed("making a stream", error))
    }

    fn pin(&self, memory: &HostMemory) -> Result<(), DeviceError> {
        let pinned = memory.pin_once(|words| memory::register(&self.0.context, words));
        pinned.map_err(|error| self.failed("registering host memory", error))
    }

    fn share(&self, memory: &CudaMemory) -> Result<SharedHandle, DeviceError> {
        memory
            .share()
            .map_err(|error| self.failed("making an IPC handle", error))
    }
}
