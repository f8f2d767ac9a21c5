//! `dogwild clean`: lists what jobs have left under /dev/shm, and removes what is asked for.

use anyhow::{Result, bail};

use crate::job::{Leftover, LeftoverState, Maker, age, leftovers};

/// Arguments of `dogwild clean`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Remove what is not in use and holds nothing unsaved (without this it is only listed)
    #[arg(long)]
    yes: bool,
    /// Remove weights that are saved nowhere too
    #[arg(long, requires = "yes")]
    unsaved: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        let found = leftovers()?;
        if found.is_empty() {
            dogwild_lab::say!("nothing of dogwild's is in /dev/shm");
        }
        let (mut removed, mut failed, mut left) = (0, 0, 0);
        for leftover in &found {
            dogwild_lab::say!("{}", describe(leftover));
            if !self.takes(leftover) {
                left += u64::from(goes(leftover).is_some());
                dogwild_lab::say!("    {}", advice(leftover));
                continue;
            }
            match leftover.remove() {
                Ok(()) => {
                    removed += leftover.bytes;
                    dogwild_lab::say!("    removed");
                }
                Err(error) => {
                    failed += 1;
                    dogwild_lab::say!("    not removed: {error}");
                }
            }
        }
        if self.yes {
            dogwild_lab::say!("{:.1} MB freed", removed as f64 / 1e6);
        } else if left > 0 {
            dogwild_lab::say!("dogwild clean --yes removes what is free; nothing was removed now");
        }
        if failed > 0 {
            bail!("{failed} could not be removed");
        }
        Ok(())
    }

    fn takes(&self, leftover: &Leftover) -> bool {
        self.yes && goes(leftover).is_some_and(|unsaved| self.unsaved || !unsaved)
    }
}

/// Whether it may be removed at all, and if so, whether that loses unsaved weights.
fn goes(leftover: &Leftover) -> Option<bool> {
    match (&leftover.state, leftover.maker) {
        (LeftoverState::InUse(_), _) => None,
        (_, Maker::Person) if !leftover.orphan => None,
        (LeftoverState::Free, _) => Some(false),
        (LeftoverState::Unsaved(_) | LeftoverState::Unreadable(_), _) => Some(true),
    }
}

fn describe(leftover: &Leftover) -> String {
    format!(
        "{}  {:.1} MB, {} old",
        leftover.path.display(),
        leftover.bytes as f64 / 1e6,
        age(leftover.age)
    )
}

fn advice(leftover: &Leftover) -> String {
    let path = leftover.path.display();
    match (&leftover.state, leftover.maker) {
        (LeftoverState::InUse(by), _) => format!("in use by {by}"),
        (LeftoverState::Unsaved(iterations), maker) => {
            let remove = match maker {
                Maker::Person => format!("rm {path}*"),
                _ => "dogwild clean --yes --unsaved".into(),
            };
            format!(
                "{iterations} iterations, not saved\n    \
                 save:   dogwild snapshot --buffer {path} --out FILE.safetensors\n    \
                 remove: {remove}"
            )
        }
        (LeftoverState::Unreadable(why), Maker::Person) => {
            format!("cannot be read: {why}\n    remove: rm {path}*")
        }
        (LeftoverState::Unreadable(why), _) => {
            format!("cannot be read: {why}\n    remove: dogwild clean --yes --unsaved")
        }
        (LeftoverState::Free, _) if leftover.orphan => "free: its buffer is gone".into(),
        (LeftoverState::Free, Maker::Person) => {
            format!("free; made by hand, so it stays (rm {path}*)")
        }
        (LeftoverState::Free, _) => "free, nothing unsaved in it".into(),
    }
}
