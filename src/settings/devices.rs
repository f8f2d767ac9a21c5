//! Devices of a job's nodes, the same on each node that learns; or those of a worker.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::device::Which;

/// Most devices of a node.
const MOST: usize = 16;

/// GPUs by their numbers, or a device of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices(pub Vec<Which>);

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let devices: Vec<Which> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (at, device) in devices.iter().enumerate() {
            if *device != Which::Host && devices[..at].contains(device) {
                return Err(format!("`{text}`: {device} is there twice"));
            }
        }
        if devices.len() > MOST {
            return Err(format!("`{text}`: give {MOST} devices at most"));
        }
        Ok(Self(devices))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(Which::to_string).collect();
        f.write_str(&names.join(","))
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_once() {
        let devices: Devices = "0,2,host".parse().expect("three devices");
        let expected = [Which::Cuda(0), Which::Cuda(2), Which::Host];
        assert_eq!(devices.0, expected);
        assert_eq!(devices.to_string(), "0,2,host");
        for (text, part) in [
            ("1,1", "`1,1`: 1 is there twice"),
            ("gpu", "give the number of a GPU"),
            ("", "give the number of a GPU"),
        ] {
            let why = text.parse::<Devices>().expect_err(text);
            assert!(why.contains(part), "{why}");
        }
    }
}
