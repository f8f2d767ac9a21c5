//! Frames on a screen, and as text.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::frame::{Frame, Node, Order, Peer};

/// Intervals whose loss is kept.
const HISTORY: usize = 240;
/// Columns of the table: title and width. Together with the spaces between them 80.
const COLUMNS: [(&str, u16); 11] = [
    ("node", 8),
    ("it/s", 6),
    ("loss", 6),
    ("acc %", 6),
    ("cycl/s", 6),
    ("out MB/s", 8),
    ("in MB/s", 7),
    ("lost %", 6),
    ("p50 ms", 6),
    ("p99 ms", 6),
    ("CPU %", 5),
];
/// Other nodes that are told of.
const PEERS: usize = 3;
/// Lines of what is told of one node.
const DETAILS: u16 = 6;

/// What is on the screen.
#[derive(Debug, Default)]
pub struct Screen {
    frame: Frame,
    losses: Vec<u64>,
    order: Order,
    selected: usize,
}

impl Screen {
    /// Shows this interval from now on.
    pub fn push(&mut self, frame: Frame) {
        if let Some(loss) = frame.loss {
            self.losses.push((loss.max(0.0) * 1000.0) as u64);
            let more = self.losses.len().saturating_sub(HISTORY);
            self.losses.drain(..more);
        }
        self.frame = frame;
        self.frame.sort(self.order);
    }

    /// Sorts by the next thing.
    pub fn sort(&mut self) {
        self.order = self.order.next();
        self.frame.sort(self.order);
    }

    /// Selects a node further down, or up.
    pub fn select(&mut self, by: isize) {
        let last = self.frame.nodes.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Draws it all.
    pub fn draw(&self, to: &mut ratatui::Frame<'_>) {
        let [head, loss, table, details, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(3),
            Constraint::Fill(1),
            Constraint::Length(DETAILS),
            Constraint::Length(1),
        ])
        .areas(to.area());
        to.render_widget(Line::from(self.head()).style(bold()), head);
        self.draw_loss(to, loss);
        self.draw_table(to, table);
        if let Some(node) = self.frame.nodes.get(self.selected) {
            let lines: Vec<Line<'_>> = detail(node).into_iter().map(Line::from).collect();
            to.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), details);
        }
        let order = self.order.name();
        let help = format!("q quit   up, down: node   s sort (by {order})   p pause");
        to.render_widget(
            Line::from(help).style(Style::new().fg(Color::DarkGray)),
            keys,
        );
    }

    fn head(&self) -> String {
        let Frame {
            iterations,
            target_iterations,
            iterations_per_s,
            ..
        } = &self.frame;
        let of = match target_iterations {
            0 => String::new(),
            target => format!("/{target}"),
        };
        let nodes = self.frame.nodes.len();
        let accuracy = self.frame.accuracy;
        format!(
            "dogwild top   {nodes} nodes here   {iterations}{of} iterations   {iterations_per_s:.0} it/s{}",
            accuracy.map_or(String::new(), |share| format!(
                "   accuracy {:.2} %",
                share * 100.0
            ))
        )
    }

    fn draw_loss(&self, to: &mut ratatui::Frame<'_>, area: Rect) {
        let [name, line] =
            Layout::horizontal([Constraint::Length(14), Constraint::Fill(1)]).areas(area);
        let text = match self.frame.loss {
            Some(loss) => format!("loss\n{loss:.4}"),
            None => "loss\nnone yet".to_owned(),
        };
        to.render_widget(Paragraph::new(text), name);
        let width = usize::from(line.width);
        let newest = &self.losses[self.losses.len().saturating_sub(width)..];
        let sparkline = Sparkline::default()
            .data(newest)
            .style(Style::new().fg(Color::Green));
        to.render_widget(sparkline, line);
    }

    fn draw_table(&self, to: &mut ratatui::Frame<'_>, area: Rect) {
        let rows = self.frame.nodes.iter().map(row);
        let widths = COLUMNS.map(|(_, width)| Constraint::Length(width));
        let titles = COLUMNS.map(|(title, width)| match title {
            "node" => title.to_owned(),
            _ => format!("{title:>width$}", width = usize::from(width)),
        });
        let table = Table::new(rows, widths)
            .header(Row::new(titles).style(bold()))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(Some(self.selected));
        to.render_stateful_widget(table, area, &mut state);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn row(node: &Node) -> Row<'static> {
    let none = || "-".to_owned();
    let values = [
        tail(&node.name, usize::from(COLUMNS[0].1)),
        format!("{:.1}", node.iterations_per_s),
        node.loss.map_or_else(none, |loss| format!("{loss:.3}")),
        (node.accuracy).map_or_else(none, |share| format!("{:.1}", share * 100.0)),
        format!("{:.1}", node.cycles_per_s),
        format!("{:.2}", node.sent_bytes_per_s / 1e6),
        format!("{:.2}", node.received_bytes_per_s / 1e6),
        format!("{:.2}", node.lost_share * 100.0),
        format!("{:.1}", node.age_ms[0]),
        format!("{:.1}", node.age_ms[1]),
        format!("{:.0}", node.cpu_share.iter().sum::<f64>() * 100.0),
    ];
    let cells = values.into_iter().zip(COLUMNS).enumerate();
    let cells = cells.map(|(k, (value, (_, width)))| match k {
        0 => value,
        _ => format!("{value:>width$}", width = usize::from(width)),
    });
    let style = match (node.alive, node.silent.is_empty()) {
        (false, _) => Style::new().fg(Color::DarkGray),
        (_, false) => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    };
    Row::new(cells.collect::<Vec<_>>()).style(style)
}

/// The last characters of what is too long: names differ at their ends.
fn tail(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width {
        return text.to_owned();
    }
    let end: String = text.chars().skip(len + 1 - width).collect();
    format!("…{end}")
}

/// What is told of other nodes: those whose weights are oldest here.
fn oldest(peers: &[Peer]) -> Vec<String> {
    let mut peers: Vec<&Peer> = peers.iter().collect();
    peers.sort_by_key(|peer| (std::cmp::Reverse(peer.age_ms), peer.node));
    let more = peers.len().saturating_sub(PEERS);
    let mut told: Vec<String> = peers.into_iter().take(PEERS).map(seen).collect();
    if more > 0 {
        told.push(format!("{more} more, not as old"));
    }
    told
}

fn seen(peer: &Peer) -> String {
    let drift = peer
        .drift
        .map_or(String::new(), |drift| format!(" drift {drift:.1e}"));
    format!(
        "{}: lost {:.1} % age {} ms{drift}",
        peer.node,
        peer.lost_share * 100.0,
        peer.age_ms
    )
}

/// What is told of one node under the table.
fn detail(node: &Node) -> Vec<String> {
    let dropped = node.dropped_per_s.iter();
    let dropped: Vec<String> = dropped.map(|(why, n)| format!("{why} {n:.0}/s")).collect();
    let list = |items: &[String]| match items {
        [] => "none".to_owned(),
        items => items.join(", "),
    };
    let silent: Vec<String> = node.silent.iter().map(u16::to_string).collect();
    let [stream, solvers] = node.cpu_share.map(|share| share * 100.0);
    vec![
        format!("{}: {}", node.name, list(&node.components)),
        format!("dropped: {}", list(&dropped)),
        format!("silent nodes: {}", list(&silent)),
        format!("CPU: streamer {stream:.0} %, solvers {solvers:.0} %"),
        format!("from others: {}", list(&oldest(&node.peers))),
    ]
}

/// A screen of so many columns and lines as text; lines that are empty at its end are left out.
pub fn text(screen: &Screen, width: u16, height: u16) -> String {
    let drawn = Terminal::new(TestBackend::new(width, height)).and_then(|mut terminal| {
        terminal.draw(|frame| screen.draw(frame))?;
        Ok(terminal.backend().buffer().clone())
    });
    let Ok(buffer) = drawn;
    let line = |y: u16| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let lines: Vec<String> = (0..height).map(line).collect();
    lines.join("\n").trim_end().to_owned()
}
