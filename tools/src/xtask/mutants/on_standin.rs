//! The tests that a mutant of devices meets: on the stand-in for CUDA's driver, with work that is
//! late at random, by a few seeds.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Mutant, failed, with_mutant, workshop};
use crate::{output, root};

/// All but those that take long: LeNet, and a hundred kills. And one that a host device makes late
/// on purpose.
const TESTS: [&str; 7] = [
    "a_gpu_is_kept",
    "a_gpu_keeps",
    "every_gpu_gets",
    "a_sum_on_its_way_up",
    "a_small_net_on_a_gpu",
    "a_gpu_gives_a_worker",
    "a_gpu_multiplies",
];
/// Of work that is late; one that is lucky with a mutant is not so with all.
const SEEDS: [&str; 3] = ["1", "2", "3"];
/// Longest delay of work, us.
const DELAYS_US: [&str; 2] = ["300", "3000"];
/// The tests take a few seconds. A mutant may wait for ever.
const HANGS: Duration = Duration::from_secs(180);

/// The first test that fails, or what the stand-in says against the caller.
pub(super) fn first_failure(
    tests: &Path,
    mutant: Option<(usize, &Mutant)>,
) -> Result<Option<String>> {
    let folder = workshop().join("standin");
    if mutant.is_none() {
        // Once, before all mutants.
        output(Command::new(root().join("tools/cuda-standin/build.sh")).arg(&folder))?;
    }
    for delay in DELAYS_US {
        for seed in SEEDS {
            let mut command = Command::new(tests);
            command.args(TESTS);
            command.env("LD_LIBRARY_PATH", &folder);
            command.env("STANDIN_SEED", seed);
            command.env("STANDIN_DELAY_US", delay);
            with_mutant(&mut command, mutant.map(|(number, _)| number));
            if let Some(caught) = caught(&mut command)? {
                return Ok(Some(caught));
            }
        }
    }
    Ok(None)
}

/// What is wrong in a run of tests, if anything is.
fn caught(command: &mut Command) -> Result<Option<String>> {
    let (out, errors) = (workshop().join("out"), workshop().join("errors"));
    command
        .stdout(File::create(&out)?)
        .stderr(File::create(&errors)?);
    let mut child = command.spawn().context("cannot run the tests")?;
    let start = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        if start.elapsed() > HANGS {
            child.kill()?;
            child.wait()?;
            return Ok(Some("a wait that has no end".into()));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let (out, errors) = (fs::read_to_string(out)?, fs::read_to_string(errors)?);
    if let Some(test) = out.lines().find_map(failed) {
        return Ok(Some(test.into()));
    }
    if !ended.success() {
        return Ok(Some(format!("the end of all tests ({ended})")));
    }
    let all = format!("{} passed", TESTS.len());
    ensure!(out.contains(&all), "{all} is not what was run: {out}");
    let against = errors.lines().find(|line| {
        let clean = "STANDIN: violations 0; left: 0 allocations, 0 registered";
        line.starts_with("STANDIN") && !line.starts_with(clean)
    });
    Ok(against.map(|line| format!("the stand-in: {line}")))
}
