//! One look as text, for a terminal of 80 columns or more, or for a file.

use std::fmt::Write;

use super::rows::{self, Table};
use crate::figures::Figures;

/// Between two columns.
const GAP: &str = "  ";

/// All that there is to see; rates are those since `before`.
pub(super) fn text(now: &Figures, before: &Figures) -> String {
    let before = Some(before);
    let mut text = rows::head(now).join("\n") + "\n";
    let tables = [
        rows::shards(now, before),
        rows::calls(now, None),
        rows::peers(now, before),
        rows::clients(now),
        rows::traffic(now),
    ];
    for table in tables {
        if !table.rows.is_empty() {
            let _ = write!(text, "\n{}\n{}", table.title, lines(&table));
        }
    }
    text
}

fn lines(table: &Table) -> String {
    let width = |column: usize| {
        let cells = table.rows.iter().map(|row| row[column].as_str()).chain([table.heads[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = table.heads.len();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.enumerate().map(|(column, cell)| match table.has_tail && column + 1 == columns {
            true => cell.to_owned(),
            false if column >= table.numbers_from => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        });
        let cells: Vec<String> = cells.collect();
        cells.join(GAP).trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut table.heads.iter().copied());
    for row in &table.rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}
