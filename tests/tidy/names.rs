//! Rules for names: an item of this workspace has one name wherever a reader meets it.

use crate::no_complaints;
use crate::source::files;

/// Other names that `use` statements in `code` give to items of the workspace, with their lines.
/// `as _` gives none.
fn aliases(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut own = false;
    for (i, line) in code.lines().enumerate() {
        if let Some((before, path)) = line.split_once("use ")
            && (before.trim().is_empty() || before.trim_start().starts_with("pub"))
        {
            let root = path.split("::").next().unwrap_or(path).trim();
            // What is exported again is our own, too.
            own = ["crate", "super", "self"].contains(&root)
                || root.starts_with("dogwild")
                || before.trim_start().starts_with("pub");
        }
        if own {
            let names = line.split(" as ").skip(1);
            let names = names.map(|rest| rest.trim_end_matches([',', ';', '}', ' ']));
            let names = names.map(|rest| rest.split([',', '}']).next().unwrap_or(rest));
            found.extend(
                names
                    .filter(|name| *name != "_")
                    .map(|name| (i + 1, name.to_owned())),
            );
        }
        own &= !line.contains(';');
    }
    found
}

#[test]
fn items_are_imported_by_their_own_names() {
    let mut complaints = Vec::new();
    for file in files("rs") {
        for (line, alias) in aliases(&file.code) {
            complaints.push(format!(
                "{}:{line}: `as {alias}`: give the item a name that needs no other here",
                file.path
            ));
        }
    }
    no_complaints(complaints);
}

#[test]
fn aliases_are_found_in_groups_and_only_of_the_workspace() {
    let code = "use std::io as system;\nuse crate::wire::{\n    Kind as FrameKind, Header,\n};\n\
                pub use super::x::Y as Z;\nlet n = 3 as u64;\nuse dogwild::job::{A as B, C};\n\
                use crate::Trait as _;\npub(crate) use health::{Solvers as Watch, What};\n";
    let found = aliases(code);
    let names: Vec<(usize, &str)> = found.iter().map(|(i, name)| (*i, name.as_str())).collect();
    assert_eq!(names, [(3, "FrameKind"), (5, "Z"), (7, "B"), (9, "Watch")]);
}
