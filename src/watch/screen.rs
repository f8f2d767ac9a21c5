//! Text that fits a screen: tables whose columns fold into blocks, lines that wrap at words.
//!
//! Reads `COLUMNS` and the terminal's size; writes nothing. Invariant: no word is broken, so only a
//! word that is wider than the screen makes a line that is.

use std::fmt;
use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

pub use super::wrap::wrap;

/// Columns where neither `COLUMNS` nor a terminal tells.
pub const WIDTH_PLAIN: usize = 80;
/// Below this no table can be read; what asks for less is taken for a mistake.
const WIDTH_MIN: usize = 40;

/// Columns of the screen that standard output goes to: `COLUMNS`, else the terminal's, else
/// `plain`.
pub fn width_or(plain: usize) -> usize {
    let asked = std::env::var("COLUMNS").ok();
    let asked = asked.and_then(|columns| columns.trim().parse().ok());
    let terminal = || {
        let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
        Some(usize::from(width.0))
    };
    let found = asked.filter(|&columns| columns > 0).or_else(terminal);
    found.unwrap_or(plain).max(WIDTH_MIN)
}

/// The same, [`WIDTH_PLAIN`] where nothing tells.
pub fn width() -> usize {
    width_or(WIDTH_PLAIN)
}

/// As many of `parts`, the first ones first, as fit into `width` columns, two blanks between them.
pub fn fit(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + gap.len() + part.chars().count() <= width {
            line += gap;
            line += part;
        }
    }
    line
}

/// A table. Columns that do not fit stand in a further block below, each block with the first
/// column.
#[derive(Clone, Debug)]
pub struct Columns {
    lines: bool,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    words: Range<usize>,
}

impl Columns {
    /// A table with lines around it.
    pub fn boxed(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            lines: true,
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            words: 0..1,
        }
    }

    /// A table without lines.
    pub fn plain(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            lines: false,
            ..Self::boxed(head)
        }
    }

    /// Columns that hold words and stand to the left; the others hold numbers. Default: the first.
    #[must_use]
    pub fn with_words(mut self, words: Range<usize>) -> Self {
        self.words = words;
        self
    }

    /// Adds a row; cells that are missing are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// The table, no wider than `width` columns as far as its words allow.
    pub fn fold(&self, width: usize) -> String {
        let mut blocks = Vec::new();
        let mut from = 1;
        while from < self.head.len() || blocks.is_empty() {
            let mut block = self.block(from..self.head.len().min(from + 1));
            let mut to = from + 1;
            while to < self.head.len() {
                let more = self.block(from..to + 1);
                if columns(&more) > width {
                    break;
                }
                (block, to) = (more, to + 1);
            }
            if columns(&block) > width {
                block.set_content_arrangement(ContentArrangement::Dynamic);
                block.set_width(u16::try_from(width).unwrap_or(u16::MAX));
            }
            blocks.push(block.trim_fmt());
            from = to;
        }
        blocks.join(if self.lines { "\n" } else { "\n\n" })
    }

    /// The first column and those of `range`.
    fn block(&self, range: Range<usize>) -> Table {
        let of = |cells: &[String]| -> Vec<String> {
            cells[..1]
                .iter()
                .chain(&cells[range.clone()])
                .cloned()
                .collect()
        };
        let mut table = Table::new();
        let style = if self.lines {
            presets::UTF8_FULL_CONDENSED
        } else {
            presets::NOTHING
        };
        table.load_style(style).set_header(of(&self.head));
        for row in &self.rows {
            table.add_row(of(row));
        }
        let at = std::iter::once(0).chain(range.clone());
        for (at, column) in at.zip(table.column_iter_mut()) {
            if !self.words.contains(&at) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

fn columns(table: &Table) -> usize {
    let lines = table.lines().map(|line| line.trim_end().chars().count());
    lines.max().unwrap_or(0)
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fold(width()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: usize) -> Columns {
        let head = (0..columns).map(|k| format!("node {k}"));
        let mut table = Columns::boxed(std::iter::once(String::new()).chain(head));
        for name in ["iterations", "frames received"] {
            let cells = (0..columns).map(|k| (123_456 * (k + 1)).to_string());
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
        table
    }

    fn widest(text: &str) -> usize {
        text.lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn columns_fold_into_blocks_and_no_word_breaks() {
        for nodes in [1, 2, 4, 8, 64] {
            let text = table(nodes).fold(80);
            assert!(widest(&text) <= 80, "{text}");
            for k in 0..nodes {
                assert!(text.contains(&format!("node {k} ")), "{text}");
                assert!(text.contains(&(123_456 * (k + 1)).to_string()), "{text}");
            }
        }
        assert_eq!(table(2).fold(80).matches("iterations").count(), 1);
        assert_eq!(table(8).fold(80).matches("iterations").count(), 2);
    }

    #[test]
    fn a_column_that_is_too_wide_wraps_at_words() {
        let mut table = Columns::plain(["layer", "what"]);
        table.row(["conv1".to_owned(), "several words ".repeat(10)]);
        let text = table.fold(50);
        assert!(
            widest(&text) <= 50 && text.matches("several").count() == 10,
            "{text}"
        );
    }

    #[test]
    fn lines_wrap_and_parts_are_left_out() {
        let text = wrap("one two three four\nfive", 9);
        assert_eq!(text, "one two\n  three\n  four\nfive");
        assert_eq!(
            wrap("a-word-that-has-no-room x", 5),
            "a-word-that-has-no-room\n  x"
        );
        let parts = ["loss 0.1", "", "a part too long", "5 it/s"].map(str::to_owned);
        assert_eq!(fit(&parts, 16), "loss 0.1  5 it/s");
    }

    #[test]
    fn empty_tables_are_tables() {
        assert!(!Columns::boxed([""]).fold(80).is_empty());
    }
}
