//! Which device is meant, in words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// A GPU, by its number.
    Cuda(usize),
    /// Threads of this host.
    Host,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "host" => Ok(Self::Host),
            _ => text
                .parse()
                .map(Self::Cuda)
                .map_err(|_| format!("`{text}`: give the number of a GPU, from 0, or host")),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(number) => write!(f, "{number}"),
            Self::Host => f.write_str("host"),
        }
    }
}
