//! What programs say to `--version`, and what `build.rs` finds where there is git and where not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::output::succeeds;
use crate::support::{PLAN, RAWBENCH, STUDY, tool};

/// A commit as git names it, `+` or not; or that there is none.
fn names_a_build(said: &str) -> bool {
    let Some((_, after)) = said.split_once("(commit ") else {
        return said.contains("(no commit: built outside git;");
    };
    let commit = after.split(';').next().unwrap_or_default();
    let digits = commit.trim_end_matches('+');
    digits.len() >= 7 && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

#[test]
fn every_tool_says_version_commit_and_features() {
    for (name, program) in [
        ("dogwild-plan", PLAN),
        ("dogwild-rawbench", RAWBENCH),
        ("dogwild-study", STUDY),
    ] {
        let said = succeeds(tool(program).arg("--version"));
        let start = format!("{name} {} (", env!("CARGO_PKG_VERSION"));
        assert!(said.starts_with(&start), "{said}");
        assert!(names_a_build(&said), "{said}");
        assert!(said.trim_end().contains("; features program"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// `build.rs` as cargo runs it: in a folder, for a crate.
struct Script {
    program: PathBuf,
    root: PathBuf,
}

impl Script {
    fn commit(&self, folder: &str, package: &str, given: Option<&str>) -> String {
        let mut command = Command::new(&self.program);
        command.env("CARGO_MANIFEST_DIR", self.root.join(folder));
        command.env("CARGO_PKG_NAME", package);
        command.env_remove("DOGWILD_COMMIT");
        command.current_dir(self.root.join(folder));
        if let Some(given) = given {
            command.env("DOGWILD_COMMIT", given);
        }
        let said = succeeds(&mut command);
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("cargo:rustc-env=DOGWILD_COMMIT="));
        line.expect("a line for cargo").to_owned()
    }

    fn git(&self, args: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(&self.root).args([
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@example.org",
        ]);
        // A repository of its own, whatever started this test.
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
        succeeds(git.args(args))
    }
}

#[test]
fn a_build_names_its_commit_and_does_without_git() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("build-script");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compile = Command::new(rustc);
    compile.args(["--edition", "2024", "-o"]).arg(&program);
    succeeds(compile.arg(source));
    let root = folder.path().join("tree");
    for part in ["src", "lab/src", "tools/src"] {
        fs::create_dir_all(root.join(part)).expect("a folder");
        fs::write(root.join(part).join("a.rs"), "// a\n").expect("a file");
    }
    let script = Script { program, root };

    // An unpacked archive.
    assert_eq!(script.commit("", "dogwild", None), "");
    assert_eq!(script.commit("lab", "dogwild-lab", None), "");
    assert_eq!(script.commit("", "dogwild", Some("abc")), "abc");

    script.git(&["init", "--quiet"]);
    script.git(&["add", "."]);
    script.git(&["commit", "--quiet", "--message", "a"]);
    let head = script.git(&["rev-parse", "--short=12", "HEAD"]);
    let head = head.trim_end();
    let of_all = |script: &Script| {
        [
            script.commit("", "dogwild", None),
            script.commit("lab", "dogwild-lab", None),
            script.commit("tools", "dogwild-tools", None),
        ]
    };
    assert_eq!(of_all(&script), [head, head, head]);
    // What is not compiled changes nothing.
    fs::write(script.root.join("README.md"), "b").expect("a file");
    assert_eq!(of_all(&script), [head, head, head]);
    // What is, changes the crates that it is in.
    let changed = format!("{head}+");
    fs::write(script.root.join("tools/src/a.rs"), "// b\n").expect("a file");
    assert_eq!(of_all(&script), [head, head, &changed]);
    fs::write(script.root.join("src/a.rs"), "// b\n").expect("a file");
    assert_eq!(of_all(&script), [&changed, head, &changed]);
    // A copy inside another repository is of no commit.
    let inside = script.root.join("vendor/dogwild");
    fs::create_dir_all(inside.join("src")).expect("a folder");
    let copy = Script {
        program: script.program.clone(),
        root: inside,
    };
    assert_eq!(copy.commit("", "dogwild", None), "");
}
