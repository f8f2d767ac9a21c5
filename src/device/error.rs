//! Why a device did not do what it was asked.

/// Why a device did not do what it was asked. `device` is [`Device::name`](super::Device::name).
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// No room on it.
    #[error("{device} has no room for {bytes} bytes: {why}; use a smaller batch or another device")]
    NoMemory {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: usize,
        /// What the system says.
        why: String,
    },
    /// A stream could not be made.
    #[error("{device}: no further stream: {why}; raise the limit of threads (ulimit -u)")]
    NoStream {
        /// The device.
        device: String,
        /// What the system says.
        why: String,
    },
    /// Something on a stream failed; nothing later on it can be trusted.
    #[error("{device} failed: {why}; start the component again")]
    Failed {
        /// The device.
        device: String,
        /// What failed, and how.
        why: String,
    },
}
