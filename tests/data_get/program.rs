//! The program: published sets, signals, a full disk, https.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dogwild_lab::skip::skip;

use crate::server::{Answer, Server};
use crate::support::output::{assert_says, refused, succeeds};
use crate::support::process::Process;
use crate::support::program::{DOGWILD, dogwild};
use crate::support::wait::wait_for;

const IMAGES: &str = "train-images-idx3-ubyte.gz";

/// The gzipped files of MNIST, with their names.
fn mnist() -> Option<Vec<(String, Vec<u8>)>> {
    let Some(data) = std::env::var_os("DOGWILD_DATA") else {
        skip("DOGWILD_DATA: MNIST");
        return None;
    };
    let entries = fs::read_dir(Path::new(&data).join("mnist")).expect("a folder");
    let files = entries.flatten().map(|entry| {
        let name = entry.file_name().into_string().expect("text");
        (name, fs::read(entry.path()).expect("a file"))
    });
    Some(files.collect())
}

fn get(to: &Path, mirror: &str) -> Command {
    let mut command = dogwild();
    command.args(["data", "get", "mnist", "--mirror", mirror, "--to"]);
    command.arg(to);
    command
}

/// A part that is as long as the server made it.
fn part_has(to: &Path, bytes: u64) -> bool {
    let part = fs::metadata(to.join(format!("{IMAGES}.part")));
    part.is_ok_and(|part| part.len() == bytes)
}

#[test]
fn mnist_comes_is_checked_and_is_trained_on() {
    let Some(files) = mnist() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("mnist");
    let server = Server::of(files);
    let said = succeeds(&mut get(&to, &server.url()));
    let data = format!("mnist:{}", to.display());
    assert_says(&said, &[&format!("dogwild train --data {data}"), IMAGES]);
    let said = succeeds(&mut get(&to, "http://127.0.0.1:1"));
    assert_says(&said, &["already", "is there, and right"]);
    let mut train = dogwild();
    train.args([
        "train",
        "--nodes",
        "1",
        "--iterations",
        "5",
        "--data",
        &data,
    ]);
    succeeds(train.arg("--out").arg(folder.path().join("out")));
}

#[test]
fn ctrl_c_ends_it_while_the_mirror_is_silent_and_it_goes_on_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let (to, sent) = (folder.path(), 123_456);
    let server = Server::start(move |_, _| Answer::of(&[7; 1_000_000]).silent_after(sent));
    let mut command = get(to, &server.url());
    command.stderr(Stdio::piped());
    let process = Process::start(&mut command);
    wait_for("what was sent is in the part", || part_has(to, sent as u64));
    process.signal("INT");
    let output = process.output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert_says(
        &said,
        &["interrupted by INT (Ctrl-C)", "goes on from there"],
    );
    assert!(part_has(to, sent as u64));
    // The next call asks for the rest.
    let server = Server::start(|_, _| Answer::status("503 Service Unavailable"));
    let said = refused(&mut get(to, &server.url()));
    assert_says(
        &said,
        &[IMAGES, "503 Service Unavailable", "what came is kept"],
    );
    assert_eq!(server.froms(), [Some(sent)]);
    assert!(part_has(to, sent as u64));
}

/// A small file system of its own, in a mount namespace.
#[test]
fn a_full_disk_is_told_with_what_to_do_and_the_download_goes_on_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(|_, _| Answer::of(&[7; 2_000_000]));
    let script = "mount -t tmpfs -o size=1m none \"$1\" && \"$2\" data get mnist --to \"$1\" \
                  --mirror \"$3\"; code=$?; stat -c 'kept %s' \"$1\"/*.part; exit $code";
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    unshare.arg(folder.path()).arg(DOGWILD).arg(server.url());
    dogwild_lab::process::die_with_parent(&mut unshare);
    let output = unshare.output().expect("unshare of util-linux");
    let said = crate::support::output::said(&output);
    if said.contains("unshare: ") || said.contains("mount: ") {
        return skip(&format!("a mount namespace: {said}"));
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(
        &said,
        &[IMAGES, "No space left on device", "free some room", "--to"],
    );
    // All that found room is kept.
    let kept = said.split("kept ").nth(1).expect("a number");
    let kept = kept.split_whitespace().next().unwrap_or_default();
    let kept: u64 = kept.parse().expect("a number");
    assert!(kept > 900_000, "{said}");
}

/// A key and a certificate for 127.0.0.1, signed by itself.
fn certificate(folder: &Path) -> Option<PathBuf> {
    let mut request = Command::new("openssl");
    request.args([
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
    ]);
    request.args([
        "-subj", "/CN=test", "-keyout", "key.pem", "-out", "cert.pem",
    ]);
    request.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    request.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    match request.current_dir(folder).output() {
        Ok(output) if output.status.success() => Some(folder.join("cert.pem")),
        _ => {
            skip("Debian: openssl");
            None
        }
    }
}

#[test]
fn https_is_spoken_with_those_who_are_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(certificate) = certificate(folder.path()) else {
        return;
    };
    fs::write(folder.path().join(IMAGES), "what a server may have else").expect("a file");
    let mut serve = Command::new("openssl");
    serve.args(["s_server", "-WWW", "-accept", "127.0.0.1:0"]);
    serve.args(["-cert", "cert.pem", "-key", "key.pem"]);
    serve.current_dir(folder.path());
    serve.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Process::start(serve.stderr(Stdio::null()));
    let said = BufReader::new(server.take_stdout());
    let port = said.lines().map_while(Result::ok).find_map(|line| {
        let address = line.strip_prefix("ACCEPT ")?.to_owned();
        Some(address.rsplit_once(':')?.1.to_owned())
    });
    let mirror = format!("https://127.0.0.1:{}", port.expect("a port"));
    let to = folder.path().join("to");

    // The file came, and is what it is.
    let mut trusted = get(&to, &mirror);
    let said = refused(trusted.env("SSL_CERT_FILE", &certificate));
    assert_says(&said, &[&mirror, IMAGES, "gzip"]);
    // An unknown signer's does not come.
    let other = tempfile::tempdir().expect("a folder");
    let unknown = self::certificate(other.path()).expect("it was there");
    let mut untrusted = get(&to, &mirror);
    let said = refused(untrusted.env("SSL_CERT_FILE", unknown));
    assert_says(&said, &[&mirror, "certificate"]);
    assert!(!said.contains("gzip"), "{said}");
    let mut none = get(&to, &mirror);
    let said = refused(none.env("SSL_CERT_FILE", "/not/there"));
    assert_says(&said, &["ca-certificates", "SSL_CERT_FILE"]);
}

#[test]
fn wrong_words_are_answered_with_what_there_is() {
    let said = refused(dogwild().args(["data", "get", "imagenet"]));
    assert_says(&said, &["imagenet", "mnist", "cifar10"]);
    for wrong in ["ftp://host/x", "host/x", "http://", "https:///x"] {
        let said = refused(dogwild().args(["data", "get", "mnist", "--mirror", wrong]));
        assert_says(&said, &[wrong, "https://HOST/FOLDER"]);
    }
    let said = refused(dogwild().args(["data", "get", "mnist", "--to", "/proc/nowhere"]));
    assert_says(&said, &["/proc/nowhere", "--to"]);
}
