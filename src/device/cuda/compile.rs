//! CUDA C to PTX, by NVRTC, with or without a GPU.
//!
//! Touches libnvrtc only. Invariant: products and sums are not fused unless a kernel says `fmaf`,
//! so that a kernel's arithmetic is what its Rust twin does.

use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};

use super::compiler_present;
use crate::device::DeviceError;

/// Compiles `text`, the contents of `source`, for `arch` (`compute_90`).
///
/// # Errors
/// The compiler is missing, or refuses the text; then with its messages and line numbers.
pub fn compile(source: &str, text: &str, arch: &str) -> Result<Ptx, DeviceError> {
    compiler_present()?;
    let options = CompileOptions {
        fmad: Some(false),
        name: Some(source.to_owned()),
        options: vec![format!("--gpu-architecture={arch}")],
        ..CompileOptions::default()
    };
    compile_ptx_with_opts(text, options).map_err(|error| DeviceError::Failed {
        device: format!("NVRTC, compiling {source} for {arch}"),
        why: match error {
            CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
            other => other.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernels::{ALL, SOURCES};

    /// The oldest GPUs that CUDA 12 compiles for without a warning, and those of today.
    const ARCHS: [&str; 3] = ["compute_60", "compute_80", "compute_90"];

    #[test]
    fn every_kernel_compiles_without_a_gpu() {
        if let Err(missing) = compiler_present() {
            return dogwild_lab::skip::skip(&missing.to_string());
        }
        for (source, text) in SOURCES {
            for arch in ARCHS {
                let ptx = compile(source, text, arch).unwrap().to_src();
                for kernel in ALL.iter().filter(|kernel| kernel.source == source) {
                    let entry = format!(".visible .entry {}(", kernel.name);
                    assert!(ptx.contains(&entry), "{source} has no {}", kernel.name);
                }
                let entries = ptx.matches(".visible .entry ").count();
                let named = ALL.iter().filter(|kernel| kernel.source == source).count();
                assert_eq!(
                    entries, named,
                    "{source} has kernels that ALL does not name"
                );
            }
        }
        let error = compile("bad.cu", "__global__ void f() { nonsense; }", ARCHS[0]).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("bad.cu") && error.contains("nonsense"),
            "{error}"
        );
    }
}
