//! Builds the wheel, installs it as a user would, and uses what is in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild_lab::skip::skip;

/// What a command prints; it must succeed.
fn told(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{log}");
    said
}

/// The interpreter that makes environments.
fn interpreter() -> String {
    std::env::var("DOGWILD_PYTHON").unwrap_or("/usr/bin/python3".into())
}

/// An environment of its own with the wheel, and with the packages of the system if it is to
/// have them.
struct Environment(PathBuf);

impl Environment {
    fn new(folder: &Path, wheel: &Path, of_system: bool) -> Self {
        let mut venv = Command::new(interpreter());
        venv.args(["-m", "venv", "--without-pip"]);
        if of_system {
            venv.arg("--system-site-packages");
        }
        told(venv.arg(folder));
        let own = Self(folder.to_owned());
        let mut install = Command::new(interpreter());
        install
            .args(["-m", "pip", "--python"])
            .arg(own.program("python"));
        install.args(["install", "--quiet", "--no-index", "--no-deps"]);
        told(install.arg(wheel));
        own
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.join("bin").join(name)
    }

    /// The interpreter, which finds nothing that is not installed: the package's source is where
    /// tests start.
    fn python(&self) -> Command {
        let mut python = Command::new(self.program("python"));
        python.current_dir(&self.0);
        python.env_remove("PYTHONPATH").env_remove("DOGWILD_BIN");
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }
}

/// Neither torch nor numpy is there: the buffer and the program are.
fn without_torch(folder: &Path, wheel: &Path) {
    let alone = Environment::new(&folder.join("alone"), wheel, false);
    let version = told(Command::new(alone.program("dogwild")).arg("--version"));
    assert!(version.starts_with("dogwild "), "{version}");
    assert_eq!(
        told(alone.python().args(["-m", "dogwild", "--version"])),
        version
    );
    let code = "\
import sys, dogwild
try:
    import torch
    sys.exit('torch is there')
except ModuleNotFoundError:
    pass
buffer = dogwild.Buffer.create(sys.argv[1], 7, [('a', [2, 3])], 'refuse')
memoryview(buffer).cast('B').cast('f')[1] = 5.0
buffer.publish()
print(dogwild.Buffer.open(sys.argv[1]).tensors(), dogwild.__version__)
";
    let said = told(alone.python().args(["-c", code]).arg(folder.join("buffer")));
    let wanted = format!("[('a', [2, 3], 0)] {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(said, wanted);
    let site = "import dogwild, os; print(*sorted(os.listdir(os.path.dirname(dogwild.__file__))))";
    let files = told(alone.python().args(["-c", site]));
    for file in ["_native.abi3.so", "_native.pyi", "py.typed", "shared.py"] {
        assert!(
            files.split_whitespace().any(|one| one == file),
            "{file}: {files}"
        );
    }
}

/// Two nodes on loopback, with the program that the wheel brings.
fn with_torch(folder: &Path, wheel: &Path) {
    let whole = Environment::new(&folder.join("whole"), wheel, true);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut two = whole.python();
    two.current_dir(tests);
    two.args([
        "-W",
        "ignore",
        "-m",
        "unittest",
        "-v",
        "test_alone.Parts",
        "test_nodes",
    ]);
    dogwild_lab::process::die_with_parent(&mut two);
    told(&mut two);
}

#[test]
#[ignore = "long: a build of the package"]
fn a_wheel_is_all_that_a_user_needs() {
    let maturin = std::env::var("MATURIN").unwrap_or("maturin".into());
    let there = |program: &str, args: &[&str]| {
        let tried = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .output();
        tried.is_ok_and(|output| output.status.success())
    };
    if !there(&maturin, &["--version"]) {
        return skip("maturin is not there: pip install maturin, or name it in MATURIN");
    }
    if !there(&interpreter(), &["-c", "import numpy, torch, pip, venv"]) {
        return skip("Debian: python3-torch python3-numpy python3-pip");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("wheels");
    let own = std::env::current_exe().expect("a test runs from a file");
    let built = own.parent().expect("it is in a folder");
    let mut build = Command::new(built.with_file_name("xtask"));
    build.args(["wheel", "--out"]).arg(&out);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DOGWILD_REQUIRE_ALL").is_none() {
        // What is shipped takes minutes to build, and may not be too large.
        build.args(["--profile", "draft", "--program"]);
        build.arg(built.with_file_name("dogwild"));
    }
    told(&mut build);
    let wheel = std::fs::read_dir(&out).expect("a folder").flatten().next();
    let wheel = wheel.expect("a wheel").path();
    without_torch(folder.path(), &wheel);
    with_torch(folder.path(), &wheel);
}

/// `mypy --strict`, by what pyproject.toml says.
#[test]
fn types_are_strict() {
    let mypy = std::env::var("MYPY").unwrap_or("mypy".into());
    let mut check = Command::new(&mypy);
    check.current_dir(env!("CARGO_MANIFEST_DIR"));
    check.args([
        "--python-executable",
        &interpreter(),
        "--cache-dir",
        "/dev/null",
    ]);
    match Command::new(&mypy).arg("--version").output() {
        Ok(told) if told.status.success() => {}
        _ => {
            return skip(&format!(
                "`{mypy} --version` fails: pip install mypy, or name it in MYPY"
            ));
        }
    }
    told(&mut check);
}
