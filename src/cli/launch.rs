//! `dogwild launch`: a job file as `dogwild train` would run it.

use anyhow::Result;

use super::job::File;
use super::job_file::JobFile;

/// Arguments of `dogwild launch`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    file: File,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let job = JobFile::read(&self.file.job)?.job(&self.file.flags)?;
        job.check()?;
        job.args.run()
    }
}
