//! Settings of the components of the reliable path.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::choices::OverlapName;
use super::cluster::{ClusterSettings, MemberSettings, ModelSettings, SlowSettings, wfbp};
use super::error::SettingsError;
use super::limits::test_images;
use super::{Devices, Settings, link};
use crate::poseidon::{ClusterKey, CoordinatorJob, ModelJob, Overlap, ServerJob, WorkerJob};
use crate::solver::data::Source;
use crate::weights::session_number;

/// What `dogwild coordinator` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorSettings {
    /// Where to listen; port 0: any.
    pub listen: SocketAddr,
    /// File for the address that it listens on.
    pub address_file: Option<PathBuf>,
    /// Name of the job; the same as of the workers' buffers.
    pub session: String,
    /// Iterations of each worker; none: as many as the solver file or the model file says.
    pub iterations: Option<u64>,
    /// Go on from the newest checkpoint that all members have.
    pub resume: bool,
    /// File with the key that secures connections; the key itself is in no settings.
    pub key_file: Option<PathBuf>,
    /// The model; the same for all members.
    pub model: ModelSettings,
    /// How the cluster works.
    pub cluster: ClusterSettings,
}

/// What `dogwild server` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// Name of the job; the same everywhere.
    #[serde(default = "session")]
    pub session: String,
    /// Its place in the cluster.
    pub member: MemberSettings,
    /// The model; the same for all members.
    #[serde(default)]
    pub model: ModelSettings,
}

/// What `dogwild worker` is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// The worker's buffer, which names the session.
    pub buffer: PathBuf,
    /// The pictures are this worker's own; else it takes its share.
    #[serde(default)]
    pub private_data: bool,
    /// Devices that compute, one for each of its threads, as `0,1` or `host`; none: the threads
    /// compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
    /// When layers are sent: `wfbp` or `none`.
    #[serde(default = "wfbp", with = "OverlapName")]
    pub overlap: Overlap,
    /// A worker that is made slow on purpose, this one or another.
    #[serde(default)]
    pub slow: Option<SlowSettings>,
    /// Iterations between tests by worker 0; 0: none; none: the solver file's.
    #[serde(default)]
    pub test_every: Option<u64>,
    /// Test pictures of a test on the way; 0: all.
    #[serde(default = "test_images")]
    pub test_images: usize,
    /// Share of right answers, 0 to 1, with which a test ends the job.
    #[serde(default)]
    pub target_accuracy: Option<f32>,
    /// CSV file for rows of the learning curve.
    #[serde(default)]
    pub curve: Option<PathBuf>,
    /// The process that started it and owns the buffer. If that dies, the worker ends, and removes
    /// the buffer where a checkpoint has what was learnt. None: a person, who keeps it.
    #[serde(default)]
    pub launcher: Option<u32>,
    /// Its place in the cluster.
    pub member: MemberSettings,
    /// The model; the same for all members.
    #[serde(default)]
    pub model: ModelSettings,
}

fn session() -> String {
    "dogwild".to_owned()
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, 7700).into(),
            address_file: None,
            session: session(),
            iterations: None,
            resume: false,
            key_file: None,
            model: ModelSettings::default(),
            cluster: ClusterSettings::default(),
        }
    }
}

impl Settings for CoordinatorSettings {
    const COMPONENT: &str = "coordinator";

    fn validate(&self) -> Result<(), SettingsError> {
        self.model.validate()?;
        self.cluster.validate()
    }
}

impl Settings for ServerSettings {
    const COMPONENT: &str = "server";

    fn validate(&self) -> Result<(), SettingsError> {
        self.member.validate()?;
        self.model.validate()
    }
}

impl Settings for WorkerSettings {
    const COMPONENT: &str = "worker";
    const TIDIES_UP: bool = true;

    fn validate(&self) -> Result<(), SettingsError> {
        self.member.validate()?;
        self.model.validate()?;
        let factor = self.slow.map_or(1.0, |slow| slow.factor);
        if !(1.0..=1e6).contains(&factor) {
            let what = format!("{factor}: give a factor of 1 or more");
            return Err(SettingsError::new("slow", what));
        }
        match self.target_accuracy {
            Some(target) => link::share("target_accuracy", target.into()),
            None => Ok(()),
        }
    }
}

impl CoordinatorSettings {
    /// What the coordinator runs: with the key of `key_file`, the model that `model` names, and its
    /// pictures.
    pub fn job(self, key: Option<ClusterKey>, model: ModelJob, data: Source) -> CoordinatorJob {
        let clocks = self.iterations.unwrap_or(model.iterations());
        CoordinatorJob {
            listen: self.listen,
            address_file: self.address_file,
            session: session_number(&self.session),
            cluster: self.cluster.spec(clocks),
            model,
            data: Some(data),
            resume: self.resume,
            key,
        }
    }
}

impl ServerSettings {
    /// What the server runs: with the key of `key_file`, and the model that `model` names.
    pub fn job(self, key: Option<ClusterKey>, model: ModelJob) -> ServerJob {
        ServerJob {
            told: None,
            member: self.member.job(key),
            session: session_number(&self.session),
            model,
        }
    }
}

impl WorkerSettings {
    /// What the worker runs: with the key of `key_file`, the model that `model` names, and its
    /// pictures.
    pub fn job(self, key: Option<ClusterKey>, model: ModelJob, data: Source) -> WorkerJob {
        let own = self.slow.filter(|slow| slow.worker == self.member.index);
        WorkerJob {
            slow: own.map_or(1.0, |slow| slow.factor),
            member: self.member.job(key),
            buffer: self.buffer,
            test_every: self
                .test_every
                .or(model.caffe().map(|model| model.spec.test_interval))
                .unwrap_or_default(),
            model,
            data,
            private_data: self.private_data,
            devices: self.devices.unwrap_or_default().0,
            overlap: self.overlap,
            seed: self.model.seed,
            test_images: self.test_images,
            target_accuracy: self.target_accuracy,
            curve: self.curve,
        }
    }
}
