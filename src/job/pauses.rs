//! Nodes that stand still for a while, on purpose: to see what a job makes of it.

use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// A node that stands still, as after SIGSTOP.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Which node.
    pub node: u16,
    /// From this second of training on.
    pub from_s: f64,
    /// For so many seconds.
    pub for_s: f64,
}

impl FromStr for Pause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not NODE:FROM:SECONDS, as 1:2.5:5");
        let parts: Vec<&str> = text.split(':').collect();
        let [node, from, length] = parts[..] else {
            return Err(wrong());
        };
        let seconds = |text: &str| match text.parse::<f64>() {
            Ok(s) if (0.0..=1e6).contains(&s) => Ok(s),
            _ => Err(wrong()),
        };
        Ok(Self {
            node: node.parse().map_err(|_| wrong())?,
            from_s: seconds(from)?,
            for_s: seconds(length)?,
        })
    }
}

impl Pause {
    /// Checks that all are of `nodes` nodes.
    ///
    /// # Errors
    /// One is not.
    pub fn check(all: &[Self], nodes: u16) -> Result<()> {
        if let Some(pause) = all.iter().find(|pause| pause.node >= nodes) {
            bail!(
                "--pause {}:...: there are {nodes} nodes, from 0 on",
                pause.node
            );
        }
        Ok(())
    }

    /// Whether its node stands still after so many seconds.
    fn holds(&self, seconds: f64) -> bool {
        (self.from_s..self.from_s + self.for_s).contains(&seconds)
    }
}

/// What to do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stop,
    GoOn,
}

/// The pauses of a job on the way.
#[derive(Debug)]
pub(super) struct Pauses<'a> {
    all: &'a [Pause],
    /// Nodes that stand still.
    still: Vec<u16>,
}

impl<'a> Pauses<'a> {
    pub(super) fn new(all: &'a [Pause]) -> Self {
        Self {
            all,
            still: Vec::new(),
        }
    }

    /// What to do after so many seconds of training. A node that stands still is told so each time:
    /// a component of it may have been started meanwhile.
    pub(super) fn due(&mut self, seconds: f64) -> Vec<(u16, Order)> {
        let held = self.all.iter().filter(|pause| pause.holds(seconds));
        let held: Vec<u16> = held.map(|pause| pause.node).collect();
        let over = self.still.iter().filter(|node| !held.contains(node));
        let mut orders: Vec<(u16, Order)> = over.map(|node| (*node, Order::GoOn)).collect();
        orders.extend(held.iter().map(|node| (*node, Order::Stop)));
        self.still = held;
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stands_still_while_one_of_its_pauses_lasts() {
        let all: Vec<Pause> = ["1:2:3", "0:4:1", "1:4.5:1"]
            .map(|text| text.parse().unwrap())
            .into();
        let mut pauses = Pauses::new(&all);
        let mut due = |seconds| pauses.due(seconds);
        assert_eq!(due(1.9), []);
        assert_eq!(due(2.0), [(1, Order::Stop)]);
        assert_eq!(due(3.0), [(1, Order::Stop)]);
        assert_eq!(due(4.1), [(1, Order::Stop), (0, Order::Stop)]);
        assert_eq!(due(5.2), [(0, Order::GoOn), (1, Order::Stop)]);
        assert_eq!(due(5.6), [(1, Order::GoOn)]);
        assert_eq!(due(6.0), []);
    }

    #[test]
    fn a_pause_is_a_node_and_two_times() {
        let pause: Pause = "3:0.5:2".parse().unwrap();
        assert_eq!((pause.node, pause.from_s, pause.for_s), (3, 0.5, 2.0));
        assert!(Pause::check(&[pause], 4).is_ok() && Pause::check(&[pause], 3).is_err());
        for text in ["", "1", "1:2", "1:2:3:4", "-1:2:3", "1:x:3", "1:2:-3"] {
            assert!(text.parse::<Pause>().is_err(), "{text}");
        }
    }
}
