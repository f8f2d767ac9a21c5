//! The files of the repository, and Rust source without its comments and strings.

use std::fs;
use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    /// From the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// `text` with comments and the contents of strings blanked; the same lines.
    pub(crate) code: String,
}

impl Source {
    /// Number of the line (from 1) where the unit tests at the end of the file begin, or one past
    /// the last line.
    pub(crate) fn tests_begin(&self) -> usize {
        let lines = self.code.lines();
        let at = lines
            .clone()
            .position(|line| line.starts_with("#[cfg(test)]"));
        at.unwrap_or(lines.count()) + 1
    }

    /// True for files that hold tests or benchmarks only.
    pub(crate) fn is_test(&self) -> bool {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        self.path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
            || file == "tests.rs"
    }

    /// Lines of code with their numbers, without the unit tests.
    pub(crate) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = if self.is_test() {
            0
        } else {
            self.tests_begin() - 1
        };
        self.code
            .lines()
            .take(end)
            .enumerate()
            .map(|(i, line)| (i + 1, line))
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    match std::env::var_os("DOGWILD_TIDY_ROOT") {
        Some(root) => root.into(),
        None => env!("CARGO_MANIFEST_DIR").into(),
    }
}

/// All files whose name ends in `.extension`, without build products and hidden folders.
pub(crate) fn files(extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() {
                if !name.starts_with('.') && !name.starts_with("target") {
                    folders.push(path);
                }
            } else if name
                .strip_suffix(extension)
                .is_some_and(|stem| stem.ends_with('.'))
            {
                found.push(read(&path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        !found.is_empty(),
        "no .{extension} file under {}",
        root().display()
    );
    found
}

/// One file by its path from the root, if it is there.
pub(crate) fn file(path: &str) -> Option<Source> {
    let path = root().join(path);
    path.is_file().then(|| read(&path))
}

fn read(path: &Path) -> Source {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let relative = path.strip_prefix(root()).expect("a path below the root");
    let path = relative.to_string_lossy().replace('\\', "/");
    let code = if path.ends_with(".rs") {
        code_only(&text)
    } else {
        String::new()
    };
    Source { path, text, code }
}

/// Blanks comments and the contents of string and character literals; keeps line ends.
fn code_only(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word_before = out
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        let (length, blank) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true)
        } else if let (Some(length), false) = (raw_string(rest), word_before) {
            (length, true)
        } else if c == '"' {
            (quoted(rest, '"'), true)
        } else if c == '\'' && is_char_literal(rest) {
            (quoted(rest, '\''), true)
        } else {
            (c.len_utf8(), false)
        };
        let (token, after) = rest.split_at(length);
        if blank {
            out.extend(token.chars().filter(|&c| c == '\n'));
            out.push(' ');
        } else {
            out.push_str(token);
        }
        rest = after;
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let (step, change) = match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            break;
        }
    }
    at.min(text.len())
}

/// Length of a raw string literal at the start of `text`.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = text[prefix.len()..]
        .chars()
        .take_while(|&c| c == '#')
        .count();
    let open = prefix.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(
        text[open..]
            .find(&close)
            .map_or(text.len(), |at| open + at + close.len()),
    )
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Tells `'x'` from the lifetime `'x`.
fn is_char_literal(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    let first = chars.next();
    first == Some('\\') || chars.next() == Some('\'')
}

#[test]
fn comments_and_strings_are_no_code() {
    let code = |text: &str| {
        code_only(text)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(code("a // b\nc"), "a c");
    assert_eq!(code("a /* b /* c */ d */ e"), "a e");
    assert_eq!(
        code(r#"f("un\"safe", b"x", 'y', '\'', 'a)"#),
        "f( , b , , , 'a)"
    );
    assert_eq!(code("x(r#\"a \" b\"#) y"), "x( ) y");
    assert_eq!(code("for\"x\"bar"), "for bar");
    assert_eq!(code_only("/* a\nb */\n\"c\nd\"\n").lines().count(), 4);
}
