//! `dogwild launch`: a job file as `dogwild train` would run it.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use super::job_file::JobFile;

/// Arguments of `dogwild launch`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The job file (docs/reference/job-file.md; `dogwild train --save-job` writes one)
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Flags of `dogwild train`, over what the file says
    #[arg(
        value_name = "FLAGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    flags: Vec<OsString>,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let job = JobFile::read(&self.job)?.job(&self.flags)?;
        job.check()?;
        job.args.run()
    }
}
