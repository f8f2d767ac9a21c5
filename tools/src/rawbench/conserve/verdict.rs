//! What three runs of `conserve` mean, in words.

use super::{Outcome, Report};

/// What was found; an error if exactly-once did not keep what it promises.
pub(super) fn of(report: &Report) -> Result<String, String> {
    let exactly_once = report.deltas == "exactly-once";
    for run in &report.runs {
        if !run.replicas_identical && exactly_once {
            return Err(format!(
                "FAILED: {}: replicas did not become identical: {}",
                run.run,
                run.lags.as_deref().unwrap_or("they moved apart again")
            ));
        }
    }
    let [.., atomic] = report.runs.as_slice() else {
        return Err("FAILED: nothing was run".into());
    };
    let difference = atomic.added - atomic.arrived;
    let faults = format!(
        "with {} loss, {} doubled and {} late",
        report.loss, report.duplicate, report.reorder
    );
    match (difference == 0.0, exactly_once) {
        (true, _) => Ok(format!(
            "conserved: {faults}, the stream lost nothing and doubled nothing ({:.0} added, as much arrived).{}",
            atomic.added,
            racing(&report.runs)
        )),
        (false, true) => Err(format!(
            "FAILED: {faults}, the stream {} {:.0} of {:.0} with atomic writes: this is a bug, please report it",
            if difference > 0.0 { "lost" } else { "doubled" },
            difference.abs(),
            atomic.added
        )),
        (false, false) => Ok(format!(
            "not conserved, as expected of fire-and-forget: {faults}, {:.2} % of what was added {}.{}",
            100.0 * atomic.missing_share.abs(),
            if difference > 0.0 {
                "was lost"
            } else {
                "came twice"
            },
            racing(&report.runs)
        )),
    }
}

/// What the runs with racing writes add to it.
fn racing(runs: &[Outcome]) -> String {
    let [plain, ..] = runs else {
        return String::new();
    };
    if plain.missing_share == 0.0 {
        return "\nRacing writes without faults lost nothing either.".into();
    }
    format!(
        "\nRacing writes without faults lost {:.4} %: that is the price of not locking, not of the network.",
        100.0 * plain.missing_share
    )
}
