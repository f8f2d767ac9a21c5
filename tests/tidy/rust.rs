//! Rules for source files: how they open, how long they are, which may have `unsafe`.

use crate::no_complaints;
use crate::source::{Source, file, files};

/// Lines of a file, its unit tests left out.
const LINES_MAX: usize = 400;

/// The files that may have `unsafe`. A new one is a decision: its neighbours call safe functions of
/// it.
const UNSAFE_FILES: [&str; 55] = [
    "lab/src/sys.rs",
    "net/src/af_xdp/ring.rs",
    "net/src/af_xdp/sys.rs",
    "net/src/packet_mmap/ring.rs",
    "net/src/packet_mmap/sys.rs",
    "net/src/seal/clmul.rs",
    "net/src/seal/replay.rs",
    "net/src/syscalls.rs",
    "net/src/udp/sys.rs",
    "net/src/verbs/device.rs",
    "net/src/verbs/ffi.rs",
    "net/src/verbs/queue.rs",
    "net/src/verbs/recv_ring.rs",
    "net/src/verbs/send_ring.rs",
    "net/src/verbs/subnet.rs",
    "python/src/buffer.rs",
    "python/src/reliable/worker.rs",
    "python/src/solver.rs",
    "src/device/cuda/blas.rs",
    "src/device/cuda/context.rs",
    "src/device/cuda/driver.rs",
    "src/device/cuda/memory.rs",
    "src/device/cuda.rs",
    "src/device/cuda/stream.rs",
    "src/device/cuda/stream/products.rs",
    "src/device/host.rs",
    "src/device/kernels/net.rs",
    "src/device/memory.rs",
    "src/device.rs",
    "src/device/product.rs",
    "src/solver/gemm.rs",
    "src/weights/gpu_state.rs",
    "src/weights/header.rs",
    "src/weights/journal.rs",
    "src/weights/kernels/apply.rs",
    "src/weights/kernels/copy.rs",
    "src/weights/kernels/crash_tests.rs",
    "src/weights/kernels/fours.rs",
    "src/weights/kernels/lanes.rs",
    "src/weights/kernels.rs",
    "src/weights/kernels/rounded.rs",
    "src/weights/kernels/take.rs",
    "src/weights/kernels/views.rs",
    "src/weights/kernels/x86.rs",
    "src/weights/mapping.rs",
    "src/weights.rs",
    "src/weights/process.rs",
    "src/weights/publish.rs",
    "src/weights/peers.rs",
    "src/weights/slots.rs",
    "src/weights/solver_state.rs",
    "src/weights/state.rs",
    "src/weights/tests/buffer.rs",
    "src/weights/view.rs",
    "tools/src/xtask/ptx.rs",
];

/// True if `word` stands in `line` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(inside) && !line[at + word.len()..].starts_with(inside)
    })
}

#[test]
fn files_say_what_they_hold() {
    let opens = |file: &Source| {
        file.text.starts_with("//!")
            || (file.text.starts_with("#!") && !file.text.starts_with("#!["))
    };
    let silent = files("rs").into_iter().filter(|file| !opens(file));
    no_complaints(
        silent
            .map(|file| {
                format!(
                    "{}:1: does not open with `//!`: say what the file holds, what it may touch, \
                     its invariants",
                    file.path
                )
            })
            .collect(),
    );
}

/// A module with files of its own is `name.rs` and `name/`. What test programs share is not: cargo
/// takes each file of `tests/` for a program.
#[test]
fn modules_have_one_style() {
    let shared = ["tests/support/mod.rs", "tests/suite/mod.rs"];
    let other = files("rs").into_iter().filter(|file| {
        file.path.ends_with("/mod.rs") && !shared.iter().any(|end| file.path.ends_with(end))
    });
    let complaint = |file: Source| format!("{}:1: name it after its folder, next to it", file.path);
    no_complaints(other.map(complaint).collect());
}

#[test]
fn files_stay_short() {
    let long = files("rs")
        .into_iter()
        .filter(|file| !file.is_test())
        .filter_map(|file| {
            let lines = file.tests_begin() - 1;
            (lines > LINES_MAX).then(|| {
            format!(
                "{}:{LINES_MAX}: {lines} lines without tests, {LINES_MAX} at most: give a part a \
                 file of its own",
                file.path
            )
        })
        });
    no_complaints(long.collect());
}

/// True if the line, without comments and strings, has the word or opens a file for it.
fn has_unsafe(line: &str) -> bool {
    has_word(line, "unsafe")
        || line.contains("allow(unsafe_code)")
        || line.contains("expect(unsafe_code)")
}

#[test]
fn unsafe_stays_in_its_files_and_says_why_it_is_sound() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        let allowed = UNSAFE_FILES.contains(&file.path.as_str());
        let raw: Vec<&str> = file.text.lines().collect();
        for (i, line) in file.code.lines().enumerate() {
            if !has_unsafe(line) {
                continue;
            }
            let at = format!("{}:{}", file.path, i + 1);
            if !allowed {
                complaints.push(format!(
                    "{at}: `unsafe` in a file that is not listed for it (UNSAFE_FILES in \
                     tests/tidy/rust.rs): call a safe function of one that is"
                ));
            } else if let Some(missing) = missing_reason(&raw, i, line) {
                complaints.push(format!("{at}: {missing}"));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn files_listed_for_unsafe_exist_and_have_it() {
    let complaints = UNSAFE_FILES.iter().filter_map(|path| {
        let problem = match file(path) {
            None => "there is no such file",
            Some(file) if !file.code.lines().any(has_unsafe) => "the file has no `unsafe`",
            Some(_) => return None,
        };
        Some(format!(
            "tests/tidy/rust.rs: UNSAFE_FILES lists {path}: {problem}: take it off"
        ))
    });
    no_complaints(complaints.collect());
}

/// What an `unsafe` at line `i` lacks: a reason above it, or on the same line.
fn missing_reason(raw: &[&str], i: usize, code: &str) -> Option<&'static str> {
    let word = |next: &str| code.contains(&format!("unsafe {next}"));
    if word("{") || word("impl") || code.trim_end().ends_with("unsafe") {
        let near = &raw[i.saturating_sub(10)..=i];
        let found = near.iter().any(|line| line.contains("SAFETY:"));
        return (!found).then_some("`unsafe` without `// SAFETY:` above: say why it is sound");
    }
    let named = code.split("unsafe").nth(1).is_some_and(|rest| {
        let rest = rest.trim_start().trim_start_matches("extern").trim_start();
        rest.strip_prefix("fn ")
            .is_some_and(|name| !name.trim_start().starts_with('('))
    });
    if named && !in_trait_impl(raw, i) {
        let above = raw[..i].iter().rev();
        let mut above = above.take_while(|line| {
            let line = line.trim_start();
            line.starts_with("//") || line.starts_with("#[")
        });
        let found = above.any(|line| line.contains("# Safety") || line.contains("SAFETY:"));
        return (!found).then_some("unsafe fn without `# Safety` in its documentation");
    }
    None
}

/// True if line `i` stands in an `impl Trait for Type`: the trait's documentation says what holds.
fn in_trait_impl(raw: &[&str], i: usize) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut outer = raw[..i].iter().rev().filter(|line| !line.trim().is_empty());
    let owner = outer.find(|line| indent(line) < indent(raw[i]));
    owner.is_some_and(|line| line.trim_start().starts_with("impl") && line.contains(" for "))
}

#[test]
fn nothing_is_left_for_later() {
    const BANNED: [(&str, &str); 5] = [
        (
            "todo!",
            "write it, or return an error that says what is not supported",
        ),
        (
            "unimplemented!",
            "write it, or return an error that says what is not supported",
        ),
        ("dbg!", "use log::debug! or remove it"),
        (
            "#[ignore]",
            "correct the test or remove it; what lacks a privilege or data calls skip(); what is \
             long says so: #[ignore = \"long: ...\"]",
        ),
        (
            "thread_rng",
            "take a seeded Xoshiro256PlusPlus as an argument",
        ),
    ];
    let mut complaints = Vec::new();
    for file in files("rs") {
        for (i, line) in file.code.lines().enumerate() {
            for (banned, instead) in BANNED.iter().filter(|(banned, _)| line.contains(banned)) {
                complaints.push(format!("{}:{}: `{banned}`: {instead}", file.path, i + 1));
            }
        }
    }
    no_complaints(complaints);
}

/// Helpers of tests, whose words libtest shall catch, what speaks to cargo, and examples, which
/// stand without our crates for programs.
const MAY_PRINT: [&str; 4] = [
    "lab/src/enter.rs",
    "lab/src/skip.rs",
    "build.rs",
    "examples/",
];

#[test]
fn programs_print_in_a_way_that_cannot_panic() {
    const PANICKING: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];
    let mut complaints = Vec::new();
    for file in files("rs") {
        if MAY_PRINT.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        for (line, code) in file.product_lines() {
            for found in PANICKING.iter().filter(|&&name| has_word(code, name)) {
                complaints.push(format!(
                    "{}:{line}: `{found}` panics on a closed pipe or a full disk: use \
                     dogwild_lab::say! (standard output) or dogwild_lab::note! (standard error)",
                    file.path
                ));
            }
        }
    }
    no_complaints(complaints);
}

/// Lines (from 1) of doc comments that are one word: of an item whose name says as much. Code, as
/// `name`, is a reference and may stand alone.
fn one_word_docs(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let doc = |i: usize| lines.get(i).is_some_and(|line| line.starts_with("///"));
    let alone = |i: &usize| {
        let word = lines[*i].strip_prefix("///").unwrap_or_default().trim();
        let bare = word.trim_end_matches('.');
        !bare.is_empty() && bare.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    let all = (0..lines.len()).filter(|i| doc(*i) && !doc(i + 1) && (*i == 0 || !doc(i - 1)));
    all.filter(alone).map(|i| i + 1).collect()
}

#[test]
fn doc_comments_say_more_than_a_word() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        for line in one_word_docs(&file.text) {
            complaints.push(format!(
                "{}:{line}: a doc comment of one word: say what the name does not, or leave it out",
                file.path
            ));
        }
    }
    no_complaints(complaints);
    let text = "/// Which.\n    a: u8,\n/// Two words.\n/// `b`.\n\n/// `b`.\nb,\n// Not one.\n";
    assert_eq!(one_word_docs(text), [1]);
}

#[test]
fn unsafe_and_words_are_matched_whole() {
    assert!(has_unsafe("#![allow(unsafe_code)]") && !has_unsafe("not_unsafe(x)"));
    assert!(has_word("unsafe {", "unsafe"));
    assert!(!has_word("allow(unsafe_code)", "unsafe"));
    assert!(has_word("std::println!(x)", "println!") && !has_word("eprintln!(x)", "println!"));
    let says = |above: &str, code: &str| missing_reason(&[above, code], 1, code).is_some();
    assert!(says("// hm", "unsafe { f() }") && !says("// SAFETY: x", "unsafe { f() }"));
    assert!(says("/// hm", "pub unsafe fn f()") && !says("/// # Safety", "pub unsafe fn f()"));
    assert!(!says("impl A for B {", "    unsafe fn f()") && says("impl B {", "    unsafe fn f()"));
    assert!(!says("", "type F = unsafe extern fn();") && !says("", "f: unsafe fn (u8),"));
}
