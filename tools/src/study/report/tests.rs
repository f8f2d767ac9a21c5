//! Whole reports of studies made up here.

use std::fs;

use super::input::{AxisValue, CellRuns, Paper, Quantity, Study, TheirPoint};
use super::write;
use crate::results::{Ended, Figures, Point, Run};

fn test(i: u64, loss: f64, accuracy: f64) -> Point {
    Point {
        iterations: 10 * i,
        samples: 640 * i,
        seconds: 0.5 * i as f64,
        bytes: Some(1_000_000 * i),
        loss: Some(loss),
        accuracy,
    }
}

/// A run that ends at `accuracy` after three tests and reaches 0.9 at the second or third.
fn run(seed: u64, ended: Ended, accuracy: f64) -> Run {
    let points = [0.3, 0.95, 1.0].into_iter().zip(1..);
    Run {
        seed,
        ended,
        iterations: 1200,
        points: points
            .map(|(share, i)| test(i, 2.0 / i as f64, accuracy * share))
            .collect(),
        figures: Figures {
            age_s_p50: Some(0.002 * seed as f64),
            frames_lost: Some(0.01),
            ..Figures::default()
        },
    }
}

fn value(label: &str) -> AxisValue {
    AxisValue {
        label: label.to_owned(),
        number: label.parse().ok(),
    }
}

fn cell(id: &str, way: usize, at: &[&str], runs: Vec<Run>) -> CellRuns {
    CellRuns {
        id: id.to_owned(),
        way,
        at: at.iter().copied().map(value).collect(),
        seeds: vec![1, 2, 3],
        runs,
    }
}

/// Three values of loss, two ways, and one way for all; a run diverged and one is missing.
fn study() -> Study {
    let mut cells = Vec::new();
    for (i, loss) in ["0", "0.1", "0.3"].into_iter().enumerate() {
        for (way, name) in ["once", "stream"].into_iter().enumerate() {
            let runs = (1..=3).map(|seed| {
                let accuracy = 0.97 - 0.01 * seed as f64 - 0.02 * (i * (1 - way)) as f64;
                run(seed, Ended::Done, accuracy)
            });
            cells.push(cell(
                &format!("{name}-{loss}"),
                way,
                &[loss],
                runs.collect(),
            ));
        }
    }
    cells[4].runs[2].ended = Ended::Diverged;
    cells[3].runs.remove(1);
    let all = (1..=3).map(|seed| run(seed, Ended::Done, 0.98)).collect();
    cells.push(cell("alone", 2, &[], all));
    Study {
        title: "Loss <script>alert(1)</script> & learning".to_owned(),
        question: Some("How much loss does it bear?".to_owned()),
        engine: "sim: virtual time".to_owned(),
        paper: Some(Paper {
            source: "Someone 2020".to_owned(),
            figure: "Figure 3".to_owned(),
            says: "It bears some.".to_owned(),
            differs: Some("Another net.".to_owned()),
            points: vec![
                TheirPoint {
                    of: Quantity::FinalAccuracy,
                    x: 0.0,
                    y: 0.99,
                    way: None,
                },
                TheirPoint {
                    of: Quantity::FinalAccuracy,
                    x: 0.2,
                    y: 0.95,
                    way: None,
                },
                TheirPoint {
                    of: Quantity::Speedup,
                    x: 0.1,
                    y: 0.5,
                    way: None,
                },
            ],
        }),
        target: Some(0.9),
        figures: Vec::new(),
        axes: vec!["link.loss".to_owned()],
        ways: ["once", "stream", "alone"].map(str::to_owned).to_vec(),
        cells,
        source: "title = \"<b>\"\n".to_owned(),
        provenance: vec![("version".to_owned(), "0.1.0".to_owned())],
    }
}

fn files(study: &Study) -> [String; 4] {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = write(study, folder.path()).expect("a report");
    let texts = paths
        .iter()
        .map(|path| fs::read_to_string(path).expect("a file"));
    let texts: Vec<String> = texts.collect();
    texts.try_into().expect("four files")
}

fn page(study: &Study) -> String {
    let [page, ..] = files(study);
    page
}

/// The text of a row of the headline table, by the text of its first cells.
fn row(page: &str, first: &[&str]) -> Vec<String> {
    let table = page
        .split("What came of it: median")
        .nth(2)
        .expect("the headline table");
    let table = table.split("</table>").next().expect("its end");
    let rows = table.split("<tr>").skip(2).map(|row| {
        let row = row.split("</tr>").next().unwrap_or_default();
        let cells = row.split("</td>").flat_map(|part| part.split("</th>"));
        let cells = cells.filter_map(|part| part.rsplit_once('>').map(|cell| cell.1.to_owned()));
        cells.collect::<Vec<_>>()
    });
    let mut found = rows.filter(|row| row.iter().zip(first).all(|(is, want)| is == want));
    found.next().unwrap_or_else(|| panic!("a row {first:?}"))
}

#[test]
fn what_is_missing_and_what_diverged_is_said() {
    let page = page(&study());
    assert!(page.contains("Missing: 1 of 21 runs."));
    assert!(page.contains("<li>stream, link.loss = 0.1: seed 2</li>"));
    assert!(page.contains("Diverged: 1 of 20 runs."));
    assert!(page.contains("<li>once, link.loss = 0.3: 1 of 3</li>"));
    assert!(page.contains("once, link.loss = 0.3: 1 of 3 diverged."));
    assert!(page.contains("\n2/3\n"));
}

#[test]
fn the_table_has_median_and_range() {
    let page = page(&study());
    let row = |first: &[&str]| row(&page, first)[2..].join("|");
    // Runs, final accuracy, diverged, reached, seconds, iterations, MB.
    assert_eq!(
        row(&["once", "0"]),
        "3|95.00 (94.00 to 96.00)|0|3 of 3|1.00 (1.00 to 1.50)|20 (20 to 30)|2 (2 to 3)"
    );
    assert_eq!(
        row(&["once", "0.3"])[..33],
        *"3|91.00 (91.00 to 92.00)|1 of 3|2"
    );
    assert_eq!(
        row(&["stream", "0.1"])[..31],
        *"2 of 3|94.00 (94.00 to 96.00)|0"
    );
    assert_eq!(
        row(&["alone", "any"])[..31],
        *"3|98.00 (98.00 to 98.00)|0|3 of"
    );
    assert!(page.contains("<td>4 (2 to 6)</td>"), "age p50 in ms");
    assert!(
        !page.contains("halvings</th>"),
        "what nothing knows has no column"
    );
}

#[test]
fn the_page_loads_nothing_and_escapes_what_it_is_given() {
    let page = page(&study());
    for loads in [
        "http:", "https:", "src=", "@import", "url(", "<link", "data:", "fetch(",
    ] {
        assert!(!page.contains(loads), "{loads}");
    }
    let links = page
        .split("href=\"")
        .skip(1)
        .map(|rest| rest.split('"').next());
    for link in links.flatten() {
        assert!(link.starts_with('#') || link.ends_with(".csv") || link.ends_with(".json"));
    }
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("<h1>Loss &lt;script&gt;alert(1)&lt;/script&gt; &amp; learning</h1>"));
    assert!(page.contains("&lt;b&gt;"));
}

#[test]
fn no_colour_is_left_in_figures() {
    let page = page(&study());
    let figures = page
        .split("<svg")
        .skip(1)
        .map(|rest| rest.split("</svg>").next());
    let figures: Vec<&str> = figures.flatten().collect();
    assert!(figures.len() > 12, "{}", figures.len());
    assert!(figures.iter().all(|svg| !svg.contains('#')));
    let plots: Vec<_> = figures
        .iter()
        .filter(|svg| svg.contains("role=\"img\""))
        .collect();
    // Accuracy, seconds, speedup, and four curves for each of three values.
    assert_eq!(plots.len(), 3 + 4 * 3);
    assert!(
        plots
            .iter()
            .all(|svg| svg.contains("viewBox") && svg.contains("aria-label="))
    );
    assert!(plots[0].contains("outline paper") && !plots[1].contains("outline paper"));
    assert!(plots[0].contains("\nalone\n"), "the level has its name");
}

#[test]
fn the_same_study_gives_the_same_bytes() {
    assert_eq!(files(&study()), files(&study()));
}

#[test]
fn the_files_have_all_runs_and_all_tests() {
    let [_, runs, points, json] = files(&study());
    let head = "cell,way,link.loss,seed,ended,final_accuracy,end_iterations,end_samples,\
                end_seconds,end_bytes,target_iterations,target_samples,target_seconds,\
                target_bytes,age_s_p50,age_s_p90,";
    assert!(runs.starts_with(head), "{runs}");
    assert_eq!(runs.lines().count(), 1 + 20);
    let diverged = runs
        .lines()
        .find(|row| row.starts_with("once-0.3,once,0.3,3,"));
    let diverged = diverged.expect("the diverged run");
    assert!(diverged.starts_with("once-0.3,once,0.3,3,diverged,,30,1920,1.5,3000000,,,,,0.006,"));
    assert!(runs.contains("\nalone,alone,,1,done,0.98,"));
    let head = "cell,way,link.loss,seed,iterations,samples,seconds,bytes,loss,accuracy\n";
    assert!(points.starts_with(head), "{points}");
    assert_eq!(points.lines().count(), 1 + 20 * 3);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["cells"][3]["missing"], serde_json::json!([2]));
    assert_eq!(json["cells"][4]["diverged"], 1);
    assert_eq!(json["cells"][4]["final_accuracy"]["n"], 2);
    assert_eq!(json["cells"][0]["runs"][0]["points"][2]["samples"], 1920);
}

#[test]
fn one_way_without_axes_is_enough() {
    let mut study = study();
    study.axes.clear();
    study.ways = vec![String::new()];
    study.paper = None;
    study.target = None;
    let mut only = cell("all", 0, &[], vec![run(1, Ended::Done, 0.9)]);
    only.seeds = vec![1];
    study.cells = vec![only];
    let [page, runs, ..] = files(&study);
    assert_eq!(row(&page, &["all"]), ["all", "1", "90.00"]);
    assert_eq!(page.matches("role=\"img\"").count(), 4);
    assert!(!page.contains("Missing:") && !page.contains("seconds to it"));
    assert!(runs.starts_with("cell,way,seed,ended,"));
}

#[test]
fn one_way_has_a_line_for_each_value() {
    let mut study = study();
    study.cells.retain(|cell| cell.way != 0);
    let page = page(&study);
    // Accuracy, seconds and speedup over loss; four curves.
    assert_eq!(page.matches("role=\"img\"").count(), 3 + 4);
    assert!(page.contains("link.loss = 0.3</li>"));
}

#[test]
fn a_study_without_runs_says_so() {
    let mut study = study();
    for cell in &mut study.cells {
        cell.runs.clear();
    }
    let [page, runs, points, _] = files(&study);
    assert!(page.contains("No run has been made."));
    assert!(!page.contains("role=\"img\"") && !page.contains("What came of it"));
    assert_eq!((runs.lines().count(), points.lines().count()), (1, 1));
    study.cells.clear();
    assert!(files(&study)[0].contains("No run has been made."));
}

#[test]
fn runs_that_do_not_reach_the_target_are_told() {
    let mut study = study();
    study.target = Some(0.955);
    let page = page(&study);
    assert_eq!(row(&page, &["once", "0"])[4..6], ["0", "1 of 3"]);
    assert_eq!(row(&page, &["once", "0.1"])[5..7], ["0 of 3", "–"]);
    assert!(page.contains("once, link.loss = 0: 2 of 3 did not reach the target."));
    assert!(page.contains("\n1/3\n") && page.contains("\nnone of 3\n"));
    assert!(page.contains("Seconds to the target (95.5 %)"));
}

#[test]
fn further_axes_make_further_figures() {
    let mut study = study();
    study.axes.push("link.delay".to_owned());
    study.cells.truncate(6);
    let further = study.cells.clone();
    for cell in &mut study.cells {
        cell.at.push(value("1 ms"));
    }
    for mut cell in further {
        cell.at.push(value("9 ms"));
        cell.id += "-9ms";
        study.cells.push(cell);
    }
    let page = page(&study);
    assert!(page.contains("<h3>Final accuracy, link.delay = 1 ms</h3>"));
    assert!(page.contains("<h3>Final accuracy, link.delay = 9 ms</h3>"));
    assert!(
        page.contains("<h3>Training loss over samples, link.loss = 0.3, link.delay = 9 ms</h3>")
    );
    // Three quantities for each delay, four curves for each of six; most of them folded away.
    assert_eq!(page.matches("role=\"img\"").count(), 2 * 3 + 6 * 4);
    assert!(page.contains("<summary>20 more figures"));
}

#[test]
fn odd_numbers_make_a_page() {
    let mut study = study();
    for point in &mut study.cells[0].runs[0].points {
        (point.seconds, point.loss, point.accuracy) = (f64::INFINITY, Some(f64::NAN), f64::NAN);
    }
    study.cells[1].runs[0].points.clear();
    study.cells[2].at[0].number = None;
    assert!(page(&study).contains("</html>"));
}

#[test]
fn a_large_study_makes_a_page_of_less_than_five_megabytes() {
    let mut study = demo();
    let few = study.cells.clone();
    study.cells.clear();
    for i in 0..400 {
        let mut cell = few[i % 2].clone();
        cell.at = vec![value(&(i / 2).to_string())];
        cell.id = format!("cell-{i}");
        study.cells.push(cell);
    }
    let page = page(&study);
    assert!(page.len() < 5_000_000, "{}", page.len());
    assert!(page.contains("further figures are left out"));
}

/// A number from 0 to 1 that looks like chance.
fn chance(seed: u64, i: u64) -> f64 {
    let mixed = (seed * 1_000_003 + i * 7919 + 12345).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / (1 << 24) as f64
}

/// A curve that bends towards `best`.
fn course(seed: u64, pace: f64, best: f64, seconds: f64) -> Run {
    let points = (1..=60).map(|i| {
        let noise = 0.02 * (chance(seed, i) - 0.5);
        let done = 1.0 - (-(i as f64) * pace / 12.0).exp();
        let accuracy = (0.1 + (best - 0.1) * done + noise * (1.3 - done)).min(0.995);
        Point {
            iterations: i * 50,
            samples: i * 3200,
            seconds: i as f64 * seconds * (0.95 + 0.1 * chance(seed, 1)),
            bytes: Some((i as f64 * 1.7e6 / pace) as u64),
            loss: Some(2.3 * (-3.5 * done).exp() + 0.02 * chance(seed, i + 100)),
            accuracy,
        }
    });
    let share = |i: u64| chance(seed, 1000 + i);
    Run {
        seed,
        ended: Ended::Done,
        iterations: 1200,
        points: points.collect(),
        figures: Figures {
            age_s_p50: Some(0.021 + 0.002 * share(1)),
            age_s_p90: Some(0.05 + 0.01 * share(2)),
            age_s_p99: Some(0.18 + 0.1 * share(3)),
            age_steps_p50: Some(2.0 + share(4)),
            age_steps_p99: Some(15.0 + 9.0 * share(5)),
            sent_bytes_per_s: Some(1.2e7 + 1e6 * share(6)),
            goodput_bytes_per_s: Some(0.9e7 + 1e6 * share(7)),
            frames_lost: Some(0.1 * share(8)),
            mass_late: Some(0.01 * share(9)),
            mass_lost: None,
            utilisation: Some(0.9 + 0.1 * share(10)),
            stride: Some(1.0),
            halvings: Some((3.0 * share(11)).floor()),
            ..Figures::default()
        },
    }
}

/// Six values of loss, two ways and a reference, five seeds.
fn demo() -> Study {
    let mut study = study();
    study.title = "Does the stream bear packet loss as well as exactly-once?".to_owned();
    study.question = Some(
        "How much of the packets may a network lose before training becomes slower, or worse, \
         when weights are streamed and nothing is sent again?"
            .to_owned(),
    );
    study.ways = ["exactly-once", "stream, nothing sent again", "one machine"]
        .map(str::to_owned)
        .to_vec();
    study.source = "title = \"Loss\"\n[vary]\n\"link.loss\" = [0, 0.001, 0.01, 0.05, 0.1, 0.3]\n\
                    # A line that is rather long, so that it is to be seen what becomes of lines \
                    that are long.\n"
        .to_owned();
    study.provenance = [
        ("version", "dogwild-study 0.1.0"),
        ("commit", "eb373a2e0cf35e4f6d2f9b8c1e1a0b9c8d7e6f5a"),
        (
            "command",
            "dogwild-study run experiments/loss.toml --out results/loss --jobs 16",
        ),
        ("machine", "2 cores, Linux 6.1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    study.cells.clear();
    for loss in ["0", "0.001", "0.01", "0.05", "0.1", "0.3"] {
        let number: f64 = loss.parse().expect("a number");
        for way in 0..2 {
            let hurt = number * if way == 0 { 2.5 } else { 0.6 };
            let runs = (1..=5).map(|seed| {
                let more = 0.1 * chance(seed, way as u64 + (number * 1000.0) as u64);
                let best = 0.978 - 0.13 * hurt * (0.5 + more * 5.0) - 0.02 * more;
                course(
                    seed,
                    (1.0 - 0.8 * hurt + more).max(0.3),
                    best,
                    0.4 * (1.0 + 4.0 * hurt),
                )
            });
            let mut cell = cell(
                &format!("way{way}-loss{loss}"),
                way,
                &[loss],
                runs.collect(),
            );
            cell.seeds = vec![1, 2, 3, 4, 5];
            study.cells.push(cell);
        }
    }
    study.cells[10].runs[1].ended = Ended::Diverged;
    study.cells[10].runs[1].points.truncate(20);
    study.cells[7].runs.remove(3);
    let mut alone = cell("alone", 2, &[], Vec::new());
    alone.seeds = vec![1, 2, 3, 4, 5];
    alone.runs = (1..=5).map(|seed| course(seed, 1.2, 0.982, 0.9)).collect();
    study.cells.push(alone);
    study
}
