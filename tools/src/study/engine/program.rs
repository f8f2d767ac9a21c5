//! The engine `program`: another program, as a command whose `{names}` are filled in.
//!
//! It prints a JSON object a line for each test: `step` (of all processes together, or of each,
//! as the program counts), `samples`, `seconds` and `accuracy`. `test_seconds`, if it is there, is
//! that part of `seconds` in which training stood still for tests. Lines that are not such objects
//! are for people. It ends with code 0. Invariant: it ends with this process, however that ends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::Files;
use crate::experiment::Setting;
use crate::results::{Ended, Figures, Point, Run};

/// A line of a test.
#[derive(Deserialize)]
struct Line {
    step: u64,
    samples: u64,
    seconds: f64,
    #[serde(default)]
    test_seconds: f64,
    accuracy: f64,
    loss: Option<f64>,
}

/// What a line at the end may say.
#[derive(Default, Deserialize)]
struct Last {
    #[serde(default)]
    diverged: bool,
}

/// Runs the program with one seed.
///
/// # Errors
/// It cannot be started, fails, or tells no test.
pub(crate) fn run(setting: &Setting, files: &Files, seed: u64, tell: &dyn Fn(u64)) -> Result<Run> {
    let words = arguments(setting, &files.data_folder(&setting.model.data)?, seed)?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(files.folder());
    dogwild_lab::process::die_with_parent(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", words.join(" ")))?;
    let (points, diverged) = listen(&mut child, tell)?;
    ensure!(
        !points.is_empty() || diverged,
        "`{}` told no test: it is to print JSON objects with step, samples, seconds, accuracy",
        words.join(" ")
    );
    let target = setting.stop.target.filter(|_| setting.stop.at_target);
    let reached = target.is_some_and(|target| points.iter().any(|point| point.accuracy >= target));
    Ok(Run {
        seed,
        ended: match (diverged, reached) {
            (true, _) => Ended::Diverged,
            (_, true) => Ended::Target,
            _ => Ended::Done,
        },
        iterations: points.last().map_or(0, |point| point.iterations),
        points,
        figures: Figures::default(),
    })
}

/// Reads what it prints, until it ends.
fn listen(child: &mut Child, tell: &dyn Fn(u64)) -> Result<(Vec<Point>, bool)> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // Both at a time, or a program that writes much to one waits for ever.
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut err) = err {
            let _ = err.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    });
    let (mut points, mut diverged) = (Vec::new(), false);
    for line in BufReader::new(out.context("its output is a pipe")?).lines() {
        let line = line.context("cannot read what it prints")?;
        let last: Last = serde_json::from_str(&line).unwrap_or_default();
        diverged |= last.diverged;
        let Ok(test) = serde_json::from_str::<Line>(&line) else {
            continue;
        };
        tell(test.step);
        points.push(Point {
            iterations: test.step,
            samples: test.samples,
            seconds: test.seconds - test.test_seconds,
            bytes: None,
            loss: test.loss,
            accuracy: test.accuracy,
        });
    }
    let status = child.wait().context("it does not end")?;
    let said = said.join().unwrap_or_default();
    let lines: Vec<&str> = said.trim_end().lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("\n");
    ensure!(status.success(), "the program ended with {status}:\n{last}");
    Ok((points, diverged))
}

/// The words of the command, filled in.
///
/// # Errors
/// There is none, or a `{name}` in it is unknown.
pub(crate) fn arguments(setting: &Setting, data: &str, seed: u64) -> Result<Vec<String>> {
    ensure!(
        !setting.command.is_empty(),
        "command: the engine program needs one, as [\"./train.sh\", \"{{seed}}\"]"
    );
    let rate = setting.link.rate.0;
    let bits = rate.map_or("none".to_owned(), |rate| format!("{:.0}bit", rate * 8.0));
    let target = setting.stop.target.filter(|_| setting.stop.at_target);
    let values = [
        ("seed", seed.to_string()),
        ("nodes", setting.nodes.count.to_string()),
        ("solvers", setting.nodes.solvers.to_string()),
        ("iterations", setting.stop.iterations.to_string()),
        ("test_every", setting.stop.test_every.to_string()),
        // Above 1: none is reached.
        ("target", target.unwrap_or(2.0).to_string()),
        ("loss", setting.link.loss.to_string()),
        ("rate_bit", bits),
        ("solver", setting.model.solver.clone()),
        ("data_folder", data.to_owned()),
    ];
    let fill = |word: &String| {
        let mut filled = word.clone();
        for (name, value) in &values {
            filled = filled.replace(&format!("{{{name}}}"), value);
        }
        let known: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        match word.split_once('{') {
            Some((_, rest))
                if !known
                    .iter()
                    .any(|name| rest.starts_with(&format!("{name}}}"))) =>
            {
                bail!(
                    "command: `{word}` has an unknown name; known are {}",
                    known.join(", ")
                )
            }
            _ => Ok(filled),
        }
    };
    setting.command.iter().map(fill).collect()
}
