//! The report as a table.

use dogwild::watch::screen::Columns;

use super::Report;

impl Report {
    pub(super) fn table(&self) -> String {
        let title = format!(
            "{} nodes, {} weights,\n{} at MTU {}, rate {}",
            self.nodes, self.weights, self.transport, self.mtu, self.rate
        );
        let mut table = Columns::boxed([title, "per node".to_owned()]);
        let mut row = |name: String, value: String| {
            table.row([name, value]);
        };
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        row(
            "cycles/s (whole buffer exchanged)".into(),
            format!("{:.1}", self.cycles_per_s),
        );
        row(
            "frames/s sent".into(),
            format!("{:.0}", self.frames_sent_per_s),
        );
        row(
            "frames/s received".into(),
            format!("{:.0}", self.frames_received_per_s),
        );
        row(
            "sent, Gb/s".into(),
            format!("{:.2}", self.sent_bytes_per_s * 8.0 / 1e9),
        );
        row("positions lost".into(), percent(self.positions_lost_share));
        row(
            "deltas sent again".into(),
            percent(self.deltas_repeated_share),
        );
        row(
            "deltas kept (no slot)".into(),
            percent(self.deltas_kept_share),
        );
        row(
            "kernel drops, all nodes".into(),
            self.kernel_drops.to_string(),
        );
        row("streamer CPU".into(), percent(self.cpu_share));
        row(
            "waited for frames, each node".into(),
            self.waited_share
                .iter()
                .map(|share| percent(*share))
                .collect::<Vec<_>>()
                .join(", "),
        );
        row(
            "age p50 / p99 / max, µs".into(),
            format!(
                "{} / {} / {}",
                self.age_p50_us, self.age_p99_us, self.age_max_us
            ),
        );
        self.bounds(&mut row);
        table.to_string()
    }

    /// What it is compared with.
    fn bounds(&self, row: &mut impl FnMut(String, String)) {
        for raw in &self.raw {
            row(
                format!("raw {}: frames/s sent, received", raw.direction.name()),
                format!("{:.0}, {:.0}", raw.sent_per_s, raw.received_per_s),
            );
        }
        row(
            "received, share of raw two-way; buffer to buffer".into(),
            format!(
                "{:.1} %; {:.1} %",
                self.share_of_raw_two_way * 100.0,
                self.share_of_raw_buffers * 100.0
            ),
        );
        if !self.rounds.is_empty() {
            let shares = self.rounds.iter().map(|round| {
                format!(
                    "{:.0} / {:.0}",
                    round.share_of_raw_two_way * 100.0,
                    round.share_of_raw_buffers * 100.0
                )
            });
            row(
                "shares of all rounds, %".into(),
                shares.collect::<Vec<_>>().join(", "),
            );
        }
        row(
            "core to core, before and after".into(),
            self.core_to_core_bytes_per_s
                .map(|rate| format!("{:.1} GB/s", rate / 1e9))
                .join(", "),
        );
        if let Some(interface) = &self.interface {
            row(
                "node 0's interface: frames per position".into(),
                format!("{:.2}", interface.frames_per_position),
            );
            row(
                "node 0's interface: bytes per cycle".into(),
                format!("{:.0}", interface.bytes_per_cycle),
            );
        }
        row(
            "memcpy of the buffer".into(),
            format!(
                "{:.1} GB/s, {:.0} buffers/s",
                self.memcpy_bytes_per_s / 1e9,
                self.memcpy_buffers_per_s
            ),
        );
    }
}
