//! What multiplies matrices, and how exactly.

use std::ffi::c_int;

use crate::device::DeviceError;

/// The variable that chooses, for all GPUs of a process.
const VARIABLE: &str = "DOGWILD_PRODUCTS";

/// What multiplies matrices. Factors and products are f32 in memory, and sums are made in f32,
/// whatever the factors are rounded to on the way (mixed precision). So the tensor cores of a GPU
/// (NVIDIA Ampere and newer) can take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// cuBLAS, where it is here and gives what the own kernel gives.
    F32,
    /// The same, with factors rounded to 10 bits after the point.
    Tf32,
    /// The same, with factors rounded to 7 bits after the point.
    Bf16,
    /// The own kernel, whose sums are the same on all GPUs.
    Own,
}

impl Products {
    const ALL: [Self; 4] = [Self::F32, Self::Tf32, Self::Bf16, Self::Own];

    /// What `DOGWILD_PRODUCTS` asks for: `f32`, `tf32`, `bf16` or `own`; not set: `f32`.
    ///
    /// # Errors
    /// It has another value.
    pub fn asked_for() -> Result<Self, DeviceError> {
        match std::env::var_os(VARIABLE) {
            Some(value) => Self::named(&value.to_string_lossy()),
            None => Ok(Self::F32),
        }
    }

    fn named(value: &str) -> Result<Self, DeviceError> {
        let found = Self::ALL.into_iter().find(|one| one.name() == value);
        found.ok_or_else(|| DeviceError::Products {
            variable: VARIABLE,
            value: value.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Own => "own",
        }
    }

    /// `cublasComputeType_t` of cublas_api.h: how the library multiplies, if it does.
    pub(super) fn compute_type(self) -> Option<c_int> {
        match self {
            Self::F32 => Some(68),
            Self::Tf32 => Some(77),
            Self::Bf16 => Some(75),
            Self::Own => None,
        }
    }

    /// By how much a product of numbers around 1 may differ from that of the own kernel, for each
    /// term: two factors are rounded.
    #[cfg(test)]
    pub(in crate::device) fn tolerance(self) -> f32 {
        match self {
            Self::F32 | Self::Own => 1e-5,
            Self::Tf32 => 1.0 / 1024.0,
            Self::Bf16 => 1.0 / 128.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_have_names() {
        for products in Products::ALL {
            assert_eq!(Products::named(products.name()).unwrap(), products);
        }
        let why = Products::named("f16").unwrap_err().to_string();
        assert!(
            why.contains("\"f16\": give one of f32, tf32, bf16, own"),
            "{why}"
        );
    }
}
