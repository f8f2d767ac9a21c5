//! Man pages and shell completions, which a program writes from its own arguments: `--pages
//! FOLDER`.
//!
//! Writes into the folder that it is given, laid out as a `share` folder is: `/usr/share`,
//! `/usr/local/share` or `~/.local/share`, where man and shells look.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, value_parser};
use clap_complete::{Shell, generate};

use crate::{out, say};

/// The option's name, without its hyphens.
const OPTION: &str = "pages";
/// clap's exit code for wrong arguments.
const WRONG_ARGUMENTS: i32 = 2;

/// Why the pages could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; name a folder that you may write to", path.display())]
pub struct PagesError {
    path: PathBuf,
    source: io::Error,
}

/// Writes the pages and ends the process, if its words are `--pages FOLDER`; else adds that option
/// to what `command` helps with.
///
/// A word in front of clap, as a program whose subcommand is required would refuse the option.
pub fn answer(mut command: Command) -> Command {
    let Some(folder) = asked(std::env::args_os().skip(1)) else {
        return command.arg(
            Arg::new(OPTION)
                .long(OPTION)
                .value_name("FOLDER")
                .value_parser(value_parser!(PathBuf))
                .exclusive(true)
                .help(
                    "Write man pages and shell completions into FOLDER, as ~/.local/share, and end",
                ),
        );
    };
    let name = command.get_name().to_owned();
    let Some(folder) = folder else {
        crate::note!("{name}: --{OPTION} takes one folder, as ~/.local/share, and nothing else");
        std::process::exit(WRONG_ARGUMENTS);
    };
    command = command.version(env!("CARGO_PKG_VERSION"));
    match write(command, &folder) {
        Ok(count) => say!("{count} files in {}", folder.display()),
        Err(error) => {
            crate::note!("{name}: {}", out::told(&error));
            std::process::exit(1);
        }
    }
    let failed = out::failure().is_some();
    out::end(&name, std::process::ExitCode::SUCCESS);
    std::process::exit(i32::from(failed));
}

/// Whether the words of a program ask for pages, and the folder if they name one alone.
fn asked(mut words: impl Iterator<Item = OsString>) -> Option<Option<PathBuf>> {
    let first = words.next()?;
    let first = first.to_str()?.strip_prefix("--")?.strip_prefix(OPTION)?;
    let folder = match first.strip_prefix('=') {
        Some(folder) => Some(PathBuf::from(folder)),
        None if first.is_empty() => words.next().map(PathBuf::from),
        None => return None,
    };
    Some(folder.filter(|folder| words.next().is_none() && !folder.as_os_str().is_empty()))
}

/// Writes a page for `command` and for each of its subcommands, and completions for bash, zsh and
/// fish. The number of files.
///
/// # Errors
/// A folder or a file cannot be written.
pub fn write(mut command: Command, folder: &Path) -> Result<usize, PagesError> {
    command.build();
    let name = command.get_name().to_owned();
    let shells = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (
            Shell::Fish,
            format!("fish/vendor_completions.d/{name}.fish"),
        ),
    ];
    for (shell, path) in &shells {
        let mut text = Vec::new();
        generate(*shell, &mut command, &name, &mut text);
        put(&folder.join(path), &text)?;
    }
    Ok(shells.len() + write_pages(&command, &folder.join("man/man1"))?)
}

fn write_pages(command: &Command, folder: &Path) -> Result<usize, PagesError> {
    let mut count = 1;
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone().disable_help_subcommand(true))
        .source(concat!("dogwild ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands")
        .render(&mut text)
        .map_err(|source| PagesError {
            path: path.clone(),
            source,
        })?;
    put(&path, &text)?;
    for part in command.get_subcommands() {
        if !part.is_hide_set() && part.get_name() != "help" {
            count += write_pages(part, folder)?;
        }
    }
    Ok(count)
}

fn put(path: &Path, text: &[u8]) -> Result<(), PagesError> {
    let folder = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|source| PagesError {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<Option<PathBuf>> {
        asked(words.iter().map(OsString::from))
    }

    #[test]
    fn pages_are_asked_for_by_the_first_word_alone() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["train", "--pages", "x"]), None);
        assert_eq!(of(&["--pagesize"]), None);
        assert_eq!(of(&["--pages", "x"]), Some(Some("x".into())));
        assert_eq!(of(&["--pages=x"]), Some(Some("x".into())));
        for wrong in [&["--pages"][..], &["--pages="], &["--pages", "x", "train"]] {
            assert_eq!(of(wrong), Some(None), "{wrong:?}");
        }
    }
}
