//! Products on a stream: by cuBLAS, if it is here and gives what the own kernel gives.
//!
//! Touches the library through [`Blas`]. Invariant: a library has multiplied small matrices as the
//! own kernel does before it is used.

use std::sync::PoisonError;

use super::super::blas::{Blas, Product};
use super::super::{CudaMemory, Products};
use super::CudaStream;
use crate::device::kernels::PRODUCT;
use crate::device::{Device, DeviceError, HostMemory, Memory, Number, Part, Stream};

impl CudaStream {
    /// What multiplies, once something was multiplied.
    pub(in crate::device::cuda) fn multiplies(&self) -> String {
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        match blas.as_ref().and_then(Option::as_ref) {
            Some(blas) => format!("{} in {}", blas.name(), self.device.0.products.name()),
            None if self.device.0.products == Products::Own => "own kernels".to_owned(),
            None => "own kernels, as cuBLAS is not here".to_owned(),
        }
    }

    /// Multiplies by the library, if that is here and has these sizes.
    pub(super) fn multiply(
        &self,
        parts: &[Part<'_, CudaMemory>],
        numbers: &[Number],
    ) -> Result<bool, DeviceError> {
        if self.device.0.products == Products::Own {
            return Ok(false);
        }
        let mut blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        let blas = match &*blas {
            Some(known) => known,
            None => blas.insert(self.find_blas()?),
        };
        match blas {
            Some(blas) => {
                let done = self.multiply_by(blas, parts, numbers)?;
                done.map_err(|error| self.device.says(&format!("{}: {error}", blas.name())))
            }
            None => Ok(false),
        }
    }

    fn multiply_by(
        &self,
        blas: &Blas,
        parts: &[Part<'_, CudaMemory>],
        numbers: &[Number],
    ) -> Result<Result<bool, u32>, DeviceError> {
        let number = |at: usize| numbers[at].u();
        let product = Product {
            sizes: [0, 1, 2].map(number),
            transposed: [3, 4].map(|at| number(at) != 0),
            keep: number(5) != 0,
            at: [0, 1, 2].map(|at: usize| parts[at].memory().address_of(parts[at].start())),
        };
        let _held = self.hold(|held| parts.iter().for_each(|part| held.device(part.memory())));
        let context = self.device.context();
        context
            .bind()
            .map_err(|error| self.failed("a product", error))?;
        // SAFETY: `plan` has checked the sizes against the parts, which the stream holds.
        Ok(unsafe { blas.multiply(product) })
    }

    /// The library, if it is here and multiplies as the own kernel does.
    fn find_blas(&self) -> Result<Option<Blas>, DeviceError> {
        let context = self.device.context();
        context
            .bind()
            .map_err(|error| self.failed("a product", error))?;
        let (device, products) = (self.device.name(), self.device.0.products);
        let blas = match Blas::new(self.handle, products) {
            None => {
                if products != Products::F32 {
                    log::warn!("{device}: cuBLAS is not here; own kernels multiply in f32");
                }
                return Ok(None);
            }
            Some(Err(error)) => {
                log::warn!("{device}: cuBLAS does not start ({error}); own kernels multiply");
                return Ok(None);
            }
            Some(Ok(blas)) => blas,
        };
        match self.agrees(&blas)? {
            true => {
                log::info!(
                    "{device}: {} multiplies in {}",
                    blas.name(),
                    products.name()
                );
                Ok(Some(blas))
            }
            false => {
                log::warn!(
                    "{device}: {} gives other products than the own kernel, which is used",
                    blas.name()
                );
                Ok(None)
            }
        }
    }

    /// Whether small products of all kinds are those of the own kernel.
    fn agrees(&self, blas: &Blas) -> Result<bool, DeviceError> {
        let sizes = [5, 7, 3];
        let [rows, columns, inner] = sizes;
        let lens = [rows * inner, inner * columns, rows * columns];
        let host = |len: usize| {
            let memory = HostMemory::zeroed(len);
            memory.map_err(|error| self.device.says(&error.to_string()))
        };
        let given = lens.map(host);
        let [left, right, to] = given;
        let given = [left?, right?, to?];
        // Numbers of few bits, which are exact in all kinds of products.
        for memory in &given {
            for at in 0..memory.len() {
                memory.view().store(at, (at * at % 13) as f32 - 5.5);
            }
        }
        for turned in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            for keep in [0, 1] {
                let [m, n, k] = sizes.map(|size| Number::U(size as u32));
                let [a, b] = turned.map(Number::U);
                let numbers = [m, n, k, a, b, Number::U(keep)];
                let mut found = Vec::new();
                for by_library in [true, false] {
                    let [left, right, to] = [0, 1, 2].map(|at: usize| self.up(&given[at]));
                    let (left, right, to) = (left?, right?, to?);
                    let parts = [left.all(), right.all(), to.all()];
                    match by_library {
                        true if self.multiply_by(blas, &parts, &numbers)? != Ok(true) => {
                            return Ok(false);
                        }
                        true => {}
                        false => {
                            let shape = (PRODUCT.plan)(&lens, &numbers);
                            self.launch_own(&PRODUCT, shape, &parts, &numbers)?;
                        }
                    }
                    let back = host(lens[2])?;
                    self.download(to.all(), back.all())?;
                    self.finish()?;
                    found.push(back);
                }
                let [theirs, own] = [0, 1].map(|which: usize| found[which].view());
                let near = |at: usize| (theirs.load(at) - own.load(at)).abs() < 1e-3;
                if !(0..lens[2]).all(near) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn up(&self, from: &HostMemory) -> Result<CudaMemory, DeviceError> {
        let to = self.device.alloc(from.len())?;
        self.upload(from.all(), to.all())?;
        Ok(to)
    }
}
