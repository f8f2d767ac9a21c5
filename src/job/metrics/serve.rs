//! Answers scrapes over HTTP.
//!
//! One thread reads counters; each answer is written by a thread of its own, so that a client that
//! does not read keeps no other waiting.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use tiny_http::{Header, Method, Request, Response, Server};

use super::Told;
use super::collect::{text, text_of_server};
use super::names::Metrics;
use crate::node::drop_privileges;
use crate::weights::{Expect, SharedWeights};

/// Answers that are being written at once, at most.
const MOST_ANSWERS: usize = 16;

/// Metrics that are served until this is dropped. It has the buffers open as long.
pub struct Serving {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Serves those of `buffers` at `address`, as `127.0.0.1:9400`; port 0: any that is free.
    ///
    /// # Errors
    /// The address cannot be had, or a buffer cannot be opened.
    pub fn start(address: &str, buffers: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| SharedWeights::open(path, &Expect::default());
        let buffers: Vec<SharedWeights> = buffers.iter().map(open).collect::<Result<_, _>>()?;
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

    fn serve(address: &str, text: impl Fn(&Metrics) -> String + Send + 'static) -> Result<Self> {
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().name("metrics".into());
        let to = address.to_owned();
        let thread = thread.spawn(move || {
            let server = listen(&to).map(Arc::new);
            let its = server.as_ref().ok().cloned();
            // Who started this thread waits for it.
            let _ = tell.send(server);
            if let Some(server) = its {
                serve(&server, text);
            }
        })?;
        let server = told.recv().context("the thread of metrics has ended")?;
        let server = server.with_context(|| {
            format!(
                "--metrics {address}: cannot listen there; give HOST:PORT of this host, with port 0 for any that is free"
            )
        })?;
        log::info!("metrics: http://{}/metrics", server.server_addr());
        Ok(Self {
            server,
            thread: Some(thread),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens, without any capability: what faces the network has none, nor have the threads that the
/// server starts.
fn listen(address: &str) -> Result<Server> {
    drop_privileges()?;
    Server::http(address).map_err(|why| anyhow!("{why}"))
}

fn serve(server: &Server, text: impl Fn(&Metrics) -> String) {
    let metrics = Metrics::all();
    let answers = Arc::new(());
    // An error: it is told to end.
    while let Ok(request) = server.recv() {
        // Who asks this one counts itself.
        if Arc::strong_count(&answers) > MOST_ANSWERS {
            continue;
        }
        let response = answer(&request, || text(&metrics));
        let counted = answers.clone();
        let writes = std::thread::Builder::new().spawn(move || {
            // A client that has gone needs no answer.
            let _ = request.respond(response);
            drop(counted);
        });
        if let Err(error) = writes {
            log::warn!("metrics: no thread for an answer: {error}");
        }
    }
}

/// What to say to a request.
fn answer(request: &Request, text: impl FnOnce() -> String) -> Response<std::io::Cursor<Vec<u8>>> {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return Response::from_string("only GET\n").with_status_code(405);
    }
    let path = request.url().split('?').next().unwrap_or_default();
    if path != "/metrics" {
        return Response::from_string("dogwild: see /metrics\n").with_status_code(404);
    }
    let header = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("a constant header");
    // Else it would be sent in pieces.
    let text = text();
    let whole = text.len() + 1;
    Response::from_string(text)
        .with_chunked_threshold(whole)
        .with_header(header)
}
