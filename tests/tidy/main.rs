//! What CONTRIBUTING.md asks of the tree, as tests: each failure says where, which rule, and what
//! to do.
//!
//! Reads files of the repository; runs nothing. `source` finds and lexes them, `rust` holds the
//! rules for source files, `arrows` who may name whom, `documents` what documents hold, `language`
//! how they are written, `names` what things are called, `options` who may name options, `shipping`
//! what a release holds, `support` what tests share.
//! `DOGWILD_TIDY_ROOT` names another tree to look at.

mod arrows;
mod documents;
mod language;
mod names;
mod options;
mod rust;
mod shipping;
mod source;
mod support;

/// Fails with every complaint, one a line.
fn no_complaints(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n\n{}\n", complaints.join("\n"));
}
