//! Whether an SPDX licence expression is allowed.
//!
//! Touches nothing but its arguments. `A OR B` is allowed if one of them is, `A AND B` if both
//! are; AND binds more tightly. `A WITH E` is a licence of its own. `/`, which old manifests have
//! for OR, is understood.

use std::iter::Peekable;
use std::vec::IntoIter;

use anyhow::{Result, bail};

/// The licences that `expression` names, each as `deny.toml` would.
///
/// # Errors
/// It is not an SPDX expression.
pub(crate) fn names(expression: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    is_allowed(expression, |name| {
        names.push(name.to_owned());
        true
    })?;
    Ok(names)
}

/// Whether `expression` holds where each licence is what `allowed` says. Asks for all of them.
///
/// # Errors
/// It is not an SPDX expression.
pub(crate) fn is_allowed(expression: &str, allowed: impl FnMut(&str) -> bool) -> Result<bool> {
    let mut parser = Parser {
        expression,
        words: words(expression).into_iter().peekable(),
        allowed,
    };
    let result = parser.either()?;
    match parser.words.next() {
        None => Ok(result),
        Some(word) => bail!("`{word}` is one too many in the licence `{expression}`"),
    }
}

fn words(expression: &str) -> Vec<String> {
    let mut spaced = expression.replace('/', " OR ");
    for bracket in ["(", ")"] {
        spaced = spaced.replace(bracket, &format!(" {bracket} "));
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Parser<'a, F> {
    expression: &'a str,
    words: Peekable<IntoIter<String>>,
    allowed: F,
}

impl<F: FnMut(&str) -> bool> Parser<'_, F> {
    fn takes(&mut self, word: &str) -> bool {
        self.words.next_if(|next| next == word).is_some()
    }

    fn either(&mut self) -> Result<bool> {
        let mut result = self.both()?;
        while self.takes("OR") {
            // All of the expression is read, whatever the result is by now.
            result |= self.both()?;
        }
        Ok(result)
    }

    fn both(&mut self) -> Result<bool> {
        let mut result = self.one()?;
        while self.takes("AND") {
            result &= self.one()?;
        }
        Ok(result)
    }

    fn one(&mut self) -> Result<bool> {
        if self.takes("(") {
            let result = self.either()?;
            if !self.takes(")") {
                bail!(
                    "a bracket is not closed in the licence `{}`",
                    self.expression
                );
            }
            return Ok(result);
        }
        let mut name = self.name()?;
        if self.takes("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok((self.allowed)(&name))
    }

    fn name(&mut self) -> Result<String> {
        let is_name = |word: &String| !["AND", "OR", "WITH", "(", ")"].contains(&word.as_str());
        match self.words.next_if(is_name) {
            Some(name) => Ok(name),
            None => bail!("a licence's name is missing in `{}`", self.expression),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(expression: &str) -> bool {
        let ours = ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"];
        is_allowed(expression, |name| ours.contains(&name)).expect("an expression")
    }

    #[test]
    fn or_needs_one_and_needs_both() {
        assert!(allowed("MIT") && !allowed("GPL-3.0-only"));
        assert!(allowed("GPL-3.0-only OR MIT") && allowed("MIT/GPL-3.0-only"));
        assert!(allowed("MIT AND Zlib") && !allowed("MIT AND GPL-3.0-only"));
        assert!(allowed("(Zlib OR Apache-2.0) AND MIT"));
        assert!(!allowed("(MIT OR Zlib) AND GPL-3.0-only"));
        // AND binds more tightly.
        assert!(allowed("MIT OR Zlib AND GPL-3.0-only"));
        assert!(!allowed("GPL-3.0-only AND MIT OR ISC AND MIT"));
    }

    #[test]
    fn an_exception_makes_another_licence() {
        assert!(allowed("Apache-2.0 WITH LLVM-exception") && !allowed("Apache-2.0"));
        assert_eq!(
            names("(A WITH X OR B)AND C").expect("an expression"),
            ["A WITH X", "B", "C"]
        );
    }

    #[test]
    fn what_is_not_an_expression_is_refused() {
        for wrong in [
            "", "MIT OR", "(MIT", "MIT)", "MIT Zlib", "AND MIT", "MIT WITH",
        ] {
            let error = is_allowed(wrong, |_| true).expect_err(wrong).to_string();
            assert!(error.contains("licence"), "{wrong}: {error}");
        }
    }
}
