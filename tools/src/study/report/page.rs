//! The page: what was asked, how it was run, what came of it.
//!
//! Invariant: everything is said without colour and without JavaScript; what is missing or went
//! wrong stands before the results.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::curves::curves;
use super::figures::{Figure, over_first_axis};
use super::input::Study;
use super::plot::{Join, key, level_key};
use super::spread::short;
use super::summary::Summary;
use super::tables;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("copy.js");

/// Figures of curves that are shown at once if there are many.
const FIRST_CURVES: usize = 4;
const MANY_CURVES: usize = 12;
/// Lines in figures of curves; each is about 4 kB of the page, and more than 5 MB is too much.
const MOST_LINES: usize = 800;
/// Cells that a note names.
const MOST_NAMED: usize = 20;

/// The whole page.
///
/// # Errors
/// A figure cannot be drawn.
pub(crate) fn page(study: &Study, cells: &[Summary<'_>]) -> Result<String> {
    let any = cells.iter().any(|cell| !cell.cell.runs.is_empty());
    let mut parts: Vec<(&str, &str, Markup)> = vec![("how", "How it was run", how(study, cells))];
    if let Some(paper) = paper(study) {
        parts.push(("paper", "The paper's figure", paper));
    }
    if any {
        parts.push(("results", "What came of it", results(study, cells)?));
        if let Some(curves) = course(study)? {
            parts.push(("curves", "The course of training", curves));
        }
        let measured = tables::measured(study, cells);
        if !measured.is_empty() {
            let all = html! { @for table in measured { (table) } };
            parts.push(("measured", "Age, traffic and work", all));
        }
    }
    parts.push(("provenance", "Where it comes from", provenance(study)));
    parts.push(("files", "Files", files()));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (study.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (study.title) }
                        @if let Some(question) = &study.question { p.question { (question) } }
                    }
                    nav aria-label="Contents" {
                        ol {
                            @for (id, title, _) in &parts {
                                li { a href=(format!("#{id}")) { (title) } }
                            }
                        }
                    }
                    @for (id, title, body) in &parts {
                        section id=(id) aria-labelledby=(format!("{id}-title")) {
                            h2 id=(format!("{id}-title")) { (title) }
                            (body)
                        }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

fn how(study: &Study, cells: &[Summary<'_>]) -> Markup {
    let runs: usize = cells.iter().map(|cell| cell.cell.runs.len()).sum();
    let planned: usize = cells.iter().map(|cell| cell.cell.seeds.len()).sum();
    let mut seeds: Vec<u64> = cells
        .iter()
        .flat_map(|cell| cell.cell.seeds.clone())
        .collect();
    seeds.sort_unstable();
    seeds.dedup();
    html! {
        dl {
            dt { "Engine" } dd { (study.engine) }
            @if study.compares() {
                dt { "Compared" } dd { (study.ways.join("; ")) }
            }
            @for (i, axis) in study.axes.iter().enumerate() {
                dt { "Varied: " code { (axis) } }
                dd {
                    (study.values(i).iter().map(|value| value.label.clone())
                        .collect::<Vec<_>>().join(", "))
                }
            }
            dt { "Seeds" } dd { (list(&seeds)) }
            dt { "Runs" }
            dd { (runs) " of " (planned) ", in " (count(cells.len(), "cell", "cells")) }
            @if let Some(target) = study.target {
                dt { "Target" } dd { (short(target * 100.0, 2)) " % of the test set right" }
            }
        }
        (notes(study, cells))
    }
}

/// What is missing and what went wrong.
fn notes(study: &Study, cells: &[Summary<'_>]) -> Markup {
    let runs: usize = cells.iter().map(|cell| cell.cell.runs.len()).sum();
    let planned: usize = cells.iter().map(|cell| cell.cell.seeds.len()).sum();
    let missing: usize = cells.iter().map(|cell| cell.missing.len()).sum();
    let diverged: usize = cells.iter().map(|cell| cell.diverged).sum();
    if runs == 0 {
        return html! {
            div.note role="note" {
                p { strong { "No run has been made." } " There are no results to be told yet." }
            }
        };
    }
    let of_missing = named(
        cells
            .iter()
            .filter(|cell| !cell.missing.is_empty())
            .map(|cell| {
                let seeds = if cell.missing.len() == 1 {
                    "seed"
                } else {
                    "seeds"
                };
                format!(
                    "{}: {seeds} {}",
                    study.place(cell.cell),
                    list(&cell.missing)
                )
            }),
    );
    let of_diverged = named(cells.iter().filter(|cell| cell.diverged > 0).map(|cell| {
        format!(
            "{}: {} of {}",
            study.place(cell.cell),
            cell.diverged,
            cell.cell.runs.len()
        )
    }));
    html! {
        @if missing > 0 {
            div.note role="note" {
                p {
                    strong { "Missing: " (missing) " of " (count(planned, "run", "runs")) "." }
                    " All numbers below are without them."
                }
                (of_missing)
            }
        }
        @if diverged > 0 {
            div.note role="note" {
                p {
                    strong { "Diverged: " (diverged) " of " (count(runs, "run", "runs")) "." }
                    " They have no final accuracy: its median and range are of the others."
                }
                (of_diverged)
            }
        }
    }
}

/// A list that does not become too long.
fn named(all: impl Iterator<Item = String>) -> Markup {
    let all: Vec<String> = all.collect();
    html! {
        ul {
            @for text in all.iter().take(MOST_NAMED) { li { (text) } }
            @if all.len() > MOST_NAMED { li { "and " (all.len() - MOST_NAMED) " more cells" } }
        }
    }
}

fn paper(study: &Study) -> Option<Markup> {
    let paper = study.paper.as_ref()?;
    Some(html! {
        dl {
            dt { "Source" } dd { (paper.source) }
            dt { "Figure" } dd { (paper.figure) }
            dt { "It says" } dd { (paper.says) }
            @if let Some(differs) = &paper.differs { dt { "Differs here" } dd { (differs) } }
        }
        @if let Some(table) = tables::theirs(study) { (table) }
    })
}

fn results(study: &Study, cells: &[Summary<'_>]) -> Result<Markup> {
    let figures = over_first_axis(study, cells);
    Ok(html! {
        (tables::headline(study, cells))
        @if study.target.is_some() {
            p.small {
                "Seconds and iterations to the target are of the runs that reached it; the column "
                "before them says how many did."
            }
        }
        @if figures.iter().any(|figure| figure.plot.join == Join::Apart) {
            p.small { "Marks: medians of the seeds; whiskers: least to most." }
        } @else if !figures.is_empty() {
            p.small { "Lines: medians of the seeds; bands: least to most." }
        }
        (grid(&figures)?)
    })
}

fn course(study: &Study) -> Result<Option<Markup>> {
    let all = curves(study);
    if all.is_empty() {
        return Ok(None);
    }
    let first = if all.len() > MANY_CURVES {
        FIRST_CURVES
    } else {
        all.len()
    };
    let (shown, rest) = all.split_at(first);
    let mut lines = 0;
    let fits = |figure: &&Figure| {
        lines += figure.plot.lines.len();
        lines <= MOST_LINES
    };
    let kept = &rest[..rest.iter().take_while(fits).count()];
    let left_out = rest.len() - kept.len();
    Ok(Some(html! {
        p.small {
            "Lines: medians of the seeds at the same test; bands: least to most. A line goes on "
            "while at least half of the runs do."
        }
        (grid(shown)?)
        @if !kept.is_empty() {
            details {
                summary { (kept.len()) " more figures: the other values" }
                (grid(kept)?)
            }
        }
        @if left_out > 0 {
            p { (left_out) " further figures are left out; points.csv has their numbers." }
        }
    }))
}

fn grid(figures: &[Figure]) -> Result<Markup> {
    let all: Vec<Markup> = figures.iter().map(figure).collect::<Result<_>>()?;
    Ok(html! { @if !all.is_empty() { div.figures { @for one in all { (one) } } } })
}

fn figure(figure: &Figure) -> Result<Markup> {
    let plot = &figure.plot;
    let mut names = Vec::new();
    for line in &plot.lines {
        let sample = (key(line.look, plot.join)?, line.name.clone());
        // A paper's lines look alike.
        if names.last() != Some(&sample) {
            names.push(sample);
        }
    }
    for level in &plot.levels {
        names.push((
            level_key(level.look)?,
            format!("{} (one for all)", level.name),
        ));
    }
    let says: Vec<&str> = names.iter().map(|name| name.1.as_str()).collect();
    let says = format!(
        "{}: {}. Numbers are in the tables and files.",
        figure.title,
        says.join(", ")
    );
    let svg = plot.to_svg(&says)?;
    Ok(html! {
        figure {
            h3 { (figure.title) }
            ul.legend {
                @for (sample, name) in &names { li { (PreEscaped(sample)) (name) } }
            }
            (PreEscaped(svg))
            @if !figure.caption.is_empty() {
                figcaption { @for sentence in &figure.caption { (sentence) " " } }
            }
        }
    })
}

fn provenance(study: &Study) -> Markup {
    html! {
        @if !study.provenance.is_empty() {
            (tables::pairs("What ran where", &study.provenance))
        }
        h3 { "The experiment file" }
        pre tabindex="0" { code { (study.source) } }
    }
}

fn files() -> Markup {
    let files = [
        ("runs.csv", "one row for each run"),
        ("points.csv", "one row for each test on the way"),
        (
            "results.json",
            "all runs with their tests; median and range of each cell",
        ),
    ];
    html! {
        ul {
            @for (name, what) in files { li { a href=(name) { (name) } ": " (what) } }
        }
    }
}

/// Numbers in order; neighbours are drawn together.
fn list(numbers: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let parts = parts.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
