//! `cargo xtask ptx`: compiles the CUDA kernels to the PTX that is shipped.
//!
//! Touches NVRTC, the compiler's library, and `src/device/kernels/*.ptx`. An old NVRTC on purpose:
//! a driver takes PTX of its own version and of older ones, and compiles it for GPUs that are newer
//! than both. So the lowest version and target that have what kernels use run on most machines.
//! Invariant: products and sums are not fused unless a kernel says `fmaf`, so that a kernel's
//! arithmetic is what its Rust twin does.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use libloading::{Library, Symbol};

/// The version that is pinned: PTX 7.8, for drivers from 520 on.
const VERSION: (c_int, c_int) = (11, 8);
/// Where its library is looked for, unless `DOGWILD_NVRTC` names it.
const LIBRARY: &str = "libnvrtc.so.11.2";
/// GPUs from Maxwell (2014) on, the oldest that drivers of today serve.
const OPTIONS: [&CStr; 2] = [c"--gpu-architecture=compute_50", c"--fmad=false"];
const FOLDER: &str = "src/device/kernels";

/// Writes the PTX of all kernels.
pub(super) fn write(root: &Path) -> Result<()> {
    let nvrtc = Nvrtc::load()?;
    for source in sources(root)? {
        let ptx = nvrtc.compile(&source)?;
        let to = source.with_extension("ptx");
        fs::write(&to, ptx).with_context(|| format!("cannot write {}", to.display()))?;
        dogwild_lab::say!("{}", to.display());
    }
    Ok(())
}

/// The files of CUDA C.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(FOLDER);
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut sources: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "cu"))
        .collect();
    sources.sort();
    Ok(sources)
}

/// The library of NVRTC, in its pinned version.
struct Nvrtc(Library);

/// A program of NVRTC.
type Program = *mut c_void;

impl Nvrtc {
    /// Loads it, and refuses another version: its PTX would differ.
    fn load() -> Result<Self> {
        let name = std::env::var("DOGWILD_NVRTC").unwrap_or(LIBRARY.into());
        // SAFETY: it only loads the library, whose initialisers are NVIDIA's.
        let library = unsafe { Library::new(&name) }.with_context(|| {
            format!(
                "cannot load {name}: `pip download nvidia-cuda-nvrtc-cu11==11.8.89`, unpack it, and name {LIBRARY} \
                 in DOGWILD_NVRTC or put its folder on LD_LIBRARY_PATH"
            )
        })?;
        let nvrtc = Self(library);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for numbers, as nvrtc.h declares it.
        nvrtc.call(c"nvrtcVersion", |f: Symbol<'_, Two>| unsafe {
            f(&mut major, &mut minor)
        })?;
        ensure!(
            (major, minor) == VERSION,
            "{name} is NVRTC {major}.{minor}, and the PTX is made by {}.{}",
            VERSION.0,
            VERSION.1
        );
        Ok(nvrtc)
    }

    /// Calls the function `name`, which gives 0 if all is well.
    fn call<F>(&self, name: &CStr, call: impl FnOnce(Symbol<'_, F>) -> c_int) -> Result<()> {
        // SAFETY: `F` is how nvrtc.h declares the function: the callers are in this file.
        let function = unsafe { self.0.get::<F>(name) }?;
        let code = call(function);
        ensure!(code == 0, "{} gives error {code}", name.to_string_lossy());
        Ok(())
    }

    fn compile(&self, source: &Path) -> Result<String> {
        let text = fs::read_to_string(source)?;
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let (text, name) = (CString::new(text)?, CString::new(name.into_owned())?);
        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: a place for a program, two texts, and no headers.
        self.call(c"nvrtcCreateProgram", |f: Symbol<'_, Create>| unsafe {
            f(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none)
        })?;
        let options = OPTIONS.map(CStr::as_ptr);
        // SAFETY: a program, and so many options.
        let compiled = self.call(c"nvrtcCompileProgram", |f: Symbol<'_, Compile>| unsafe {
            f(program, options.len() as c_int, options.as_ptr())
        });
        if compiled.is_err() {
            let log = self.text(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
            bail!("{}: {log}", source.display());
        }
        self.text(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX")
    }

    /// A text that a program has. The program is not freed: this process ends soon.
    fn text(&self, program: Program, size: &CStr, text: &CStr) -> Result<String> {
        let mut bytes = 0;
        // SAFETY: a program, and a place for a number.
        self.call(size, |f: Symbol<'_, Size>| unsafe {
            f(program, &mut bytes)
        })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: a program, and a place for so many bytes.
        self.call(text, |f: Symbol<'_, Text>| unsafe {
            f(program, buffer.as_mut_ptr().cast())
        })?;
        while buffer.last() == Some(&0) {
            buffer.pop();
        }
        Ok(String::from_utf8(buffer)?)
    }
}

type Two = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_ptx_is_that_of_the_kernels() {
        let nvrtc = match Nvrtc::load() {
            Ok(nvrtc) => nvrtc,
            Err(missing) => return dogwild_lab::skip::skip(&format!("{missing:#}")),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let sources = sources(&root).expect("the kernels");
        assert!(sources.len() >= 2, "{sources:?}");
        for source in sources {
            let shipped = fs::read_to_string(source.with_extension("ptx")).unwrap_or_default();
            let made = nvrtc.compile(&source).expect("it compiles");
            assert!(
                shipped == made,
                "{} is not that of today's kernels: cargo xtask ptx",
                source.with_extension("ptx").display()
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        let bad = folder.path().join("bad.cu");
        fs::write(&bad, "__global__ void f() { nonsense; }").expect("written");
        let error = nvrtc.compile(&bad).expect_err("nonsense").to_string();
        assert!(
            error.contains("bad.cu") && error.contains("nonsense"),
            "{error}"
        );
    }
}
