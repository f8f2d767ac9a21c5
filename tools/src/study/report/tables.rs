//! The tables of the page.
//!
//! Invariant: each table has a caption, and headers of columns and rows.

use maud::{Markup, html};

use super::input::{Quantity, Study};
use super::spread::{Spread, short};
use super::summary::{FIGURES, Known, Summary};

/// A table that scrolls by itself and can be copied.
fn framed(caption: &str, head: &[String], rows: &[Vec<String>], named: usize) -> Markup {
    html! {
        div.table {
            div.scroll tabindex="0" role="region" aria-label=(caption) {
                table {
                    caption { span { (caption) } }
                    thead { tr { @for name in head { th scope="col" { (name) } } } }
                    tbody {
                        @for row in rows {
                            tr {
                                @for (i, text) in row.iter().enumerate() {
                                    @if i < named { th scope="row" { (text) } }
                                    @else { td { (text) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The columns that say which cell it is.
fn place_head(study: &Study) -> Vec<String> {
    let way = study.compares().then(|| "way".to_owned());
    let all: Vec<String> = way.into_iter().chain(study.axes.iter().cloned()).collect();
    if all.is_empty() {
        vec!["cell".to_owned()]
    } else {
        all
    }
}

fn place(study: &Study, summary: &Summary<'_>) -> Vec<String> {
    let cell = summary.cell;
    let way = study.compares().then(|| study.way(cell.way).to_owned());
    let at = (0..study.axes.len()).map(|axis| match cell.at.get(axis) {
        Some(value) => value.label.clone(),
        None => "any".to_owned(),
    });
    let all: Vec<String> = way.into_iter().chain(at).collect();
    if all.is_empty() {
        vec![cell.id.clone()]
    } else {
        all
    }
}

fn or_dash(spread: Option<Spread>, decimals: Option<usize>) -> String {
    spread.map_or_else(
        || "–".to_owned(),
        |spread| spread.text(decimals.unwrap_or_else(|| spread.decimals())),
    )
}

/// What came of it: a row for each cell.
pub(crate) fn headline(study: &Study, cells: &[Summary<'_>]) -> Markup {
    let mut head = place_head(study);
    let named = head.len();
    let diverged = cells.iter().any(|cell| cell.diverged > 0);
    let bytes = cells.iter().any(|cell| cell.bytes.is_some());
    let tests = study.has_tests();
    head.push("runs".to_owned());
    if tests {
        head.push("final accuracy, %".to_owned());
    }
    if diverged {
        head.push("diverged".to_owned());
    }
    let chosen: Vec<&Known> = study.figures.iter().filter_map(|one| one.known()).collect();
    head.extend(chosen.iter().map(|known| known.title.to_owned()));
    if let Some(target) = study.target {
        head.push(format!("reached {} %", short(target * 100.0, 2)));
        head.extend(["seconds to it", "iterations to it"].map(str::to_owned));
        if bytes {
            head.push("MB to it".to_owned());
        }
    }
    let rows = cells.iter().map(|cell| {
        let mut row = place(study, cell);
        let (runs, planned) = (cell.cell.runs.len(), cell.cell.seeds.len());
        row.push(match planned > runs {
            true => format!("{runs} of {planned}"),
            false => runs.to_string(),
        });
        if tests {
            let accuracy = cell.accuracy.map(|spread| spread.times(100.0));
            row.push(or_dash(accuracy, Some(2)));
        }
        if diverged {
            row.push(match cell.diverged {
                0 => "0".to_owned(),
                some => format!("{some} of {runs}"),
            });
        }
        row.extend(chosen.iter().map(|known| {
            let spread = cell.figure(known);
            or_dash(spread.map(|spread| spread.times(known.factor)), None)
        }));
        if study.target.is_some() {
            row.push(format!("{} of {runs}", cell.reached));
            row.push(or_dash(cell.seconds, None));
            row.push(or_dash(cell.iterations, None));
            if bytes {
                row.push(or_dash(cell.bytes.map(|spread| spread.times(1e-6)), None));
            }
        }
        row
    });
    let rows: Vec<_> = rows.collect();
    framed(
        "What came of it: median (least to most) of the seeds",
        &head,
        &rows,
        named,
    )
}

/// The measured figures, in three tables; those that nothing knows are left out.
pub(crate) fn measured(study: &Study, cells: &[Summary<'_>]) -> Vec<Markup> {
    let parts = [
        (
            "How old weights are: time between two positions of a chunk at a slave",
            &FIGURES[..5],
        ),
        ("What the network carried and lost", &FIGURES[5..10]),
        ("What the solvers did", &FIGURES[10..13]),
        ("How fast it was", &FIGURES[13..]),
    ];
    parts
        .into_iter()
        .filter_map(|(caption, known)| part(study, cells, caption, known))
        .collect()
}

fn part(study: &Study, cells: &[Summary<'_>], caption: &str, known: &[Known]) -> Option<Markup> {
    let there = |known: &&Known| cells.iter().any(|cell| cell.figure(known).is_some());
    let known: Vec<&Known> = known.iter().filter(there).collect();
    if known.is_empty() {
        return None;
    }
    let mut head = place_head(study);
    let named = head.len();
    head.push("n".to_owned());
    head.extend(known.iter().map(|known| known.title.to_owned()));
    let rows = cells.iter().map(|cell| {
        let mut row = place(study, cell);
        let runs = cell.cell.runs.len();
        row.push(runs.to_string());
        row.extend(known.iter().map(|known| match cell.figure(known) {
            None => "–".to_owned(),
            Some(spread) => {
                let n = spread.n;
                let spread = spread.times(known.factor);
                let text = spread.text(spread.decimals());
                if n == runs {
                    text
                } else {
                    format!("{text}, n = {n}")
                }
            }
        }));
        row
    });
    let rows: Vec<_> = rows.collect();
    let caption = format!("{caption}: median (least to most) of the runs");
    Some(framed(&caption, &head, &rows, named))
}

/// What the paper's figure says in numbers.
pub(crate) fn theirs(study: &Study) -> Option<Markup> {
    let paper = study
        .paper
        .as_ref()
        .filter(|paper| !paper.points.is_empty())?;
    let axis = study.axes.first().map_or("x", String::as_str);
    let ways = paper.points.iter().any(|point| point.way.is_some());
    let mut head = vec!["of".to_owned(), axis.to_owned(), "value".to_owned()];
    if ways {
        head.insert(1, "way".to_owned());
    }
    let rows = paper.points.iter().map(|point| {
        let (title, _) = point.of.words(study);
        let value = match point.of {
            Quantity::FinalAccuracy => format!("{} %", short(point.y * 100.0, 4)),
            Quantity::SecondsToTarget => format!("{} s", point.y),
            Quantity::Speedup => point.y.to_string(),
            Quantity::Of(known) => short(point.y * known.factor, 4),
        };
        let mut row = vec![title, point.x.to_string(), value];
        if ways {
            row.insert(1, point.way.clone().unwrap_or_default());
        }
        row
    });
    let rows: Vec<_> = rows.collect();
    Some(framed(
        &format!("Values of {}", paper.figure),
        &head,
        &rows,
        1,
    ))
}

/// Names and values.
pub(crate) fn pairs(caption: &str, pairs: &[(String, String)]) -> Markup {
    html! {
        div.table {
            div.scroll tabindex="0" role="region" aria-label=(caption) {
                table.pairs {
                    caption { span { (caption) } }
                    tbody {
                        @for (name, value) in pairs {
                            tr { th scope="row" { (name) } td { (value) } }
                        }
                    }
                }
            }
        }
    }
}
