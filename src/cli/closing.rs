//! The last lines of `dogwild train`: how long it took, how well it learnt, how it ended. Prints,
//! and nothing else.

use crate::job::{Common, Ended, Level, Outcome};
use crate::watch::screen;

/// What the lines are made of.
pub(super) struct Closing<'a> {
    /// "3000 iterations", "300 iterations of 3 workers".
    pub(super) done: String,
    pub(super) train_s: f64,
    pub(super) nodes: u16,
    pub(super) identical: bool,
    pub(super) outcome: Outcome,
    pub(super) common: &'a Common,
    /// Pictures of the last test.
    pub(super) tested: usize,
}

impl Closing<'_> {
    fn text(&self) -> String {
        let mut lines = vec![format!("{} in {:.1} s", self.done, self.train_s)];
        lines[0] += &highest(&self.common.time_to_accuracy);
        let all = self.common.pictures.test;
        if self.tested < all {
            let tested = self.tested;
            lines.push(format!(
                "tested on the first {tested} of {all} pictures, to be brief"
            ));
        }
        lines.push(format!("replicas: {}", self.replicas()));
        lines.push(format!(
            "ended: {} (exit code {})",
            self.outcome.words(),
            self.outcome.code()
        ));
        lines.join("\n")
    }

    fn replicas(&self) -> &'static str {
        match (self.nodes, self.identical, self.outcome) {
            (1, ..) => "one only, nothing to compare",
            (_, true, _) => "identical bit for bit",
            (_, false, Outcome::ReplicasDiffer) => "they differ",
            (_, false, Outcome::Interrupted(_) | Outcome::Diverged | Outcome::Failed) => {
                "not compared, as the job did not come to its own end"
            }
            (_, false, _) => "not compared with those of other nodes",
        }
    }
}

/// The highest accuracy that was reached, and when.
fn highest(levels: &[Level]) -> String {
    let reached = levels
        .iter()
        .rev()
        .find_map(|level| Some((level, level.cluster?)));
    reached.map_or(String::new(), |(level, at)| {
        format!(
            "; {} % right after {} iterations and {:.1} s",
            (level.accuracy * 1e4).round() / 100.0,
            at.iterations,
            at.seconds
        )
    })
}

/// Prints the last lines. Of a job that did not do what was asked the error is the last.
pub(super) fn close(ended: &Ended, closing: &Closing<'_>) {
    dogwild_lab::say!("{}", screen::wrap(&closing.text(), screen::width()));
    if ended.outcome.as_asked() {
        dogwild_lab::say!(
            "{}: summary.json, curve.csv, curve.svg, weights.safetensors, logs",
            ended.folder.display()
        );
    }
}
