//! How far a download is: a bar on a terminal, plain lines elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines where no terminal is attached.
const LINE_EVERY: Duration = Duration::from_secs(5);
const STYLE: &str = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes}  {eta} left";

/// Shows one download after the other.
#[derive(Default)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    file: String,
    total: u64,
    line_due: Option<Instant>,
}

impl Progress {
    /// A download of `total` bytes goes on from `at`.
    pub(super) fn begin(&mut self, file: &str, at: u64, total: u64) {
        self.end();
        (self.file, self.total) = (file.to_owned(), total);
        if dogwild_lab::out::shows_bars() {
            let bar = ProgressBar::new(total)
                .with_message(self.file.clone())
                .with_position(at);
            // The first rate is not that of what was there before.
            bar.reset_eta();
            if let Ok(style) = ProgressStyle::with_template(STYLE) {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        } else {
            self.line_due = Some(Instant::now() + LINE_EVERY);
        }
    }

    /// It is at `at` now.
    pub(super) fn at(&mut self, at: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(at);
        } else if self.line_due.is_some_and(|due| due <= Instant::now()) {
            self.line_due = Some(Instant::now() + LINE_EVERY);
            let megabytes = |bytes: u64| bytes as f64 / 1e6;
            dogwild_lab::progress!(
                "{}: {:.1} of {:.1} MB",
                self.file,
                megabytes(at),
                megabytes(self.total)
            );
        }
    }

    /// A line about what happened.
    pub(super) fn tell(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| dogwild_lab::note!("{text}")),
            None => dogwild_lab::note!("{text}"),
        }
    }

    /// The download is over, well or not.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.line_due = None;
    }
}
