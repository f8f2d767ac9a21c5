//! CUDA devices: the driver is looked for at run time.
//!
//! Touches the driver. Several logical devices may be one GPU: they share its context. Invariants:
//! every stream and event is used in the context it was made in. A stream holds the memory that its
//! work uses until that work is known to be done.

mod blas;
mod context;
mod driver;
mod memory;
mod products;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;

use super::{Device, DeviceError, HostMemory, Kernel, Memory, SharedHandle, Stream, kernels};
use context::Context;
use driver::{CudaError, Driver, GET_DRIVER, Handle, code};

pub use memory::CudaMemory;
pub use products::Products;
pub use stream::{CudaEvent, CudaStream};

/// A CUDA device. Clones are the same device.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    name: String,
    /// Kernels by name. Their modules stay loaded as long as the context.
    functions: HashMap<&'static str, Function>,
    products: Products,
}

#[derive(Clone, Copy)]
struct Function(Handle);

// SAFETY: a handle of the driver, which any thread may use in the context it belongs to.
unsafe impl Send for Function {}
// SAFETY: as above; it is never written.
unsafe impl Sync for Function {}

/// Whether the driver is here and starts; says what is wrong, and what to do.
///
/// # Errors
/// [`DeviceError::Missing`].
pub fn present() -> Result<(), DeviceError> {
    Driver::get().map(drop)
}

fn list(driver: &Driver) -> Result<Vec<context::Gpu>, DeviceError> {
    context::gpus(driver).map_err(|error| DeviceError::Missing {
        what: format!("NVIDIA's driver is here, but does not list its GPUs: {error}"),
        how: GET_DRIVER,
    })
}

fn no_such(index: usize, gpus: Vec<context::Gpu>) -> DeviceError {
    let there = gpus.into_iter().map(|gpu| gpu.name).collect();
    DeviceError::NoSuch { index, there }
}

/// Names of the GPUs of this host, in the order of `nvidia-smi`.
///
/// # Errors
/// The driver is missing, does not start, or finds no GPU.
pub fn gpus() -> Result<Vec<String>, DeviceError> {
    let gpus = list(Driver::get()?)?;
    Ok(gpus.into_iter().map(|gpu| gpu.name).collect())
}

/// Runs a kernel on GPU number `index`, from memory to memory. Returns what the GPU and the driver
/// are.
///
/// # Errors
/// What does not work.
pub fn try_out(index: usize) -> Result<String, DeviceError> {
    const WORDS: usize = 1000;
    let device = CudaDevice::open(index)?;
    let host = HostMemory::zeroed(WORDS).map_err(|error| device.says(&error.to_string()))?;
    let (memory, stream) = (device.alloc(WORDS)?, device.stream()?);
    kernels::add_scalar(&stream, memory.all(), 2.5)?;
    stream.download(memory.all(), host.all())?;
    stream.finish()?;
    if (0..WORDS).any(|word| host.view().load(word) != 2.5) {
        return Err(device.says("a kernel that adds 2.5 to 0 does not give 2.5"));
    }
    kernels::product(
        &stream,
        [0, 1, 2].map(|at: usize| memory.part(at..at + 1)),
        [1; 3],
        [false; 2],
        false,
    )?;
    stream.finish()?;
    let version = device.context().driver.version();
    let multiplies = stream.multiplies();
    Ok(format!(
        "{}: runs kernels, driver for CUDA {version}, products by {multiplies}",
        device.name()
    ))
}

impl CudaDevice {
    /// GPU number `index`, with all kernels. cuBLAS multiplies if it is here, as `DOGWILD_PRODUCTS`
    /// asks for ([`Products`]).
    ///
    /// # Errors
    /// The driver is missing, there is no such GPU, or it does not take the kernels.
    pub fn open(index: usize) -> Result<Self, DeviceError> {
        Self::open_with(index, Products::asked_for()?)
    }

    /// As [`open`](Self::open), and says what multiplies.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_with(index: usize, products: Products) -> Result<Self, DeviceError> {
        let driver = Driver::get()?;
        let gpus = list(driver)?;
        match gpus.get(index) {
            Some(gpu) => Self::make(driver, gpu, index, products, Context::new),
            None => Err(no_such(index, gpus)),
        }
    }

    /// As [`open`](Self::open), where another library of this process works on the GPU: `ordinal`
    /// is its number for the driver, as CUDA's runtime and PyTorch have it. How threads wait for
    /// the GPU stays as that library has it.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_next_to_another(ordinal: usize) -> Result<Self, DeviceError> {
        let driver = Driver::get()?;
        let gpus = list(driver)?;
        match gpus.iter().find(|gpu| gpu.has_ordinal(ordinal)) {
            Some(gpu) => Self::make(driver, gpu, ordinal, Products::F32, Context::of_all),
            None => Err(no_such(ordinal, gpus)),
        }
    }

    fn make(
        driver: &'static Driver,
        gpu: &context::Gpu,
        index: usize,
        products: Products,
        context: fn(&'static Driver, &context::Gpu) -> Result<Arc<Context>, CudaError>,
    ) -> Result<Self, DeviceError> {
        let name = format!("cuda device {index} ({})", gpu.name);
        let failed = |why: String| DeviceError::Failed {
            device: name.clone(),
            why,
        };
        let context = context(driver, gpu);
        let context = context.map_err(|error| failed(format!("its context: {error}")))?;
        let mut functions = HashMap::new();
        for (source, ptx) in kernels::PTX {
            let module = context.load(ptx).map_err(|why| {
                let version = driver.version();
                failed(format!(
                    "its driver (for CUDA {version}) does not take the kernels of {source}: {why}"
                ))
            })?;
            for kernel in kernels::ALL.iter().filter(|kernel| kernel.source == source) {
                let function = context.function(module, kernel.name);
                let function =
                    function.map_err(|error| failed(format!("{}: {error}", kernel.name)))?;
                functions.insert(kernel.name, Function(function));
            }
        }
        Ok(Self(Arc::new(Inner {
            context,
            name,
            functions,
            products,
        })))
    }

    fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    fn function(&self, kernel: &Kernel) -> Result<Handle, DeviceError> {
        let function = self.0.functions.get(kernel.name);
        let missing = || self.says(&format!("{} is not among its kernels", kernel.name));
        function.map(|function| function.0).ok_or_else(missing)
    }

    fn says(&self, why: &str) -> DeviceError {
        DeviceError::Failed {
            device: self.0.name.clone(),
            why: why.to_owned(),
        }
    }

    fn failed(&self, what: &str, error: CudaError) -> DeviceError {
        self.says(&format!("{what}: {error}"))
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
        CudaMemory::zeroed(self.context(), words).map_err(|error| match error.0 {
            code::OUT_OF_MEMORY => DeviceError::NoMemory {
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
        let pinned = memory.pin_once(|words| memory::register(self.context(), words));
        pinned.map_err(|error| self.failed("registering host memory", error))
    }

    fn share(&self, memory: &CudaMemory) -> Result<SharedHandle, DeviceError> {
        memory
            .share()
            .map_err(|error| self.failed("making an IPC handle", error))
    }
}
