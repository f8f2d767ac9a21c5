//! The engine `program`: another program, as a command whose `{names}` are filled in.
//!
//! It prints a JSON object a line for each test: `step` (of all processes together, or of each,
//! as the program counts), `samples`, `seconds` and `accuracy`. `test_seconds`, if it is there, is
//! that part of `seconds` in which training stood still for tests. An object with `step` alone says
//! how far it is. Lines that are not such objects are for people. Or it prints one JSON document:
//! `figures_from` says where its figures are. It ends with code 0. Invariant: it ends with this
//! process, however that ends.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::Files;
use crate::experiment::{Engine, Setting};
use crate::repeat::sibling;
use crate::report::input::Quantity;
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

/// A line between two tests.
#[derive(Deserialize)]
struct Step {
    step: u64,
}

/// What a line at the end may say.
#[derive(Default, Deserialize)]
struct Last {
    #[serde(default)]
    diverged: bool,
}

/// What a program has printed.
#[derive(Default)]
struct Said {
    points: Vec<Point>,
    diverged: bool,
    /// All of it.
    text: String,
}

/// Runs the program with one seed.
///
/// # Errors
/// It cannot be started, fails, or tells neither a test nor a figure.
pub(crate) fn run(setting: &Setting, files: &Files, seed: u64, tell: &dyn Fn(u64)) -> Result<Run> {
    let words = arguments(setting, &files.data_folder(&setting.model.data)?, seed)?;
    let mut command = Command::new(found(&words[0])?);
    command.args(&words[1..]).current_dir(files.folder());
    dogwild_lab::process::die_with_parent(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", words.join(" ")))?;
    let said = listen(&mut child, tell)?;
    let figures = figures(setting, &said.text)
        .with_context(|| format!("what `{}` printed", words.join(" ")))?;
    ensure!(
        !said.points.is_empty() || said.diverged || !setting.figures_from.is_empty(),
        "`{}` told no test: it is to print JSON objects with step, samples, seconds, accuracy",
        words.join(" ")
    );
    let target = setting.stop.target.filter(|_| setting.stop.at_target);
    let mut points = said.points.iter();
    let reached = target.is_some_and(|target| points.any(|point| point.accuracy >= target));
    Ok(Run {
        seed,
        ended: match (said.diverged, reached) {
            (true, _) => Ended::Diverged,
            (_, true) => Ended::Target,
            _ => Ended::Done,
        },
        iterations: said.points.last().map_or(0, |point| point.iterations),
        points: said.points,
        figures,
    })
}

/// Programs of dogwild's own are those next to this one.
fn found(word: &str) -> Result<PathBuf> {
    if word.starts_with("dogwild") && !word.contains('/') {
        return sibling(word);
    }
    Ok(PathBuf::from(word))
}

/// The figures that the setting asks for, from one JSON document: all that was printed, or else
/// its last line.
fn figures(setting: &Setting, text: &str) -> Result<Figures> {
    if setting.figures_from.is_empty() {
        return Ok(Figures::default());
    }
    let whole = serde_json::from_str(text);
    let last = || serde_json::from_str(text.trim_end().lines().last().unwrap_or_default());
    let document: Value = whole
        .or_else(|_| last())
        .context("is not JSON, and its last line is not either")?;
    let mut all = serde_json::Map::new();
    for (name, pointer) in &setting.figures_from {
        let number = document.pointer(pointer).filter(|value| value.is_number());
        let number = number.ok_or_else(|| {
            anyhow!("has no number at {pointer}, where figures_from.{name} expects it")
        })?;
        all.insert(name.clone(), number.clone());
    }
    Ok(serde_json::from_value(Value::Object(all))?)
}

/// Whether it can be run.
///
/// # Errors
/// There is no command, or a figure is unknown.
pub(crate) fn validate(setting: &Setting) -> Result<()> {
    ensure!(
        !setting.command.is_empty(),
        "command: the engine program needs one, as [\"./train.sh\", \"{{seed}}\"]"
    );
    for (name, pointer) in &setting.figures_from {
        match Quantity::try_from(name.clone()).map_err(anyhow::Error::msg) {
            Ok(Quantity::Of(_)) => {}
            Ok(_) => bail!("figures_from.{name}: it comes from the tests of a run; leave it out"),
            Err(error) => return Err(error.context("figures_from")),
        }
        ensure!(
            pointer.starts_with('/'),
            "figures_from.{name} = \"{pointer}\": give a JSON pointer, as /runs/0/{name}"
        );
    }
    Ok(())
}

/// Whether the command can be filled in: of a whole cell, as names may be varied or compared.
///
/// # Errors
/// A `{name}` in it is unknown, or one of the file's has a value already.
pub(crate) fn validate_names(setting: &Setting) -> Result<()> {
    match setting.engine {
        Engine::Program => arguments(setting, "", 0).map(|_| ()),
        _ => Ok(()),
    }
}

/// Reads what it prints, until it ends.
fn listen(child: &mut Child, tell: &dyn Fn(u64)) -> Result<Said> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // Both at a time, or a program that writes much to one waits for ever.
    let errors = std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut err) = err {
            let _ = err.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    });
    let mut said = Said::default();
    for line in BufReader::new(out.context("its output is a pipe")?).lines() {
        let line = line.context("cannot read what it prints")?;
        said.take(&line, tell);
        said.text += &line;
        said.text.push('\n');
    }
    let status = child.wait().context("it does not end")?;
    let errors = errors.join().unwrap_or_default();
    let lines: Vec<&str> = errors.trim_end().lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("\n");
    ensure!(status.success(), "the program ended with {status}:\n{last}");
    Ok(said)
}

impl Said {
    fn take(&mut self, line: &str, tell: &dyn Fn(u64)) {
        let last: Last = serde_json::from_str(line).unwrap_or_default();
        self.diverged |= last.diverged;
        if let Ok(Step { step }) = serde_json::from_str(line) {
            tell(step);
        }
        let Ok(test) = serde_json::from_str::<Line>(line) else {
            return;
        };
        self.points.push(Point {
            iterations: test.step,
            samples: test.samples,
            seconds: test.seconds - test.test_seconds,
            bytes: None,
            loss: test.loss,
            accuracy: test.accuracy,
        });
    }
}

/// The words of the command, filled in.
///
/// # Errors
/// A `{name}` in it is unknown, or one of the file's has a value already.
fn arguments(setting: &Setting, data: &str, seed: u64) -> Result<Vec<String>> {
    let rate = setting.link.rate.0;
    let bits = rate.map_or("none".to_owned(), |rate| format!("{:.0}bit", rate * 8.0));
    let target = setting.stop.target.filter(|_| setting.stop.at_target);
    let mut values = vec![
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
    for (name, value) in &setting.names {
        ensure!(
            values.iter().all(|known| known.0 != name),
            "names.{name}: {{{name}}} has a value already; take another name"
        );
        values.push((name, value.clone()));
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The program waits for what is told of its first line: told at its end, it would fail.
    #[test]
    fn a_run_is_followed_while_it_prints() {
        let folder = tempfile::tempdir().expect("a folder");
        let heard = folder.path().join("heard");
        let script = format!(
            "echo for people; echo '{{\"step\": 3}}'
            for i in $(seq 600); do [ ! -e {0} ] || break; sleep 0.1; done
            [ -e {0} ] || exit 7
            echo '{{\"step\": 5, \"samples\": 50, \"seconds\": 1, \"accuracy\": 0.5}}'",
            heard.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("sh");
        let steps = Mutex::new(Vec::new());
        let tell = |step| {
            steps.lock().expect("one thread").push(step);
            std::fs::write(&heard, "").expect("written");
        };
        let said = listen(&mut child, &tell).expect("it ends well");
        assert_eq!(steps.into_inner().expect("one thread"), [3, 5]);
        // A step alone is no test.
        let tests: Vec<u64> = said.points.iter().map(|point| point.iterations).collect();
        assert_eq!(tests, [5]);
    }
}
