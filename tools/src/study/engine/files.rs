//! What runs read: models, pictures and recordings of times, each once.
//!
//! Relative names are those from the folder of the experiment file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use dogwild::cli::args;
use dogwild::solver::SolverSpec;
use dogwild::solver::data::{DataSet, Source};

/// Files of an experiment.
pub(crate) struct Files {
    folder: PathBuf,
    data: Mutex<BTreeMap<String, Arc<DataSet>>>,
}

impl Files {
    /// Of an experiment in `folder`.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            data: Mutex::default(),
        }
    }

    /// A built-in model or a solver file.
    ///
    /// # Errors
    /// There is none of this name, or the file is none.
    pub(crate) fn model(&self, name: &str) -> Result<SolverSpec> {
        let spec = args::model(&self.model_name(name));
        spec.with_context(|| format!("model.solver = {name}"))
    }

    /// Its name for `--solver`.
    pub(crate) fn model_name(&self, name: &str) -> String {
        if name.contains(['/', '.']) {
            self.folder.join(name).to_string_lossy().into_owned()
        } else {
            name.to_owned()
        }
    }

    /// The name of pictures for `--data`.
    ///
    /// # Errors
    /// The environment does not say where they are.
    pub(crate) fn data_name(&self, name: &str) -> Result<String> {
        source(name)
    }

    /// Pictures.
    ///
    /// # Errors
    /// There are none of this name, or they cannot be read.
    pub(crate) fn data(&self, name: &str) -> Result<Arc<DataSet>> {
        let mut all = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = all.get(name) {
            return Ok(data.clone());
        }
        let source: Source = source(name)?
            .parse()
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("model.data = {name}"))?;
        let data = source.load();
        let data = Arc::new(data.with_context(|| format!("model.data = {name}"))?);
        all.insert(name.to_owned(), data.clone());
        Ok(data)
    }

    /// The folder of pictures that lie in one, with its whole path; empty: they do not.
    ///
    /// # Errors
    /// The environment does not say where they are.
    pub(crate) fn data_folder(&self, name: &str) -> Result<String> {
        let name = source(name)?;
        let folder = name.split_once(':').map_or("", |(_, folder)| folder);
        let whole = std::path::absolute(folder).unwrap_or_default();
        Ok(whole.to_string_lossy().into_owned())
    }

    /// The folder that relative names are from.
    pub(crate) fn folder(&self) -> &Path {
        match self.folder.to_str() {
            Some("") => Path::new("."),
            _ => &self.folder,
        }
    }

    /// Times of steps, ms: the mean, and each as a multiple of it.
    ///
    /// # Errors
    /// The file cannot be read, or a line is not a time.
    pub(crate) fn recording(&self, name: &str) -> Result<(f64, Arc<[f64]>)> {
        let path = self.folder.join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("nodes.step_recording: cannot read {}", path.display()))?;
        let mut times = Vec::new();
        for (at, line) in text.lines().enumerate() {
            match line.trim().parse::<f64>() {
                Ok(ms) if (0.001..=1e6).contains(&ms) => times.push(ms),
                _ if line.trim().is_empty() || line.starts_with('#') => {}
                _ => bail!(
                    "nodes.step_recording: {}, line {}: `{line}` is not a time in ms, above 0",
                    path.display(),
                    at + 1
                ),
            }
        }
        ensure!(
            !times.is_empty(),
            "nodes.step_recording: {} holds no times; write one a line, ms",
            path.display()
        );
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Ok((mean, times.iter().map(|ms| ms / mean).collect()))
    }
}

/// What `--data` would be given: `mnist` and `cifar10` alone lie where the environment says.
fn source(name: &str) -> Result<String> {
    let folder = |variables: &[(&str, &str)]| -> Result<String> {
        let there = variables.iter().find_map(|(variable, inside)| {
            let folder = PathBuf::from(std::env::var_os(variable)?).join(inside);
            folder.is_dir().then_some(folder)
        });
        let there = there.with_context(|| {
            let (variable, inside) = variables[variables.len() - 1];
            format!(
                "model.data = {name}: set {variable} to the folder that holds the folder {inside}, \
                 or write {name}:DIR"
            )
        })?;
        Ok(format!("{name}:{}", there.display()))
    };
    match name {
        "mnist" => folder(&[("DOGWILD_DATA", "mnist")]),
        "cifar10" => folder(&[("DOGWILD_CIFAR10", ""), ("DOGWILD_DATA", "cifar10")]),
        other => Ok(other.to_owned()),
    }
}
