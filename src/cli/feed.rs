//! `dogwild feed`: reads a data set once and sends it to hosts that have no files.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::node::stop_on_signals;
use crate::solver::data::Source;
use crate::solver::data::feed::{Feed, serve};

/// Arguments of `dogwild feed`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Pictures: digits, mnist:DIR or cifar10:DIR
    #[arg(long, value_name = "SOURCE")]
    data: Source,
    /// Address and port to listen on; any host that reaches it gets the pictures
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:22600")]
    listen: SocketAddr,
}

impl Args {
    /// Feeds until told to stop.
    pub(super) fn run(self) -> Result<()> {
        let stop = stop_on_signals()?;
        let set = self.data.load()?;
        let (kind, images) = (self.data.kind(), set.train.len() + set.test.len());
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        let port = listener.local_addr()?.port();
        log::info!(
            "{}: {images} pictures, fed on {}; elsewhere: --data {kind}@HOST:{port}",
            set.name,
            listener.local_addr()?,
        );
        serve(&Arc::new(Feed::new(kind, set)), &listener, &stop, tell)?;
        Ok(())
    }
}

fn tell(address: SocketAddr, error: Option<io::Error>) {
    match error {
        None => log::info!("{address} has all pictures"),
        Some(error) => log::warn!("{address} did not take all pictures: {error}"),
    }
}
