//! Answers scrapes over HTTP.
//!
//! Each connection has a thread of its own and gets one answer, in a limited time: a client that is
//! silent, or that does not read, keeps no other waiting.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;

use super::Told;
use super::answer::{Exchange, refuse};
use super::collect::{text, text_of_server};
use super::names::Metrics;
use crate::node::drop_privileges;
use crate::weights::SharedWeights;

/// Connections at once, at most.
const MOST_CONNECTIONS: usize = 64;

/// After an error that may repeat itself at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Metrics that are served until this is dropped.
pub struct Serving {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Serves those of `buffers` at `address`, as `127.0.0.1:9400`; port 0: any that is free.
    ///
    /// # Errors
    /// The address cannot be had, or a buffer cannot be opened.
    pub fn start(address: &str, buffers: &[PathBuf]) -> Result<Self> {
        let watch = |path: &PathBuf| SharedWeights::watch(path);
        let buffers: Vec<SharedWeights> = buffers.iter().map(watch).collect::<Result<_, _>>()?;
        Self::serve(address, move |metrics| text(metrics, &buffers))
    }

    /// Serves what server `index` of the reliable path tells.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn of_server(address: &str, index: u16, told: Told) -> Result<Self> {
        Self::serve(address, move |metrics| {
            let told = told.lock().unwrap_or_else(PoisonError::into_inner);
            text_of_server(metrics, index, told.as_ref())
        })
    }

    fn serve<F>(address: &str, text: F) -> Result<Self>
    where
        F: Fn(&Metrics) -> String + Send + Sync + 'static,
    {
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().name("metrics".into());
        let to = address.to_owned();
        let thread = thread.spawn(move || {
            let listening = listen(&to).map(Arc::new);
            let its = listening.as_ref().ok().cloned();
            // Who started this thread waits for it.
            let _ = tell.send(listening);
            if let Some(listener) = its {
                serve(&listener, text);
            }
        })?;
        let listener = told.recv().context("the thread of metrics has ended")?;
        let listener = listener.with_context(|| {
            format!(
                "--metrics {address}: cannot listen there; give HOST:PORT of this host, with port 0 for any that is free"
            )
        })?;
        log::info!("metrics: http://{}/metrics", listener.local_addr()?);
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }

    #[cfg(test)]
    pub(super) fn address(&self) -> String {
        let address = self.listener.local_addr().expect("it listens");
        address.to_string()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // On Linux this ends a wait for a connection.
        let ended = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        if let (Ok(()), Some(thread)) = (ended, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Listens, without any capability: what faces the network has none, nor have the threads that this
/// one starts.
fn listen(address: &str) -> Result<TcpListener> {
    drop_privileges()?;
    Ok(TcpListener::bind(address)?)
}

fn serve(listener: &TcpListener, text: impl Fn(&Metrics) -> String + Send + Sync + 'static) {
    let source = Arc::new((Metrics::all(), text));
    let connections = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // It is told to end.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            // The connection has gone already, or there are no files left: others may end.
            Err(error) => {
                log::warn!("metrics: {error}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        // This one counts itself.
        if Arc::strong_count(&connections) > MOST_CONNECTIONS {
            refuse(stream);
            continue;
        }
        // A thread may outlive this one, but keeps no buffer open.
        let (counted, source) = (connections.clone(), Arc::downgrade(&source));
        let thread = std::thread::Builder::new().spawn(move || {
            let text = || source.upgrade().map(|source| source.1(&source.0));
            // A client that has gone needs no answer.
            let _ = Exchange::new(stream).answer(text);
            drop(counted);
        });
        if let Err(error) = thread {
            log::warn!("metrics: no thread for an answer: {error}");
        }
    }
}
