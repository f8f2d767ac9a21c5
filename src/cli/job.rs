//! `dogwild job`: what a job file says, and what is wrong with it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use super::job_file::{JobFile, show};

/// Arguments of `dogwild job`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say everything that is wrong with a job file, with its lines; runs nothing
    Check(File),
    /// Print every value of a job and where it comes from: default, file, flag or environment
    Show(File),
}

/// A job file, with flags over it.
#[derive(Debug, clap::Args)]
pub(super) struct File {
    /// The job file (docs/reference/job-file.md; `dogwild train --save-job` writes one)
    #[arg(value_name = "JOB.toml")]
    pub(super) job: PathBuf,
    /// Flags of `dogwild train`, over what the file says
    #[arg(
        value_name = "FLAGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) flags: Vec<OsString>,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        match self.action {
            Action::Check(file) => {
                JobFile::read(&file.job)?.job(&file.flags)?.check()?;
                dogwild_lab::say!("{}: a good job", file.job.display());
            }
            Action::Show(file) => {
                let job = JobFile::read(&file.job)?.job(&file.flags)?;
                dogwild_lab::say!("{}", show(&job).trim_end());
            }
        }
        Ok(())
    }
}
