//! `dogwild doctor`: what works on this host, and what the rest needs.

use anyhow::{Context, Result, bail};
use comfy_table::{ContentArrangement, Table, presets};

use super::args::transports;
use crate::node::Transport;
use crate::node::doctor::{Half, Report, examine, half};
use crate::watch::screen;

/// Columns of the table where neither `COLUMNS` nor a terminal tells: each line is a finding of its
/// own.
const WIDTH_PLAIN: usize = 140;
/// A narrower table breaks words: five columns leave two of 17.
const WIDTH_OF_TABLE: usize = 120;

/// Arguments of `dogwild doctor`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Machine-readable output
    #[arg(long)]
    json: bool,
    /// One end of a round trip inside a lab
    #[arg(long, hide = true, value_enum, requires_all = ["transport", "iface"])]
    half: Option<HalfArg>,
    #[arg(long, hide = true, value_parser = transports())]
    transport: Option<Transport>,
    #[arg(long, hide = true)]
    iface: Option<String>,
}

/// See [`Half`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HalfArg {
    Ask,
    Answer,
}

impl From<HalfArg> for Half {
    fn from(half: HalfArg) -> Self {
        match half {
            HalfArg::Ask => Self::Ask,
            HalfArg::Answer => Self::Answer,
        }
    }
}

impl Args {
    pub(super) fn run(self) -> Result<()> {
        if let (Some(end), Some(transport), Some(iface)) = (self.half, self.transport, &self.iface)
        {
            dogwild_lab::say!("{}", half(end.into(), transport, iface)?);
            return Ok(());
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let report = examine(&program);
        if self.json {
            dogwild_lab::say!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            let width = screen::width_or(WIDTH_PLAIN);
            if width < WIDTH_OF_TABLE {
                dogwild_lab::say!("{}", list(&report, width));
            } else {
                dogwild_lab::say!("{}", table(&report, width));
            }
        }
        if !report.anything_works() {
            bail!("no transport works here (the report says what each needs)");
        }
        Ok(())
    }
}

fn table(report: &Report, width: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["", "", "state", "found", "needs"]);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    for (title, checks) in report.sections() {
        for (i, check) in checks.iter().enumerate() {
            table.add_row([
                if i == 0 { title } else { "" },
                &check.name,
                check.state.name(),
                &check.found,
                &check.needs.join("\n"),
            ]);
        }
    }
    table
}

/// The same for a narrow screen: what was found and what it needs stand below each name.
fn list(report: &Report, width: usize) -> String {
    let mut lines = Vec::new();
    for (title, checks) in report.sections() {
        lines.push(title.to_owned());
        for check in checks {
            lines.push(format!("  {}: {}", check.name, check.state.name()));
            let needs = check.needs.iter().map(|need| format!("needs: {need}"));
            for text in std::iter::once(check.found.clone()).chain(needs) {
                let text = screen::wrap(&text, width - 4);
                lines.extend(text.lines().map(|line| format!("    {line}")));
            }
        }
    }
    lines.join("\n")
}
