//! The kept corpus of the fuzz targets, run through what they check. `fuzz/` finds more; this holds
//! what it has found.

#![cfg(feature = "poseidon")]

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// Another crate's, which libFuzzer's targets use.
#[allow(unreachable_pub)]
#[path = "../fuzz/src/lib.rs"]
mod targets;

use dogwild::wire::Kind;

/// Runs all inputs of a target, the names of which say which one it was.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let folder = folder.join(target);
    let inputs = std::fs::read_dir(&folder).expect("a corpus");
    let mut count = 0;
    for input in inputs {
        let path = input.expect("an entry").path();
        println!("{}", path.display());
        run(&std::fs::read(&path).expect("an input"));
        count += 1;
    }
    assert!(count > 0, "no inputs in {}", folder.display());
}

#[test]
fn frames() {
    replay("frame", targets::frame::run);
}

#[test]
fn messages_of_the_reliable_path() {
    replay("poseidon", targets::poseidon::run);
}

#[test]
fn files() {
    replay("files", targets::files::run);
}

/// Frames of all kinds reach a streamer in it.
#[test]
fn streamers() {
    replay("streamer", targets::streamer::run);
    for kind in Kind::ALL {
        let taken = targets::streamer::TAKEN[kind as usize].load(Relaxed);
        assert!(taken > 0, "no frame of kind {kind:?} in the corpus");
    }
    assert!(targets::streamer::FRAMES.load(Relaxed) > 1000);
}
