//! How many steps a second solvers make at most: as many on all nodes, or a number for each.

use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::settings::limits::STEPS_PER_S;

/// Steps per second of a solver of each node, at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paces {
    /// So many on every node.
    Each(f64),
    /// One number for each node.
    PerNode(Vec<f64>),
}

impl Paces {
    /// Of a node; `None`: it was not told any.
    pub fn of(&self, node: u16) -> Option<f64> {
        match self {
            Self::Each(steps) => Some(*steps),
            Self::PerNode(all) => all.get(usize::from(node)).copied(),
        }
    }

    /// The most of all nodes.
    pub fn most(&self) -> f64 {
        match self {
            Self::Each(steps) => *steps,
            Self::PerNode(all) => all.iter().copied().fold(0.0, f64::max),
        }
    }

    /// Checks that there is a number for each of `nodes` nodes.
    ///
    /// # Errors
    /// There is not.
    pub fn check(&self, nodes: u16) -> Result<()> {
        if let Self::PerNode(all) = self {
            ensure!(
                all.len() == usize::from(nodes),
                "--pace-steps is of {} nodes, --nodes {nodes}: give one number for all, or one for each",
                all.len()
            );
        }
        Ok(())
    }
}

impl FromStr for Paces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.trim().parse::<f64>() {
            Ok(steps) if STEPS_PER_S.contains(&steps) => Ok(steps),
            _ => Err(format!(
                "`{text}` is not a number of steps per second: use 0.001 to 1000000, for all nodes (5) or for \
                 each (5,5,1)"
            )),
        };
        if !text.contains(',') {
            return number(text).map(Self::Each);
        }
        let all: Result<_, _> = text.split(',').map(number).collect();
        all.map(Self::PerNode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_of_all_nodes_or_of_each() {
        let all: Paces = "5".parse().unwrap();
        assert_eq!((all.of(9), all.most()), (Some(5.0), 5.0));
        let each: Paces = "5, 0.5".parse().unwrap();
        assert_eq!(
            (each.of(1), each.of(2), each.most()),
            (Some(0.5), None, 5.0)
        );
        assert!(each.check(2).is_ok() && each.check(3).is_err());
        assert_eq!(serde_json::to_string(&all).unwrap(), "5.0");
        for text in ["", "0", "-1", "5,,1", "5,many", "inf"] {
            assert!(text.parse::<Paces>().is_err(), "{text}");
        }
    }
}
