//! Why a device did not do what it was asked.

/// Why a device did not do what it was asked. `device` is [`Device::name`](super::Device::name).
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device has too little memory.
    #[error(
        "{device} has too little memory for {bytes} bytes: {why}; use a smaller batch or another device"
    )]
    NoMemory {
        /// Name of the device.
        device: String,
        /// Memory that was asked for, in bytes.
        bytes: usize,
        /// What the system says.
        why: String,
    },
    /// A library that it needs is not here.
    #[error("{what}: {how}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        how: &'static str,
    },
    /// No such device.
    #[error("no CUDA device {index}; there are: {}", list(there))]
    NoSuch {
        /// Number of the device that was asked for.
        index: usize,
        /// The devices there are.
        there: Vec<String>,
    },
    /// The environment asks for products that there are not.
    #[error("{variable} is {value:?}: give one of {known}")]
    Products {
        /// Name of the variable.
        variable: &'static str,
        /// What it has.
        value: String,
        /// What it may have.
        known: String,
    },
    /// Its memory cannot be handed to other processes.
    #[error("{device} has no memory that other processes can open: only CUDA devices have")]
    NotShared {
        /// Name of the device.
        device: String,
    },
    /// A thread could not be started: a stream of a host device, or one that adds deltas.
    #[error("{device}: no further thread: {why}; raise the limit of threads (ulimit -u)")]
    NoThread {
        /// Name of the device.
        device: String,
        /// What the system says.
        why: String,
    },
    /// Something on a stream failed; nothing later on it can be trusted.
    #[error("{device} failed: {why}; start the component again")]
    Failed {
        /// Name of the device.
        device: String,
        /// What failed, and how.
        why: String,
    },
}

fn list(names: &[String]) -> String {
    let numbered = names.iter().enumerate();
    let names: Vec<String> = numbered.map(|(i, name)| format!("{i} ({name})")).collect();
    names.join(", ")
}
