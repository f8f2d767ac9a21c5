//! What is wrong with a job file: each with its line, all in one message.

use std::fmt;

use super::read::Given;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Problem {
    /// The line in the file; none: it is of no one line.
    pub(super) line: Option<usize>,
    /// What is wrong, and what to do.
    pub(super) text: String,
}

/// All that is wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) struct Problems {
    /// The file.
    pub(super) file: String,
    /// What, by line.
    pub(super) all: Vec<Problem>,
}

impl Problem {
    /// Of one line.
    pub(super) fn at(line: usize, text: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            text: text.into(),
        }
    }

    /// An error whose words name flags: at the line of the first of them that the file sets.
    pub(super) fn place(text: &str, given: &[Given]) -> Self {
        let of = |name: &str| {
            let id = name.replace('-', "_");
            given.iter().find(|one| one.id == id)
        };
        let word = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            text[..end.unwrap_or(text.len())].to_owned()
        };
        let mut flags = text.split("--").skip(1).map(word);
        let line = flags.find_map(|name| of(&name)).map(|one| one.line);
        Self {
            line,
            text: text.trim_end().to_owned(),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.all.iter().map(|Problem { line, text }| {
            let text = text.replace('\n', "\n    ");
            match line {
                Some(line) => format!("{}:{line}: {text}", self.file),
                None => format!("{}: {text}", self.file),
            }
        });
        if let Some(first) = lines.next() {
            f.write_str(&first)?;
        }
        lines.try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// What clap says of arguments, without the words around it.
pub(super) fn said(error: &clap::Error) -> String {
    let whole = error.render().to_string();
    let whole = whole.strip_prefix("error: ").unwrap_or(&whole);
    let ends = ["\n\nUsage:", "\n\nFor more information"];
    let end = ends.iter().filter_map(|end| whole.find(end)).min();
    let text = whole[..end.unwrap_or(whole.len())].trim_end();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace(
        "invalid digit found in string",
        "give a whole number, 0 or more",
    )
}
