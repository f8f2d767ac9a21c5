//! Products of matrices by NVIDIA's cuBLAS, where that library is here.
//!
//! Touches `libcublas.so` and the device. Declared by cublas_api.h of CUDA 11.8, whose functions
//! later ones keep. Invariants: a handle is used by one stream, under a lock. A library is used
//! only if it gives what the own kernel gives (see [`Blas::new`]); without one the own kernel
//! multiplies. Sums are made in f32, in an order that is the library's, of factors as
//! [`Products`] says.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::Library;

use super::Products;
use super::driver::{Address, Handle};

/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const OPERATION: [c_int; 2] = [0, 1];
/// The names of the library that are tried, in this order.
const NAMES: [&str; 4] = [
    "libcublas.so.13",
    "libcublas.so.12",
    "libcublas.so.11",
    "libcublas.so",
];

/// `CUDA_R_32F`: what lies in memory.
const F32: c_int = 0;
/// `CUBLAS_GEMM_DEFAULT`: the library chooses how.
const USUAL: c_int = -1;

type Gemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    Address,
    c_int,
    c_int,
    Address,
    c_int,
    c_int,
    *const f32,
    Address,
    c_int,
    c_int,
    c_int,
    c_int,
) -> u32;

/// The functions of the library.
struct Functions {
    name: &'static str,
    create: unsafe extern "C" fn(*mut Handle) -> u32,
    destroy: unsafe extern "C" fn(Handle) -> u32,
    set_stream: unsafe extern "C" fn(Handle, Handle) -> u32,
    gemm: Gemm,
    /// They are in it.
    _library: Library,
}

impl Functions {
    fn get() -> Option<&'static Self> {
        static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
        LOADED
            .get_or_init(|| NAMES.into_iter().find_map(Self::load))
            .as_ref()
    }

    fn load(name: &'static str) -> Option<Self> {
        // SAFETY: it only loads the library, whose initialisers are NVIDIA's; each function is
        // declared as cublas_api.h does, and lives as long as the library.
        unsafe {
            let library = Library::new(name).ok()?;
            Some(Self {
                name,
                create: *library.get("cublasCreate_v2").ok()?,
                destroy: *library.get("cublasDestroy_v2").ok()?,
                set_stream: *library.get("cublasSetStream_v2").ok()?,
                gemm: *library.get("cublasGemmEx").ok()?,
                _library: library,
            })
        }
    }
}

/// A product of matrices that lie by rows: `to (+)= left x right`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Rows and columns of `to`, and the inner size.
    pub(super) sizes: [usize; 3],
    /// Whether `left` and `right` lie transposed.
    pub(super) transposed: [bool; 2],
    /// Whether it is added to what is there.
    pub(super) keep: bool,
    /// Where `left`, `right` and `to` lie.
    pub(super) at: [Address; 3],
}

/// The library, for one stream.
pub(super) struct Blas {
    functions: &'static Functions,
    handle: Handle,
    /// Its `cublasComputeType_t`.
    compute_type: c_int,
}

// SAFETY: a handle of the library, which any thread may use, one at a time: its user has a lock.
unsafe impl Send for Blas {}

impl Blas {
    /// The library for `stream`, whose context is the current one; none if it is not here, or not
    /// asked for. What it
    /// gives is not looked at here: that is its user's, who can run the own kernel.
    ///
    /// # Errors
    /// The number that the library gives.
    pub(super) fn new(stream: Handle, products: Products) -> Option<Result<Self, u32>> {
        let compute_type = products.compute_type()?;
        let functions = Functions::get()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for a handle; a context is current.
        let made = unsafe { (functions.create)(&mut handle) };
        if made != 0 {
            return Some(Err(made));
        }
        let blas = Self {
            functions,
            handle,
            compute_type,
        };
        // SAFETY: a handle and a stream that live.
        match unsafe { (functions.set_stream)(handle, stream) } {
            0 => Some(Ok(blas)),
            error => Some(Err(error)),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.functions.name
    }

    /// Puts a product on the stream. False if its sizes are not the library's.
    ///
    /// # Errors
    /// The number that the library gives.
    ///
    /// # Safety
    /// The matrices must lie in memory of the current context, which lives until the stream was
    /// waited for.
    pub(super) unsafe fn multiply(&self, product: Product) -> Result<bool, u32> {
        let sizes = product.sizes.map(|size| c_int::try_from(size).unwrap_or(0));
        let [rows, columns, inner] = sizes;
        if sizes.contains(&0) {
            return Ok(false);
        }
        // The library has matrices by columns, and so sees the transpose of each: it is told to
        // make toᵀ = rightᵀ x leftᵀ.
        let [left, right, to] = product.at;
        let [turned_left, turned_right] = product.transposed;
        let step = |turned: bool, plain, other| if turned { other } else { plain };
        let operation = |turned: bool| OPERATION[usize::from(turned)];
        let (one, kept) = (1.0, if product.keep { 1.0 } else { 0.0 });
        // SAFETY: the caller's promise; both factors are read before the call returns.
        let result = unsafe {
            (self.functions.gemm)(
                self.handle,
                operation(turned_right),
                operation(turned_left),
                columns,
                rows,
                inner,
                &one,
                right,
                F32,
                step(turned_right, columns, inner),
                left,
                F32,
                step(turned_left, inner, rows),
                &kept,
                to,
                F32,
                columns,
                self.compute_type,
                USUAL,
            )
        };
        match result {
            0 => Ok(true),
            error => Err(error),
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made once; its user has made the context current.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}
