//! The live view: shards, calls, clients, peers, what moves between them, and how throughput and latency have gone. Looks every
//! second; keeps as many looks as fit across the screen.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table as Widget};
use ratatui::{DefaultTerminal, Frame};

use super::look;
use super::rows::{self, Table};
use crate::Failure;
use crate::figures::{Figures, Rates};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks that are kept; no terminal is wider.
const HISTORY_MAX: usize = 500;
/// Columns from which on two tables go beside each other, and columns have more room between them.
const WIDE: u16 = 120;
/// Rows that a page key moves by.
const PAGE: usize = 10;
/// The lines of a table that are not its rows: the border and the heads.
const FRAME: u16 = 3;
/// The least height of a table at the bottom where there are two: two of its rows are seen.
const LONG_MIN: u16 = FRAME + 2;

/// The tables at the bottom, which may be longer than any screen: all peers, and what has moved between clients and theirs.
const PEERS: usize = 0;
const TRAFFIC: usize = 1;

/// Shows the daemon at `socket` until q, Esc or Ctrl-C.
pub(super) fn run(socket: &Path) -> Result<(), Failure> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(Failure::input(
            "--watch needs a terminal; without one, use `sealane stat` or `sealane stat --json`",
        ));
    }
    let mut view = View::new(look(socket)?);
    let mut terminal = ratatui::init();
    let shown = show(&mut view, socket, &mut terminal);
    ratatui::restore();
    shown
}

fn show(view: &mut View, socket: &Path, terminal: &mut DefaultTerminal) -> Result<(), Failure> {
    let lost = |error| Failure::work(format!("the terminal is lost ({error})"));
    loop {
        terminal.draw(|frame| view.draw(frame)).map_err(lost)?;
        let next = view.looked + INTERVAL;
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            if !event::poll(left).map_err(lost)? {
                break;
            }
            match event::read().map_err(lost)? {
                Event::Key(key) if key.kind == KeyEventKind::Press && !view.obey(key) => return Ok(()),
                _ => {
                    terminal.draw(|frame| view.draw(frame)).map_err(lost)?;
                }
            }
        }
        view.take(look(socket));
    }
}

/// What is shown.
struct View {
    now: Figures,
    before: Option<Figures>,
    /// Tensors a second both ways, and the middle latency of calls in ns, one for each look.
    throughput: VecDeque<u64>,
    latency: VecDeque<u64>,
    /// Why the last look saw nothing.
    trouble: Option<String>,
    looked: Instant,
    /// The first rows that are shown: of the peers, and of the traffic.
    first: [usize; 2],
    /// The table that keys move through.
    chosen: usize,
    paused: bool,
}

impl View {
    fn new(now: Figures) -> View {
        View {
            now,
            before: None,
            throughput: VecDeque::new(),
            latency: VecDeque::new(),
            trouble: None,
            looked: Instant::now(),
            first: [0; 2],
            chosen: PEERS,
            paused: false,
        }
    }

    /// Takes in another look.
    fn take(&mut self, look: Result<Figures, Failure>) {
        self.looked = Instant::now();
        if self.paused {
            return;
        }
        match look {
            Ok(now) => {
                self.trouble = None;
                self.before = Some(std::mem::replace(&mut self.now, now));
                let rates = Rates::of(&self.now, self.before.as_ref());
                let calls = rows::by_kind(&self.now, self.before.as_ref());
                let busiest = calls.iter().max_by_key(|(.., took)| took.count);
                keep(&mut self.throughput, (rates.tensors_sent + rates.tensors_received) as u64);
                keep(&mut self.latency, busiest.map_or(0, |(.., took)| took.p50_ns));
            }
            Err(failure) => self.trouble = Some(failure.to_string()),
        }
    }

    /// Does what a key says; false to end.
    fn obey(&mut self, key: KeyEvent) -> bool {
        let shards = self.now.shards.iter();
        let rows: usize = match self.chosen {
            PEERS => shards.map(|shard| shard.peers.len()).sum(),
            _ => shards.flat_map(|shard| &shard.clients).map(|client| client.peers.len()).sum(),
        };
        let (last, first) = (rows.saturating_sub(1), &mut self.first[self.chosen]);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Tab => self.chosen = PEERS + TRAFFIC - self.chosen,
            KeyCode::Down => *first = (*first + 1).min(last),
            KeyCode::Up => *first = first.saturating_sub(1),
            KeyCode::PageDown => *first = (*first + PAGE).min(last),
            KeyCode::PageUp => *first = first.saturating_sub(PAGE),
            KeyCode::Home => *first = 0,
            _ => {}
        }
        true
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let before = self.before.as_ref();
        let (shards, calls) = (rows::shards(&self.now, before), rows::calls(&self.now, before));
        let (clients, long) = (rows::clients(&self.now), [rows::peers(&self.now, before), rows::traffic(&self.now)]);
        // Beside each other where there is room.
        let is_wide = frame.area().width >= WIDE;
        let (calls_high, clients_high) = (high(&calls), high(&clients));
        let middle_high = if is_wide { calls_high.max(clients_high) } else { calls_high + clients_high };
        let [head, graphs, shard_area, middle, bottom, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(5),
            Constraint::Max(high(&shards)),
            Constraint::Max(middle_high),
            Constraint::Min(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [calls_area, clients_area] = if is_wide {
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle)
        } else {
            Layout::vertical([Constraint::Length(calls_high), Constraint::Length(clients_high)]).areas(middle)
        };
        frame.render_widget(Paragraph::new(Text::from(rows::head(&self.now).map(Line::from).to_vec())), head);
        self.draw_graphs(frame, graphs);
        draw_table(frame, shard_area, &shards, 0);
        draw_table(frame, calls_area, &calls, 0);
        draw_table(frame, clients_area, &clients, 0);
        let heights = self.heights(bottom.height, &long).map(Constraint::Length);
        let areas: [Rect; 2] = Layout::vertical(heights).areas(bottom);
        for ((table, area), first) in long.iter().zip(areas).zip(self.first) {
            draw_table(frame, area, table, first);
        }
        let foot_line = match (&self.trouble, self.paused) {
            (Some(trouble), _) => Line::styled(trouble.clone(), Style::new().fg(Color::Red)),
            (None, true) => Line::styled("paused; p resumes, q quits", Style::new().fg(Color::Yellow)),
            (None, false) => Line::styled(self.keys(), Style::new().dim()),
        };
        frame.render_widget(foot_line, foot);
    }

    /// What the keys do.
    fn keys(&self) -> &'static str {
        match self.chosen {
            PEERS => "q quits, p pauses, ↑ ↓ scroll the peers, tab selects the peers of clients",
            _ => "q quits, p pauses, ↑ ↓ scroll the peers of clients, tab selects all peers",
        }
    }

    /// The heights of the tables at the bottom: as their rows need it; where there is less, a half or what the other one leaves; and
    /// where that is too little to read, all for the one that keys move through.
    fn heights(&self, room: u16, [peers, traffic]: &[Table; 2]) -> [u16; 2] {
        if traffic.rows.is_empty() {
            return [room, 0];
        }
        if room < 2 * LONG_MIN {
            return if self.chosen == PEERS { [room, 0] } else { [0, room] };
        }
        let below = high(traffic).min((room / 2).max(room.saturating_sub(high(peers))));
        [room - below, below]
    }

    fn draw_graphs(&self, frame: &mut Frame<'_>, area: Rect) {
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        let latest = |values: &VecDeque<u64>| values.back().copied().unwrap_or(0);
        let throughput = format!(" tensors/s, both ways: {} ", rows::count(latest(&self.throughput) as f64));
        let latency = format!(" p50 of the most frequent call: {} ", rows::duration(latest(&self.latency)));
        for (values, title, color, area) in
            [(&self.throughput, throughput, Color::Cyan, left), (&self.latency, latency, Color::Magenta, right)]
        {
            let block = Block::bordered().title(title);
            let width = usize::from(block.inner(area).width);
            let shown: Vec<u64> = values.iter().skip(values.len().saturating_sub(width)).copied().collect();
            frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(color)).block(block), area);
        }
    }
}

/// How high a table is that shows all of its rows.
fn high(table: &Table) -> u16 {
    u16::try_from(table.rows.len()).unwrap_or(u16::MAX).saturating_add(FRAME)
}

fn keep(values: &mut VecDeque<u64>, value: u64) {
    if values.len() == HISTORY_MAX {
        values.pop_front();
    }
    values.push_back(value);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, table: &Table, first: usize) {
    // Peers and clients may have gone since a key moved it.
    let first = first.min(table.rows.len().saturating_sub(1));
    let columns = table.heads.len();
    let aligned = |column: usize, text: String| {
        let alignment = if table.is_number(column) { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let row = |cells: &[String]| {
        Row::new(cells.iter().enumerate().map(|(column, cell)| aligned(column, cell.clone())).collect::<Vec<_>>())
    };
    let heads: Vec<String> = table.heads.iter().map(|head| (*head).to_owned()).collect();
    let widths = (0..columns).map(|column| {
        let cells = table.rows.iter().map(|row| row[column].chars().count());
        let width = cells.chain([table.heads[column].chars().count()]).max().unwrap_or(0) as u16;
        match table.has_tail && column + 1 == columns {
            true => Constraint::Min(width.min(10)),
            // In a narrow terminal, names are cut before numbers are.
            false if column < table.numbers_from => Constraint::Max(width),
            false => Constraint::Length(width),
        }
    });
    let count =
        if first > 0 { format!(" {} (from number {}) ", table.title, first + 1) } else { format!(" {} ", table.title) };
    let widget = Widget::new(table.rows.iter().skip(first).map(|cells| row(cells)), widths.collect::<Vec<_>>())
        .header(row(&heads).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(if area.width >= WIDE { 2 } else { 1 })
        .block(Block::bordered().title(count));
    frame.render_widget(widget, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::figures::{Traffic, example};

    /// The lines of a terminal of that size.
    fn seen(view: &View, columns: u16, lines: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let cells: Vec<&str> = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(columns.into()).map(<[&str]>::concat).collect()
    }

    /// A daemon with that many peers, and one client with that many.
    fn figures(peers: usize, of_client: usize) -> Figures {
        let mut figures = example();
        let shard = &mut figures.shards[0];
        shard.peers = vec![shard.peers[0].clone(); peers];
        let of = &mut shard.clients[0].peers;
        let mut traffic = of[0].clone();
        traffic.counters.bytes_received = 4000;
        traffic.counters.elsewhere_bytes_received = 12_000;
        traffic.bytes_share = traffic.counters.share_of_bytes();
        *of = (0..of_client).map(|ps| Traffic { peer: format!("ps{ps}:2222"), ..traffic.clone() }).collect();
        figures
    }

    fn press(view: &mut View, key: KeyCode) {
        assert!(view.obey(KeyEvent::new(key, KeyModifiers::NONE)));
    }

    fn has(lines: &[String], parts: &[&str]) -> bool {
        lines.iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }

    #[test]
    fn what_moved_by_sealane_and_otherwise_is_shown_for_each_client_and_peer() {
        let lines = seen(&View::new(figures(3, 2)), 100, 40);
        for ps in ["ps0:2222", "ps1:2222"] {
            assert!(has(&lines, &["worker0:2222", ps, "4.00 kB", "12.0 kB", "25%"]), "{lines:#?}");
        }
        assert!(has(&lines, &["Sealane's share"]) && has(&lines, &["127.0.0.1:7000"]), "{lines:#?}");
        // Without any, the peers have all the room.
        let lines = seen(&View::new(figures(3, 0)), 100, 40);
        assert!(!has(&lines, &["Sealane's share"]), "{lines:#?}");
    }

    #[test]
    fn in_eighty_columns_names_are_cut_before_numbers_are() {
        let mut figures = figures(1, 1);
        let lines = seen(&View::new(figures.clone()), 80, 40);
        let numbers = ["4.00 kB", "12.0 kB", "25%"];
        assert!(has(&lines, &[&["worker0:2222", "ps0:2222"][..], &numbers].concat()), "{lines:#?}");
        assert!(has(&lines, &["in", "out", "bytes in", "other", "share"]), "{lines:#?}");
        figures.shards[0].clients[0].task = "a-worker-of-a-training-with-a-long-name-0:2222".into();
        let lines = seen(&View::new(figures), 80, 40);
        assert!(has(&lines, &[&["a-worker"][..], &numbers].concat()), "{lines:#?}");
    }

    #[test]
    fn keys_move_through_the_table_that_is_chosen() {
        let mut view = View::new(figures(200, 200));
        // Each has a half.
        let lines = seen(&view, 100, 50);
        assert!(
            has(&lines, &["127.0.0.1:7000"]) && has(&lines, &["ps0:2222"]) && !has(&lines, &["ps150:"]),
            "{lines:#?}"
        );
        press(&mut view, KeyCode::Tab);
        (0..15).for_each(|_| press(&mut view, KeyCode::PageDown));
        let lines = seen(&view, 100, 50);
        assert!(has(&lines, &["(from number 151)"]) && has(&lines, &["Peers ─"]), "{lines:#?}");
        // The next look has fewer.
        view.take(Ok(figures(200, 20)));
        assert!(has(&seen(&view, 100, 50), &["(from number 20)"]));
        press(&mut view, KeyCode::Home);
        // Where there is no room for both, the chosen one is shown.
        let shows_traffic = |view: &View| has(&seen(view, 100, 24), &["Sealane's share"]);
        assert!(shows_traffic(&view) && has(&seen(&view, 100, 24), &["ps0:2222"]));
        press(&mut view, KeyCode::Tab);
        assert!(!shows_traffic(&view) && has(&seen(&view, 100, 24), &["127.0.0.1:7000"]));
    }
}
