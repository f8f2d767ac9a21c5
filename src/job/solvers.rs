//! How many solvers each node has: as many on all, or a number for each.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::solver::data::Shard;

/// Most solvers of a node.
const MOST: u32 = 32;

/// Solvers of each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Solvers {
    /// So many on every node.
    Each(u32),
    /// One number for each node; 0: it masters or tests only.
    PerNode(Vec<u32>),
}

impl Solvers {
    /// Of one node.
    pub fn of(&self, node: u16) -> u32 {
        match self {
            Self::Each(solvers) => *solvers,
            Self::PerNode(all) => all.get(usize::from(node)).copied().unwrap_or(0),
        }
    }

    /// Of the first `nodes` nodes together.
    pub fn of_first(&self, nodes: u16) -> u32 {
        (0..nodes).map(|node| self.of(node)).sum()
    }

    /// The turn of `node`, which has solvers, among those of `nodes` nodes that have.
    pub fn turn(&self, node: u16, nodes: u16) -> Shard {
        let learn = |nodes| (0..nodes).filter(|node| self.of(*node) > 0).count() as u32;
        Shard {
            index: learn(node),
            of: learn(nodes),
        }
    }

    /// The most that one of `nodes` nodes has.
    pub fn most(&self, nodes: u16) -> u32 {
        (0..nodes).map(|node| self.of(node)).max().unwrap_or(0)
    }

    /// Checks that there is a number for each of `nodes` nodes, and a solver, on a processor or on
    /// one of so many `devices` of each.
    ///
    /// # Errors
    /// There is not.
    pub fn check(&self, nodes: u16, devices: usize) -> Result<()> {
        if let Self::PerNode(all) = self {
            ensure!(
                all.len() == usize::from(nodes),
                "--solvers {self} is of {} nodes, --nodes {nodes}: give one number for all, or one for each",
                all.len()
            );
        }
        ensure!(
            self.of_first(nodes) > 0 || devices > 0,
            "--solvers {self}: no node learns; give one at least a solver, or a device (--gpu)"
        );
        Ok(())
    }

    /// The same with one more node that has none.
    pub fn and_none(&self, nodes: u16) -> Self {
        let all = (0..nodes).map(|node| self.of(node));
        Self::PerNode(all.chain([0]).collect())
    }
}

impl FromStr for Solvers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.trim().parse() {
            Ok(number) if number <= MOST => Ok(number),
            _ => Err(format!(
                "`{text}` is not a number of solvers: write 0 to {MOST}, for all nodes (2) or for each (0,1,1)"
            )),
        };
        if !text.contains(',') {
            return number(text).map(Self::Each);
        }
        let all: Result<_, _> = text.split(',').map(number).collect();
        all.map(Self::PerNode)
    }
}

impl fmt::Display for Solvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(solvers) => write!(f, "{solvers}"),
            Self::PerNode(all) => {
                let all: Vec<String> = all.iter().map(u32::to_string).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_all_nodes_or_of_each() {
        let all: Solvers = "2".parse().unwrap();
        assert_eq!((all.of(7), all.of_first(3), all.most(3)), (2, 6, 2));
        let each: Solvers = "0,1,3".parse().unwrap();
        assert_eq!((each.of(0), each.of(2), each.of(3)), (0, 3, 0));
        assert_eq!(
            (each.of_first(2), each.of_first(3), each.most(3)),
            (1, 4, 3)
        );
        assert_eq!(all.turn(1, 3), Shard { index: 1, of: 3 });
        assert_eq!(each.turn(2, 3), Shard { index: 1, of: 2 });
        assert_eq!(all.and_none(2), "2,2,0".parse().unwrap());
        assert_eq!(each.to_string(), "0,1,3");
        for (text, nodes) in [("0", 2), ("0,0", 2), ("1,1", 3)] {
            let solvers: Solvers = text.parse().unwrap();
            assert!(solvers.check(nodes, 0).is_err(), "{text} of {nodes}");
        }
        for text in ["", "33", "1,,1", "-1", "many"] {
            assert!(text.parse::<Solvers>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_number_is_written_as_a_number() {
        let json = |solvers: &Solvers| serde_json::to_string(solvers).unwrap();
        assert_eq!(json(&Solvers::Each(2)), "2");
        assert_eq!(json(&Solvers::PerNode(vec![0, 1])), "[0,1]");
        let back: Solvers = serde_json::from_str("[0,1]").unwrap();
        assert_eq!(back, Solvers::PerNode(vec![0, 1]));
    }
}
