//! How documents and comments are written: lines of 100 columns and plain words; in documents
//! sentences of 25 words.
//!
//! Tables, code blocks and headings are not read. Inline code and links count as one word each.

use crate::documents::{is_dated, is_history};
use crate::no_complaints;
use crate::source::{Source, files};

/// Columns of a line, link targets left out.
const COLUMNS_MAX: usize = 100;
/// Words of a sentence.
const WORDS_MAX: usize = 25;
/// What stands for inline code and URLs: one word, which may begin a sentence.
const CODE: &str = "Code";

/// Words that end with a full stop and do not end a sentence.
const ABBREVIATIONS: [&str; 4] = ["e.g.", "i.e.", "vs.", "al."];

/// Words that documents, comments and messages do without, and what to write.
const AVOIDED: [(&str, &str); 11] = [
    ("beside", "next to, compared with, together with"),
    ("whoever", "name who it is"),
    ("whomever", "name who it is"),
    ("somebody", "name who it is"),
    ("nobody", "no process, no node, ..."),
    ("anybody", "any host, any process, ..."),
    ("everybody", "all nodes, each process, ..."),
    ("mend", "repair, recover"),
    ("mends", "repairs, recovers"),
    ("in vain", "without effect"),
    ("is no number", "is not a number"),
];
/// The file that names these words.
const THIS_FILE: &str = "tests/tidy/language.rs";

/// A run of text that is not broken by blank lines, tables, headings, code or list marks.
struct Paragraph {
    /// Number of its first line.
    line: usize,
    text: String,
}

/// Lines of a document that are prose, with their numbers; `None` stands for what parts paragraphs.
fn prose(text: &str) -> impl Iterator<Item = (usize, Option<&str>)> {
    let mut fenced = false;
    text.lines().enumerate().map(move |(i, line)| {
        let start = line.trim_start();
        let fence = start.starts_with("```");
        fenced ^= fence;
        let apart = fenced || fence || start.is_empty() || start.starts_with(['|', '#']);
        (i + 1, (!apart).then_some(line))
    })
}

/// The text behind a list mark (`-`, `*`, `1.`), if `line` begins with one.
fn list_item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (mark, rest) = line.split_once(' ')?;
    let number = mark.strip_suffix('.').unwrap_or_default();
    let numbered = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (mark == "-" || mark == "*" || numbered).then(|| rest.trim_start())
}

fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut open = false;
    for (line, prose) in prose(text) {
        let Some(prose) = prose else {
            open = false;
            continue;
        };
        let item = list_item(prose);
        match found.last_mut().filter(|_| open && item.is_none()) {
            Some(paragraph) => {
                paragraph.text.push(' ');
                paragraph.text.push_str(prose.trim());
            }
            None => found.push(Paragraph {
                line,
                text: item.unwrap_or(prose).trim().to_owned(),
            }),
        }
        open = true;
    }
    found
}

/// `text` with inline code and URLs as one word each, and without the targets of links.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = |close: char| rest[1..].find(close).map(|at| at + 2);
        let (length, instead) = match c {
            '`' => (skip('`'), CODE),
            '<' if rest.starts_with("<http") => (skip('>'), CODE),
            ']' if rest.starts_with("](") => (skip(')'), "]"),
            _ => (None, ""),
        };
        match length {
            Some(length) => {
                out.push_str(instead);
                rest = &rest[length..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// The sentences of a plain text, each as its words. A colon or a semicolon ends none.
fn sentences(plain: &str) -> Vec<Vec<&str>> {
    let marks = ['*', '_', '(', ')', '[', ']', '"', '\''];
    let words: Vec<&str> = plain.split_whitespace().collect();
    let mut found = vec![Vec::new()];
    for (i, word) in words.iter().enumerate() {
        let bare = word.trim_matches(marks);
        if bare.contains(char::is_alphanumeric) {
            found.last_mut().expect("one sentence").push(*word);
        }
        let next = words
            .get(i + 1)
            .map(|next| next.trim_start_matches(marks))
            .and_then(|next| next.chars().next());
        let begins = next.is_none_or(|c| c.is_uppercase() || c.is_ascii_digit());
        if bare.ends_with(['.', '!', '?']) && begins && !ABBREVIATIONS.contains(&bare) {
            found.push(Vec::new());
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

/// Documents whose language is held: not the history, and no lab notes of a day.
fn held() -> impl Iterator<Item = Source> {
    let all = files("md").into_iter();
    all.filter(|file| !is_history(&file.path) && !is_dated(&file.path))
}

#[test]
fn lines_are_wrapped() {
    let mut complaints = Vec::new();
    for document in files("md").iter().filter(|file| !is_history(&file.path)) {
        for (i, line) in prose(&document.text) {
            let targets = line.unwrap_or_default().split("](").skip(1);
            let targets = targets.filter_map(|rest| rest.split(')').next());
            let hidden: usize = targets.map(|target| target.chars().count() + 2).sum();
            let columns = line.unwrap_or_default().chars().count() - hidden;
            if columns > COLUMNS_MAX {
                complaints.push(format!(
                    "{}:{i}: {columns} columns without link targets: wrap it at {COLUMNS_MAX}",
                    document.path
                ));
            }
        }
    }
    no_complaints(complaints);
}

/// Comment lines of Rust files, tables and links left out: those cannot be wrapped.
#[test]
fn comments_are_wrapped() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        for (i, line) in file.text.lines().enumerate() {
            let comment = line.trim_start();
            let text = comment.trim_start_matches(['/', '!']).trim_start();
            let columns = line.chars().count();
            let wrappable = comment.starts_with("//")
                && !text.starts_with(['|', '<', '['])
                && !text.contains("://");
            if wrappable && columns > COLUMNS_MAX {
                complaints.push(format!(
                    "{}:{}: {columns} columns: wrap the comment at {COLUMNS_MAX}",
                    file.path,
                    i + 1
                ));
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn sentences_are_short() {
    let mut complaints = Vec::new();
    for document in held() {
        for paragraph in paragraphs(&document.text) {
            for words in sentences(&plain(&paragraph.text)) {
                if words.len() > WORDS_MAX {
                    complaints.push(format!(
                        "{}:{}: a sentence of {} words, {WORDS_MAX} at most: make two of it: `{} ...`",
                        document.path,
                        paragraph.line,
                        words.len(),
                        words[..8].join(" ")
                    ));
                }
            }
        }
    }
    no_complaints(complaints);
}

#[test]
fn words_are_plain() {
    let mut complaints = Vec::new();
    for document in held() {
        for paragraph in paragraphs(&document.text) {
            let text = plain(&paragraph.text).to_lowercase();
            for (word, instead) in AVOIDED {
                if crate::rust::has_word(&text, word) {
                    complaints.push(format!(
                        "{}:{}: `{word}`: write {instead}",
                        document.path, paragraph.line
                    ));
                }
            }
        }
    }
    no_complaints(complaints);
}

/// What a line of Rust has in `word` beyond its code: in a comment or a string.
fn says(line: &str, code: &str, word: &str) -> bool {
    let has = |text: &str| crate::rust::has_word(&text.to_lowercase(), word);
    has(line) && !has(code)
}

#[test]
fn words_of_comments_and_messages_are_plain() {
    let mut complaints = Vec::new();
    for file in files("rs").iter().filter(|file| file.path != THIS_FILE) {
        for (i, (line, code)) in file.text.lines().zip(file.code.lines()).enumerate() {
            for (word, instead) in AVOIDED {
                if says(line, code, word) {
                    complaints.push(format!(
                        "{}:{}: `{word}`: write {instead}",
                        file.path,
                        i + 1
                    ));
                }
            }
        }
    }
    no_complaints(complaints);
    assert!(says("f(x); // Whoever calls", "f(x);  ", "whoever"));
    assert!(says("f(\"no one mends\")", "f( )", "mends"));
    assert!(!says("let beside = 1;", "let beside = 1;", "beside"));
    assert!(!says("// path_beside, besides", " ", "beside"));
}

#[test]
fn sentences_and_paragraphs_are_told_apart() {
    let count = |text: &str| -> Vec<usize> {
        let found = paragraphs(text);
        let of = |p: &Paragraph| -> Vec<usize> {
            sentences(&plain(&p.text)).iter().map(Vec::len).collect()
        };
        found.iter().flat_map(of).collect()
    };
    assert_eq!(
        count("One two. Three\nfour (five). `a b` six.\n"),
        [2, 3, 2]
    );
    assert_eq!(
        count("- one two\n- three\n  four. Five\n\nsix"),
        [2, 2, 1, 1]
    );
    assert_eq!(
        count("# No\n| no |\n```\nno\n```\n1. **Yes.** [Yes yes](x y).\n"),
        [1, 2]
    );
    assert_eq!(
        count("See e.g. Caffe: 0.5 is `x.` here; v. 2 <https://a b> - ."),
        [8, 2]
    );
    assert_eq!(
        paragraphs("\na\nb\n\nc\n")
            .iter()
            .map(|p| p.line)
            .collect::<Vec<_>>(),
        [2, 5]
    );
}
