//! A client of the reliable path as a Python object, over whose memory gradients are views.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dogwild::poseidon::{
    Claims, Client, ClientJob, Contribution, First, MemberJob, PlanLayer, PoseidonError, Replica,
};
use pyo3::ffi;
use pyo3::prelude::*;

use super::own::Own;
use super::waiting::wait;
use super::{error, key};
use crate::buffer::expose;

/// A worker of the reliable path: its memory holds the mean gradients of all layers.
#[pyclass(module = "dogwild._native")]
pub(crate) struct Worker {
    client: Own<Arc<Client>>,
    stop: Arc<AtomicBool>,
    memory: Arc<dyn Replica>,
    extent: usize,
    /// Bytes that were sent and received, once it is closed.
    traffic: Mutex<[u64; 2]>,
}

/// Name, scheme, rows of factors at most, and tensors: name, offset and length in weights.
type Layer = (String, String, u32, Vec<(String, usize, usize)>);

#[pymethods]
impl Worker {
    /// Joins the cluster as worker `index`: waits until all members are there. `None`: they were
    /// not within `timeout` seconds. `weights`: a hash of what its optimiser begins with.
    #[staticmethod]
    #[pyo3(signature = (index, coordinator, session, weights, timeout, key_file))]
    fn join(
        py: Python<'_>,
        index: u16,
        coordinator: &str,
        session: u64,
        weights: u64,
        timeout: f64,
        key_file: Option<PathBuf>,
    ) -> PyResult<Option<Self>> {
        let mut member = MemberJob::new(index, coordinator);
        member.key = key(key_file)?;
        let mut job = ClientJob::new(member);
        job.first = First::Zeros;
        job.claims = Claims {
            session: Some(session),
            weights: Some(weights),
            ..Claims::default()
        };
        let stop = Arc::new(AtomicBool::new(false));
        let for_ever = Duration::from_secs(1 << 32);
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(for_ever);
        let until = Instant::now().checked_add(timeout);
        let flag = stop.clone();
        let joined = wait(py, &stop, until, || Client::join(job, None, flag))?;
        let Some(client) = joined.map_err(|why| error(&why))? else {
            return Ok(None);
        };
        Ok(Some(Self {
            memory: client.replica(),
            extent: client.plan().extent(),
            client: Own::new(Arc::new(client)),
            stop,
            traffic: Mutex::default(),
        }))
    }

    /// The layers of the plan.
    fn layers(&self) -> PyResult<Vec<Layer>> {
        let layers = self.client.get()?.plan().layers.iter();
        let of = |layer: &PlanLayer| {
            let tensors = layer.tensors.iter();
            let tensors = tensors.map(|one| (one.name.clone(), one.offset, one.len));
            let (name, scheme) = (layer.name.clone(), layer.scheme.to_string());
            (name, scheme, layer.rows, tensors.collect())
        };
        Ok(layers.map(of).collect())
    }

    /// Begins an iteration. False: the run is over.
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        let client = self.client.get()?.clone();
        let begun = wait(py, &self.stop, None, || client.begin())?;
        Ok(begun.map_err(|why| error(&why))?.is_some())
    }

    /// Sends the gradient of `layer`, which lies in the memory.
    fn send_gradient(&self, py: Python<'_>, layer: usize) -> PyResult<()> {
        let client = self.client.get()?;
        let sent = py.detach(|| {
            // SAFETY: the view's memory is of that length, and lives as long as `self`. Between
            // `begin` and `send` no thread of the client writes to a layer's part of it, and the
            // caller has written its own.
            let values = unsafe {
                std::slice::from_raw_parts(client.weights().as_ptr().cast(), self.extent)
            };
            client.send(layer, Contribution::Gradient { from: 0, values })
        });
        sent.map_err(|why| error(&why))
    }

    /// Sends factors of `layer`: addresses and lengths of u `[outputs][rows]` and v
    /// `[inputs][rows]`, float32 without gaps, which the caller keeps alive and does not change.
    fn send_factors(
        &self,
        py: Python<'_>,
        layer: usize,
        u: (usize, usize),
        v: (usize, usize),
    ) -> PyResult<()> {
        let client = self.client.get()?;
        let sent = py.detach(|| {
            let of = |(at, len): (usize, usize)| {
                let at = std::ptr::with_exposed_provenance::<f32>(at);
                // SAFETY: the caller says so.
                unsafe { std::slice::from_raw_parts(at, len) }
            };
            client.send(layer, Contribution::Factors([of(u), of(v)].concat()))
        });
        sent.map_err(|why| error(&why))
    }

    /// Waits until the means of these layers, which this worker has sent its part of, are in the
    /// memory.
    fn wait(&self, py: Python<'_>, layers: Vec<usize>) -> PyResult<()> {
        let client = self.client.get()?.clone();
        let waited = wait(py, &self.stop, None, || {
            let steps = client.clock() + 1;
            layers
                .iter()
                .try_for_each(|layer| client.wait(*layer, steps).map(drop))
        })?;
        waited.map_err(|why| error(&why))
    }

    /// Ends the iteration, and waits until its means are in the memory. Returns whether another
    /// worker has ended the run before this iteration.
    fn end(&self, py: Python<'_>) -> PyResult<bool> {
        let client = self.client.get()?.clone();
        let ended = wait(py, &self.stop, None, || {
            client.end()?;
            client.settle()
        })?;
        let whole = ended.map_err(|why| error(&why))?;
        Ok(!whole || client.end_at() <= client.clock())
    }

    /// Bytes that were sent and received.
    fn traffic(&self) -> PyResult<(u64, u64)> {
        let closed = || *self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match self.client.is_there() {
            true => self.client.get()?.traffic(),
            false => closed(),
        };
        Ok(now.into())
    }

    /// Ends the run for all workers, in order: gives zeros to the iterations of those that are
    /// ahead, and waits until all have left.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(client) = self.client.take() else {
            return Ok(());
        };
        let stop = self.stop.clone();
        let closed = wait(py, &stop, None, || -> Result<_, PoseidonError> {
            client.finish();
            while client.begin()?.is_some() {
                client.end()?;
            }
            client.settle()?;
            let traffic = client.traffic();
            Arc::into_inner(client).map_or(Ok(()), |client| client.close().map(drop))?;
            Ok(traffic)
        })?;
        let traffic = closed.map_err(|why| error(&why))?;
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner) = traffic;
        Ok(())
    }

    /// Ends the run for all members at once, with the reason `why`.
    fn abort(&mut self, py: Python<'_>, why: String) -> PyResult<()> {
        let Some(client) = self.client.take() else {
            return Ok(());
        };
        let stop = self.stop.clone();
        wait(py, &stop, None, || {
            client.abort(PoseidonError::Misuse(why));
            drop(client);
        })
    }

    /// # Safety
    /// Called by the interpreter alone, with a view to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let memory = {
            let own = slf.borrow();
            (
                own.memory.weights().as_ptr().addr(),
                own.extent * size_of::<f32>(),
            )
        };
        // SAFETY: `view` is the interpreter's. `slf`, of which it gets a reference, keeps the
        // memory. Threads of the client write to it between `send` and `end` only.
        unsafe { expose(slf.as_any(), memory, view, flags) }
    }
}
