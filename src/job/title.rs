//! The line over a job's picture: what was run, with the settings that change how it learns.

use serde_json::Value;

use super::common::Common;

/// Model, pictures, `how` the nodes were kept in step, seed, solver, faults, program and time.
pub(super) fn title(common: &Common, how: &str) -> String {
    let (solver, pictures) = (&common.solver, &common.pictures);
    let rate = super::json(&solver.lr_policy);
    let policy = rate["lr_policy"].as_str().unwrap_or("");
    let mut parts = vec![
        format!(
            "{} on {} ({} pictures)",
            common.model, common.data, pictures.train
        ),
        how.to_owned(),
        format!("base_lr {} ({policy})", solver.base_lr),
        format!("momentum {}", solver.momentum),
        format!("weight_decay {}", solver.weight_decay),
    ];
    let settings = &common.experiment.settings;
    parts.extend(settings.get("seed").map(|seed| format!("seed {seed}")));
    parts.extend(faults(settings.get("faults")));
    let pace = settings
        .get("transport")
        .and_then(|transport| transport["pace_bytes_per_s"].as_f64());
    parts.extend(pace.map(|bytes| format!("pace {} Mbit/s", bytes * 8.0 / 1e6)));
    let commit = common
        .experiment
        .commit
        .map_or(String::new(), |commit| format!(" ({commit})"));
    parts.push(format!(
        "dogwild {}{commit}, {}",
        common.experiment.dogwild, common.experiment.started
    ));
    parts.join("; ")
}

/// Faults that were made on purpose.
fn faults(faults: Option<&Value>) -> Vec<String> {
    let share = |name: &str| {
        let share = faults?[name].as_f64().filter(|share| *share > 0.0)?;
        // Rounded: 0.07 times 100 is 7.000000000000001.
        Some(format!("{name} {} %", (share * 1e6).round() / 1e4))
    };
    let shares = ["loss", "corrupt", "duplicate", "reorder"].into_iter();
    let mut said: Vec<String> = shares.filter_map(share).collect();
    if faults.is_some_and(|faults| !faults["loss_burst"].is_null()) {
        said.push("losses in bursts".to_owned());
    }
    let delay = faults.and_then(|faults| faults["delay_ms"].as_f64());
    said.extend(
        delay
            .filter(|ms| *ms > 0.0)
            .map(|ms| format!("delay up to {ms} ms")),
    );
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_said_if_there_are_any() {
        let said = |text| faults(Some(&serde_json::from_str(text).expect("JSON"))).join("; ");
        assert_eq!(
            said(r#"{"loss": 0.07, "reorder": 0, "delay_ms": 0}"#),
            "loss 7 %"
        );
        let text = r#"{"loss_burst": {"p": 0.1}, "delay_ms": 2.5, "corrupt": 0.001}"#;
        assert_eq!(
            said(text),
            "corrupt 0.1 %; losses in bursts; delay up to 2.5 ms"
        );
        assert!(faults(None).is_empty());
    }
}
