//! The live view: shards, calls, peers and clients, and how throughput and latency have gone. Looks every second; keeps as many
//! looks as fit across the screen.

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
/// Rows of peers that a page key moves by.
const PAGE: usize = 10;

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
    /// The first peer that is shown.
    first_peer: usize,
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
            first_peer: 0,
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
        let peers = self.now.shards.iter().map(|shard| shard.peers.len()).sum::<usize>();
        let last = peers.saturating_sub(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Down => self.first_peer = (self.first_peer + 1).min(last),
            KeyCode::Up => self.first_peer = self.first_peer.saturating_sub(1),
            KeyCode::PageDown => self.first_peer = (self.first_peer + PAGE).min(last),
            KeyCode::PageUp => self.first_peer = self.first_peer.saturating_sub(PAGE),
            KeyCode::Home => self.first_peer = 0,
            _ => {}
        }
        true
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let before = self.before.as_ref();
        let (shards, calls) = (rows::shards(&self.now, before), rows::calls(&self.now, before));
        let (peers, clients) = (rows::peers(&self.now, before), rows::clients(&self.now));
        let high = |table: &Table| Constraint::Max(table.rows.len() as u16 + 3);
        // Beside each other where there is room.
        let is_wide = frame.area().width >= WIDE;
        let (calls_high, clients_high) = (calls.rows.len() as u16 + 3, clients.rows.len() as u16 + 3);
        let middle_high = if is_wide { calls_high.max(clients_high) } else { calls_high + clients_high };
        let [head, graphs, shard_area, middle, peer_area, foot] = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(5),
            high(&shards),
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
        draw_table(frame, peer_area, &peers, self.first_peer);
        let foot_line = match (&self.trouble, self.paused) {
            (Some(trouble), _) => Line::styled(trouble.clone(), Style::new().fg(Color::Red)),
            (None, true) => Line::styled("paused; p goes on, q ends", Style::new().fg(Color::Yellow)),
            (None, false) => Line::styled("q ends, p pauses, ↑ ↓ move through the peers", Style::new().dim()),
        };
        frame.render_widget(foot_line, foot);
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

fn keep(values: &mut VecDeque<u64>, value: u64) {
    if values.len() == HISTORY_MAX {
        values.pop_front();
    }
    values.push_back(value);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, table: &Table, first: usize) {
    let columns = table.heads.len();
    let aligned = |column: usize, text: String| {
        let is_tail = table.has_tail && column + 1 == columns;
        let alignment = if column >= table.numbers_from && !is_tail { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let row = |cells: &[String]| {
        Row::new(cells.iter().enumerate().map(|(column, cell)| aligned(column, cell.clone())).collect::<Vec<_>>())
    };
    let heads: Vec<String> = table.heads.iter().map(|head| (*head).to_owned()).collect();
    let widths = (0..columns).map(|column| {
        let cells = table.rows.iter().map(|row| row[column].chars().count());
        let width = cells.chain([table.heads[column].chars().count()]).max().unwrap_or(0) as u16;
        if table.has_tail && column + 1 == columns { Constraint::Min(width.min(10)) } else { Constraint::Length(width) }
    });
    let count =
        if first > 0 { format!(" {} (from number {}) ", table.title, first + 1) } else { format!(" {} ", table.title) };
    let widget = Widget::new(table.rows.iter().skip(first).map(|cells| row(cells)), widths.collect::<Vec<_>>())
        .header(row(&heads).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(if area.width >= WIDE { 2 } else { 1 })
        .block(Block::bordered().title(count));
    frame.render_widget(widget, area);
}
