//! `dogwild data`: published data sets.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Subcommand, ValueEnum};

use crate::job::data_get::{DataGetError, Set, get};
use crate::node::stop_on_signals;

/// Arguments of `dogwild data`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Download a data set, check it, and put it where --data finds it. What was begun goes on
    Get {
        /// Which one
        set: Name,
        /// The folder for it [default: data/NAME]
        #[arg(long, value_name = "FOLDER")]
        to: Option<PathBuf>,
        /// Where to download from, instead of the known mirrors: the URL of a folder that has the
        /// files. More than one are tried in turn
        #[arg(long = "mirror", value_name = "URL", value_parser = url)]
        mirrors: Vec<String>,
    },
}

/// Data sets that can be downloaded.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// Handwritten digits: 70,000 pictures of 28x28, 12 MB
    Mnist,
    /// Ten kinds of things: 60,000 coloured pictures of 32x32, 170 MB, 184 MB unpacked
    Cifar10,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let Action::Get { set, to, mirrors } = self.action;
        let set = match set {
            Name::Mnist => Set::mnist(),
            Name::Cifar10 => Set::cifar10(),
        };
        let name = set.name.clone();
        let to = to.unwrap_or_else(|| Path::new("data").join(&name));
        let stop = stop_on_signals()?;
        match get(set, &to, mirrors, &stop) {
            Ok(0) => dogwild_lab::say!("{name} is in {} already", to.display()),
            Ok(_) => dogwild_lab::say!("{name} is in {}", to.display()),
            Err(DataGetError::Interrupted(interrupted)) => {
                dogwild_lab::note!("what came is kept: the same command goes on from there");
                return Err(interrupted.into());
            }
            Err(error) => return Err(error.into()),
        }
        dogwild_lab::say!("dogwild train --data {name}:{}", to.display());
        Ok(())
    }
}

/// The URL of a folder, as a mirror has it.
fn url(text: &str) -> Result<String, String> {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    match rest {
        Some(host) if !host.is_empty() && !host.starts_with('/') => Ok(text.to_owned()),
        _ => Err(format!(
            "`{text}` is not the URL of a mirror: write http://HOST/FOLDER or https://HOST/FOLDER"
        )),
    }
}
