//! How much a program says besides its results: `--quiet` of all programs.

use clap::Args;

/// The flag. It may stand before a subcommand and behind it.
#[derive(Debug, Args)]
pub struct Quiet {
    /// Print no progress and no remarks: only results, warnings and errors
    #[arg(short, long, global = true)]
    quiet: bool,
}

impl Quiet {
    /// The level of the log where RUST_LOG names none, `usually` without the flag. From now on
    /// no progress is printed either, if it was given.
    pub fn log_level(&self, usually: &'static str) -> &'static str {
        if self.quiet {
            dogwild_lab::out::be_quiet();
            return "warn";
        }
        usually
    }
}
