//! Small sets, whose checksums a test makes.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;

use dogwild::job::data_get::{DataGetError, Download, Held, Packed, Set, get};
use dogwild::node::Stop;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::server::{Answer, Server};
use crate::support::output::assert_says;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Bytes that do not become fewer when they are packed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn held(name: &str, bytes: &[u8]) -> Held {
    let sum = Sha256::digest(bytes);
    Held {
        name: name.to_owned(),
        bytes: bytes.len() as u64,
        sha256: sum.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// A set of gzipped files.
fn set(files: &[(&str, &[u8])]) -> Set {
    let download = |(name, bytes): &(&str, &[u8])| Download {
        file: format!("{name}.gz"),
        packed: Packed::Gzip,
        bytes: gzip(bytes).len() as u64,
        holds: vec![held(name, bytes)],
    };
    Set {
        name: "small".into(),
        downloads: files.iter().map(download).collect(),
        mirrors: Vec::new(),
    }
}

fn bring(set: &Set, to: &Path, servers: &[&Server]) -> Result<usize, DataGetError> {
    let mirrors = servers.iter().map(|server| server.url()).collect();
    get(set.clone(), to, mirrors, &Stop::default())
}

/// Names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// One file, packed, its set, and a folder for it.
struct One {
    packed: Vec<u8>,
    set: Set,
    folder: TempDir,
}

impl One {
    fn new() -> Self {
        let bytes = noise(300_000, 1);
        Self {
            packed: gzip(&bytes),
            set: set(&[("a", &bytes)]),
            folder: folder(),
        }
    }

    fn is_right(&self) -> bool {
        names(self.folder.path()) == ["a.gz"]
            && fs::read(self.folder.path().join("a.gz")).expect("a file") == self.packed
    }

    fn leave_part(&self, bytes: &[u8]) {
        fs::write(self.folder.path().join("a.gz.part"), bytes).expect("a file");
    }

    fn bring(&self, servers: &[&Server]) -> Result<usize, DataGetError> {
        bring(&self.set, self.folder.path(), servers)
    }
}

#[test]
fn a_set_is_brought_whole_and_only_once() {
    let (a, b) = (noise(200_000, 1), noise(10, 2));
    let set = set(&[("a", &a), ("b", &b)]);
    let server = Server::of(vec![("a.gz".into(), gzip(&a)), ("b.gz".into(), gzip(&b))]);
    let folder = folder();
    let to = folder.path().join("new/folder");
    assert_eq!(bring(&set, &to, &[&server]).expect("it comes"), 2);
    assert_eq!(names(&to), ["a.gz", "b.gz"]);
    assert_eq!(fs::read(to.join("a.gz")).expect("a file"), gzip(&a));
    assert_eq!(server.froms(), [None, None]);
    assert_eq!(bring(&set, &to, &[&server]).expect("it is there"), 0);
    assert_eq!(server.asked().len(), 2, "nothing was downloaded again");
    // Unpacked is as good, and packed in another way too.
    fs::remove_file(to.join("a.gz")).expect("it is there");
    fs::write(to.join("a"), &a).expect("a file");
    let mut stored = GzEncoder::new(Vec::new(), Compression::none());
    stored.write_all(&b).expect("memory");
    fs::write(to.join("b.gz"), stored.finish().expect("memory")).expect("a file");
    assert_eq!(bring(&set, &to, &[&server]).expect("it is there"), 0);
    // What is lacking comes alone.
    fs::remove_file(to.join("b.gz")).expect("it is there");
    assert_eq!(bring(&set, &to, &[&server]).expect("it comes"), 1);
    assert_eq!(server.asked()[2].name, "b.gz");
}

#[test]
fn a_download_goes_on_where_it_broke_off() {
    let one = One::new();
    let packed = one.packed.clone();
    let server = Server::start(move |_, before| match before {
        0 | 1 => Answer::of(&packed).cut(100_000),
        _ => Answer::of(&packed),
    });
    assert_eq!(one.bring(&[&server]).expect("it comes"), 1);
    assert!(one.is_right());
    assert_eq!(server.froms(), [None, Some(100_000), Some(200_000)]);
}

#[test]
fn a_later_call_goes_on_too_and_from_another_mirror() {
    let one = One::new();
    one.leave_part(&one.packed[..1234]);
    let packed = one.packed.clone();
    let breaks = Server::start(move |_, _| Answer::of(&packed).cut(0));
    let whole = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    one.bring(&[&breaks, &whole]).expect("it comes");
    assert!(one.is_right());
    assert_eq!(breaks.froms(), [Some(1234)]);
    assert_eq!(whole.froms(), [Some(1234)]);
}

#[test]
fn a_part_that_is_whole_is_only_looked_at() {
    let one = One::new();
    one.leave_part(&one.packed);
    let server = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    one.bring(&[&server]).expect("it is there");
    assert!(one.is_right());
    assert_eq!(server.froms(), [Some(one.packed.len())]);
}

#[test]
fn a_server_without_parts_gives_the_whole() {
    let one = One::new();
    one.leave_part(&one.packed[..1234]);
    let packed = one.packed.clone();
    let server = Server::start(move |_, _| Answer::of(&packed).without_ranges());
    one.bring(&[&server]).expect("it comes");
    assert!(one.is_right());
    assert_eq!(server.froms(), [Some(1234)]);
}

#[test]
fn a_server_that_always_breaks_off_there_is_given_up() {
    let one = One::new();
    let packed = one.packed.clone();
    let server = Server::start(move |_, _| Answer::of(&packed).without_ranges().cut(5000));
    let error = one.bring(&[&server]).expect_err("never whole").to_string();
    assert_says(&error, &["a.gz", &server.url(), "--mirror"]);
    // What came is kept.
    assert_eq!(names(one.folder.path()), ["a.gz.part"]);
}

#[test]
fn a_part_that_does_not_fit_is_thrown_away() {
    let one = One::new();
    one.leave_part(&noise(1234, 9));
    let server = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    one.bring(&[&server]).expect("it comes");
    assert!(one.is_right());
    assert_eq!(server.froms(), [Some(1234), None]);

    let one = One::new();
    one.leave_part(&noise(one.packed.len() + 7, 9));
    one.bring(&[&server]).expect("it comes");
    assert!(one.is_right());
    let longer = Some(one.packed.len() + 7);
    assert_eq!(server.froms()[2..], [longer, None]);
}

#[test]
fn what_has_a_wrong_checksum_does_not_get_its_name() {
    let one = One::new();
    let wrong = noise(300_000, 2);
    let expected = held("a", &wrong).sha256;
    let liar = Server::of(vec![("a.gz".into(), gzip(&wrong))]);
    let error = one.bring(&[&liar]).expect_err("it is another").to_string();
    let right = &one.set.downloads[0].holds[0].sha256;
    assert_says(&error, &["a.gz", &liar.url(), &expected, right, "--mirror"]);
    assert_eq!(names(one.folder.path()), [""; 0]);
    // The next mirror may be better.
    let honest = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    one.bring(&[&liar, &honest]).expect("it comes");
    assert!(one.is_right());
}

#[test]
fn what_is_no_archive_or_has_no_end_is_refused() {
    let one = One::new();
    for (file, word) in [
        (b"<html>log in first</html>".to_vec(), "gzip"),
        (one.packed[..one.packed.len() - 9].to_vec(), "a: "),
        (gzip(&vec![0; 400_000]), "more than 300000 bytes"),
        (noise(3 << 20, 3), "another file"),
    ] {
        let server = Server::of(vec![("a.gz".into(), file)]);
        let error = one.bring(&[&server]).expect_err(word).to_string();
        assert_says(&error, &["a.gz", word]);
        assert_eq!(names(one.folder.path()), [""; 0], "{error}");
    }
}

#[test]
fn dead_mirrors_are_named_and_the_next_is_asked() {
    let one = One::new();
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    let without = Server::of(Vec::new());
    let mirrors = vec![dead.clone(), without.url()];
    let to = one.folder.path();
    let error = get(one.set.clone(), to, mirrors.clone(), &Stop::default());
    let error = error.expect_err("no mirror has it").to_string();
    assert_says(
        &error,
        &[
            &format!("{dead}/a.gz: "),
            "refused",
            &without.url(),
            "404 Not Found",
        ],
    );
    assert_eq!(names(to), [""; 0]);
    let good = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    let mirrors = [mirrors, vec![good.url()]].concat();
    get(one.set.clone(), to, mirrors, &Stop::default()).expect("it comes");
    assert!(one.is_right());
}

#[test]
fn a_file_of_the_users_is_not_touched() {
    let one = One::new();
    let server = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    for (name, bytes) in [("a.gz", gzip(b"mine")), ("a", b"mine".to_vec())] {
        let path = one.folder.path().join(name);
        fs::write(&path, &bytes).expect("a file");
        let error = one
            .bring(&[&server])
            .expect_err("it is another")
            .to_string();
        assert_says(&error, &[path.to_str().expect("text"), "SHA-256", "--to"]);
        assert_eq!(fs::read(&path).expect("it is there"), bytes);
        fs::remove_file(path).expect("it is there");
    }
    assert_eq!(server.asked(), []);
}

#[test]
fn two_downloads_of_one_file_do_not_mix() {
    let one = One::new();
    let path = one.folder.path().join("a.gz.part");
    let other = fs::File::create(&path).expect("a file");
    other.try_lock().expect("no other has it");
    let server = Server::of(vec![("a.gz".into(), one.packed.clone())]);
    let error = one.bring(&[&server]).expect_err("it is busy").to_string();
    assert_says(&error, &["a.gz.part", "another process", "--to"]);
    drop(other);
    one.bring(&[&server]).expect("it comes");
    assert!(one.is_right());
}

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // `append_data` refuses the paths that an attacker would choose.
        let field = &mut header.as_gnu_mut().expect("it is").name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *bytes).expect("memory");
    }
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    builder
        .append_link(&mut link, "folder/2.bin", "/etc/passwd")
        .expect("memory");
    gzip(&builder.into_inner().expect("memory"))
}

#[test]
fn an_archive_is_unpacked_by_its_known_names_alone() {
    let (first, second) = (noise(70_000, 1), noise(70_000, 2));
    let set = Set {
        name: "small".into(),
        downloads: vec![Download {
            file: "all.tar.gz".into(),
            packed: Packed::Tar,
            bytes: 140_000,
            holds: vec![held("1.bin", &first), held("2.bin", &second)],
        }],
        mirrors: Vec::new(),
    };
    let outer = folder();
    let to = outer.path().join("inner");
    let with =
        |entries: &[(&str, &[u8])]| Server::of(vec![("all.tar.gz".into(), archive(entries))]);
    let good = with(&[
        ("../evil.bin", b"evil"),
        ("folder/readme.html", b"hello"),
        ("folder/1.bin", &first),
        ("/abs/folder/2.bin", &second),
    ]);
    for (bad, word) in [
        (
            with(&[("folder/1.bin", &first)]),
            "2.bin is not in the archive",
        ),
        (
            with(&[("1.bin", &first), ("2.bin", &first)]),
            "2.bin has 70000",
        ),
    ] {
        let error = bring(&set, &to, &[&bad]).expect_err(word).to_string();
        assert_says(&error, &["all.tar.gz", word]);
        assert_eq!(names(&to), [""; 0]);
    }
    assert_eq!(bring(&set, &to, &[&good]).expect("it comes"), 1);
    assert_eq!(names(&to), ["1.bin", "2.bin"]);
    assert_eq!(names(outer.path()), ["inner"]);
    assert_eq!(fs::read(to.join("2.bin")).expect("a file"), second);
    assert_eq!(bring(&set, &to, &[&good]).expect("it is there"), 0);
    assert_eq!(good.asked().len(), 1);
}
