//! The processes of a cluster on the reliable path, and which of them is to blame for an end.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::children::{Component, LOOK_EVERY};
use crate::poseidon::ANOTHER_FAILED;

/// Time that members have to end after the first that blames another.
const BLAME: Duration = Duration::from_secs(2);

/// The processes of a cluster, the coordinator first.
#[derive(Default)]
pub(super) struct Fleet(pub(super) Vec<Component>);

impl Fleet {
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Component> {
        self.0.iter_mut()
    }

    pub(super) fn done(&self) -> bool {
        self.0.iter().all(Component::done)
    }

    /// Members that have ended since the last look, and not well.
    pub(super) fn dead(&mut self) -> Result<Vec<Dead>> {
        let mut dead = Vec::new();
        for component in self.all() {
            if let Some(status) = component.failed()? {
                dead.push(Dead {
                    name: component.name.clone(),
                    status,
                    words: component.last_words(),
                });
            }
        }
        Ok(dead)
    }

    /// Adds members that end after `dead` while all of those blame another; the one to blame comes
    /// first.
    pub(super) fn wait_for_the_one_to_blame(&mut self, dead: &mut Vec<Dead>) -> Result<()> {
        let end = Instant::now() + BLAME;
        while dead.iter().all(Dead::blames_another)
            && self.0.iter().any(Component::runs)
            && Instant::now() < end
        {
            std::thread::sleep(LOOK_EVERY);
            dead.extend(self.dead()?);
        }
        dead.sort_by_key(Dead::blames_another);
        Ok(())
    }
}

/// A member that has ended, and not well.
pub(super) struct Dead {
    pub(super) name: String,
    pub(super) status: ExitStatus,
    pub(super) words: String,
}

impl Dead {
    /// True if it says that another member is to blame.
    pub(super) fn blames_another(&self) -> bool {
        self.status.code() == Some(i32::from(ANOTHER_FAILED))
    }
}
