//! The file by which another process finds the device's weights.

use std::path::{Path, PathBuf};

use super::component::GpuError;
use super::in_step::{SyncError, SyncJob};
use crate::device::Device;
use crate::weights::{GpuState, SharedWeights};

/// The name of the file with the IPC handle of component `index` of the buffer `buffer`.
pub fn ipc_beside(buffer: &Path, index: u32) -> PathBuf {
    let mut name = GpuState::path_beside(buffer, index).into_os_string();
    name.push(".ipc");
    name.into()
}

/// The file with the IPC handle, which goes with the memory that it names.
pub(super) struct IpcFile(PathBuf);

impl IpcFile {
    pub(super) fn write<D: Device>(
        device: &D,
        weights: &D::Memory,
        shared: &SharedWeights,
        job: &SyncJob,
    ) -> Result<Self, GpuError> {
        let handle = device.share(weights).map_err(SyncError::from)?;
        // As text: JSON has no whole numbers of 64 bits.
        let buffer = format!("{:016x}", shared.identity());
        let text = serde_json::json!({
            "pid": std::process::id(),
            "buffer": buffer,
            "weights": handle,
        });
        let path = ipc_beside(&job.buffer, job.index);
        // Readers find a whole file or none.
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let done =
            std::fs::write(&new, format!("{text:#}\n")).and_then(|()| std::fs::rename(&new, &path));
        match done {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(GpuError::Ipc { path, source }),
        }
    }
}

impl Drop for IpcFile {
    fn drop(&mut self) {
        // If it stays, the driver tells a program that opens the handle that it is gone.
        let _ = std::fs::remove_file(&self.0);
    }
}
