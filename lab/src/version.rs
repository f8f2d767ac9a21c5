//! What the programs say to `--version`: one line of version, commit and features.
//!
//! Touches nothing but its arguments.

/// The text behind a program's name. `commit` is what a build script found; empty: built outside
/// git.
pub fn text(version: &str, commit: &str, features: &[&str]) -> &'static str {
    let commit = match commit {
        "" => "no commit: built outside git".to_owned(),
        commit => format!("commit {commit}"),
    };
    let features = match features {
        [] => String::new(),
        features => format!("; features {}", features.join(" ")),
    };
    // A program asks once.
    format!("{version} ({commit}{features})").leak()
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn what_is_not_there_is_said() {
        assert_eq!(
            text("1.2.3", "abc+", &["a", "b"]),
            "1.2.3 (commit abc+; features a b)"
        );
        assert_eq!(
            text("1.2.3", "", &[]),
            "1.2.3 (no commit: built outside git)"
        );
    }
}
