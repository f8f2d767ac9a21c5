//! The Debian package in a bare system: installed, used by an ordinary user, purged, and nothing is
//! left.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dogwild_lab::skip::skip;

use crate::support::output::{assert_says, succeeds};
use crate::support::{STUDY, XTASK, tool};

/// A system of the packages that every Debian has, and those that the package wants.
struct Bare(tempfile::TempDir);

impl Bare {
    fn new() -> Self {
        let bare = Self(tempfile::tempdir().expect("a folder"));
        let release = fs::read_to_string("/etc/os-release").expect("os-release");
        let name = release
            .lines()
            .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let mut make = Command::new("mmdebstrap");
        make.args(["--variant=essential", "--include=libcap2-bin"]);
        make.args(["--quiet", name.expect("a release of Debian")]);
        // The folder of a test is its owner's alone; ordinary users have to get in.
        succeeds(make.arg(bare.path()));
        bare
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.arg(self.path()).args(words);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs a script as an ordinary user, with `/proc` and memory of its own.
    fn as_user(&self, script: &str) -> String {
        const AROUND: &str = "mount -t proc none \"$1/proc\" && mount -t tmpfs none \"$1/dev/shm\" \
                              && exec chroot --userspec=4321:4321 --groups= \"$1\" sh -euc \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", AROUND, "sh"]);
        command.arg(self.path()).arg(script);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env_remove("LD_LIBRARY_PATH");
        succeeds(&mut command)
    }

    /// All that is there, but what dpkg keeps of what was there.
    fn files(&self) -> BTreeSet<String> {
        let mut find = Command::new("find");
        let said = succeeds(find.arg(self.path()).args(["-xdev", "-printf", "%P\n"]));
        let of_dpkg = |line: &str| {
            line.ends_with("-old") || line.starts_with("var/log/") || line.starts_with("tmp/")
        };
        let kept = said.lines().filter(|line| !of_dpkg(line));
        kept.map(str::to_owned).collect()
    }
}

/// Trains, and is killed at work: what it started ends with it, although the kernel makes programs
/// with capabilities forget whom they belong to.
const KILLED: &str = r#"
    cd /tmp
    dogwild train --nodes 2 --iterations 100000000 --data digits:1,train=256,test=64 \
        --out killed >killed.log 2>&1 &
    parent=$!
    running() {
        grep -l '^Name:.dogwild$' /proc/[0-9]*/status 2>/dev/null |
            xargs -r grep -L '^State:.Z' 2>/dev/null | wc -l
    }
    looks=0
    until [ "$(running)" -ge 5 ]; do
        sleep 0.1; looks=$((looks + 1))
        [ $looks -lt 6000 ] || { cat killed.log; exit 7; }
    done
    kill -9 $parent
    looks=0
    until [ "$(running)" -eq 0 ]; do
        sleep 0.1; looks=$((looks + 1))
        [ $looks -lt 6000 ] || { echo "still there:"; head /proc/[0-9]*/cmdline; exit 8; }
    done
    echo all ended
"#;

fn is_there(program: &str) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|output| output.status.success())
}

#[test]
#[ignore = "long: makes a bare Debian"]
fn the_package_installs_trains_and_leaves_nothing() {
    for (program, package) in [
        ("mmdebstrap", "mmdebstrap"),
        ("dpkg-shlibdeps", "dpkg-dev"),
        ("getcap", "libcap2-bin"),
    ] {
        // getcap knows no --version, and says so.
        if !is_there(program) && Command::new(program).output().is_err() {
            return skip(&format!("Debian: {package}"));
        }
    }
    if succeeds(Command::new("id").arg("-u")).trim() != "0" {
        return skip("a chroot: needs root");
    }
    let out = tempfile::tempdir().expect("a folder");
    let mut xtask = tool(XTASK);
    // Programs that are not optimised for size take xz half a minute.
    xtask.args(["deb", "--compress", "gzip", "--programs"]);
    xtask.arg(Path::new(STUDY).parent().expect("a folder"));
    succeeds(xtask.arg("--out").arg(out.path()));
    let package = fs::read_dir(out.path()).expect("a folder").flatten().next();
    let package = package.expect("a package").path();
    let fields = succeeds(Command::new("dpkg-deb").arg("--info").arg(&package));
    assert_says(
        &fields,
        &["Package: dogwild\n", "libc6 (>= ", "libcap2-bin"],
    );

    let bare = Bare::new();
    let before = bare.files();
    fs::copy(&package, bare.path().join("tmp/dogwild.deb")).expect("a copy");
    succeeds(&mut bare.command(&["dpkg", "--install", "/tmp/dogwild.deb"]));
    let program = bare.path().join("usr/bin/dogwild");
    let said = succeeds(Command::new("getcap").arg(&program));
    assert_says(&said, &["cap_net_raw=ep"]);
    // Every file is as it was packed.
    assert_eq!(
        succeeds(&mut bare.command(&["dpkg", "--verify", "dogwild"])),
        ""
    );
    let added: Vec<String> = bare.files().difference(&before).cloned().collect();
    for path in [
        "usr/bin/dogwild-study",
        "usr/share/man/man1/dogwild-train.1.gz",
        "usr/share/bash-completion/completions/dogwild",
        "usr/share/zsh/vendor-completions/_dogwild",
        "usr/share/fish/vendor_completions.d/dogwild.fish",
        "usr/lib/systemd/system/dogwild-node.service",
        "usr/share/doc/dogwild/copyright",
        "usr/share/doc/dogwild/examples/digits.toml",
        "usr/share/dogwild/models/lenet_solver.prototxt",
    ] {
        assert!(added.iter().any(|one| one == path), "{path}: {added:#?}");
    }

    let said = bare.as_user(
        "cd /tmp; dogwild --version; dogwild job check /usr/share/doc/dogwild/examples/digits.toml
         dogwild train --nodes 2 --iterations 20 --data digits:1,train=256,test=64 --out trained
         test -s trained/weights.safetensors",
    );
    assert_says(&said, &["dogwild ", "features program"]);
    assert_says(&bare.as_user(KILLED), &["all ended"]);

    succeeds(&mut bare.command(&["dpkg", "--purge", "dogwild"]));
    let left: Vec<String> = bare.files().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:#?}");
    let gone: Vec<String> = before.difference(&bare.files()).cloned().collect();
    assert!(gone.is_empty(), "{gone:#?}");
}
