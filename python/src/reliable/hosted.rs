//! A coordinator or a server that runs in the process of a worker.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use dogwild::poseidon::{
    ClusterSpec, CoordinatorJob, MemberJob, PoseidonError, ServerJob, run_coordinator, run_server,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::own::Own;
use super::waiting::wait;
use super::{error, key, model, policy_of};

type Running = JoinHandle<Result<(), PoseidonError>>;

/// A coordinator or a server in a thread of this process.
#[pyclass(module = "dogwild._native")]
pub(crate) struct Hosted {
    thread: Own<Running>,
    stop: Arc<AtomicBool>,
}

impl Hosted {
    fn start(
        run: impl FnOnce(&AtomicBool) -> Result<(), PoseidonError> + Send + 'static,
    ) -> PyResult<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::Builder::new().spawn(move || run(&flag))?;
        Ok(Self {
            thread: Own::new(thread),
            stop,
        })
    }
}

#[pymethods]
impl Hosted {
    /// Starts a coordinator of `workers` workers and `servers` servers, which listens on `listen`
    /// (IP:PORT) and writes its address to `address_file`. `model`: a model file, as JSON.
    #[staticmethod]
    #[pyo3(signature = (listen, session, model_text, workers, servers, policy, address_file, key_file))]
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them by name, in one place"
    )]
    fn coordinator(
        listen: &str,
        session: u64,
        model_text: &str,
        workers: u16,
        servers: u16,
        policy: &str,
        address_file: PathBuf,
        key_file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let listen = listen
            .parse()
            .map_err(|why| PyValueError::new_err(format!("{listen}: {why}; give IP:PORT")))?;
        let model = model(model_text)?;
        let mut cluster = ClusterSpec::new(workers, servers, model.iterations());
        cluster.policy = policy_of(policy)?;
        model.check(&cluster).map_err(|why| error(&why))?;
        let mut job = CoordinatorJob::new(listen, session, model, cluster);
        job.address_file = Some(address_file);
        job.key = key(key_file)?;
        Self::start(move |stop| run_coordinator(&job, stop))
    }

    /// Starts server `index` of the cluster of the coordinator at `coordinator`.
    #[staticmethod]
    fn server(
        index: u16,
        coordinator: &str,
        session: u64,
        model_text: &str,
        key_file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let mut member = MemberJob::new(index, coordinator);
        member.key = key(key_file)?;
        let job = ServerJob::new(member, session, model(model_text)?);
        Self::start(move |stop| run_server(&job, stop))
    }

    /// Whether it has ended.
    #[getter]
    fn ended(&self) -> PyResult<bool> {
        Ok(self.thread.get()?.is_finished())
    }

    /// Asks it to end at once.
    fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Waits until it has ended, and raises why if that was an error.
    fn join(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        match wait(py, &self.stop, None, || thread.join())? {
            Ok(result) => result.map_err(|why| error(&why)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
