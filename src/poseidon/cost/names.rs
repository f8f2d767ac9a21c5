//! The names of schemes and policies, as arguments and files have them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{Policy, Scheme};

/// A name that is not one of a scheme or policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{name}` is not a {what}: give one of {known}")]
pub struct NameError {
    name: String,
    what: &'static str,
    known: &'static str,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ps => "ps",
            Self::Sfb => "sfb",
            Self::Adam => "adam",
            Self::OneBit => "onebit",
            Self::P2p => "p2p",
        })
    }
}

impl FromStr for Scheme {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let known = Self::ALL
            .into_iter()
            .find(|scheme| scheme.to_string() == name);
        known.ok_or_else(|| NameError {
            name: name.to_owned(),
            what: "scheme",
            known: "ps, sfb, adam, onebit, p2p",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HybComm => f.pad("hybcomm"),
            Self::Sacp => f.pad("sacp"),
            Self::Cheapest => f.pad("cheapest"),
            Self::OneBit => f.pad("onebit"),
            Self::Force(Scheme::OneBit) => f.pad("onebit-all"),
            Self::Force(scheme) => scheme.fmt(f),
        }
    }
}

/// `hybcomm`, `sacp`, `cheapest`, or a scheme to force. `onebit` is for fully connected layers,
/// `onebit-all` for all.
impl FromStr for Policy {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        match name {
            "hybcomm" => Ok(Self::HybComm),
            "sacp" => Ok(Self::Sacp),
            "cheapest" => Ok(Self::Cheapest),
            "onebit" => Ok(Self::OneBit),
            "onebit-all" => Ok(Self::Force(Scheme::OneBit)),
            _ => name.parse().map(Self::Force).map_err(|_| NameError {
                name: name.to_owned(),
                what: "policy",
                known: "hybcomm, sacp, cheapest, or a scheme to force: ps, sfb, adam, onebit, \
                        onebit-all, p2p",
            }),
        }
    }
}
