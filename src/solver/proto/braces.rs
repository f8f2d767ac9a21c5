//! Braces of a prototxt that do not match: the parser tells only what surprised it, often far from
//! there.

/// A brace without its partner.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Odd {
    /// Opened in this line, never closed.
    Open(usize),
    /// Closes nothing, in this line.
    Close(usize),
}

/// The innermost brace that stays open to the end, or the first that closes nothing. Comments and
/// strings aside.
pub(super) fn odd_one(text: &str) -> Option<Odd> {
    let mut open = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut quote = None;
        let mut escaped = false;
        for c in line.chars() {
            match (quote, c) {
                (Some(_), _) if escaped => escaped = false,
                (Some(_), '\\') => escaped = true,
                (Some(end), _) => quote = Some(end).filter(|end| *end != c),
                (None, '"' | '\'') => quote = Some(c),
                (None, '#') => break,
                (None, '{') => open.push(i + 1),
                (None, '}') if open.pop().is_none() => return Some(Odd::Close(i + 1)),
                (None, _) => {}
            }
        }
    }
    open.pop().map(Odd::Open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_and_comments_do_not_count() {
        assert_eq!(odd_one("a {\n b: '{' # {\n c: \"\\\"}\"\n}\n"), None);
        assert_eq!(odd_one("a {\n}\nb {\n c {\n }\n"), Some(Odd::Open(3)));
        assert_eq!(odd_one("a {\n}\n}\n"), Some(Odd::Close(3)));
    }
}
