//! A table of texts and numbers for a terminal.

use std::fmt::Write;

/// Where the cells of a column are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Text.
    Left,
    /// Numbers, so that their digits line up.
    Right,
}

/// The heading of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    head: String,
    align: Align,
}

impl Column {
    pub fn text(head: &str) -> Column {
        Column { head: head.to_owned(), align: Align::Left }
    }

    /// A column of numbers; their unit is in the heading.
    pub fn number(head: &str) -> Column {
        Column { head: head.to_owned(), align: Align::Right }
    }
}

/// Rows below headings.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table; each row has a cell for every column.
    ///
    /// # Panics
    /// A row has more cells, or fewer.
    pub fn new(columns: impl Into<Vec<Column>>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        let (columns, rows): (Vec<_>, Vec<_>) = (columns.into(), rows.into_iter().collect());
        assert!(rows.iter().all(|row| row.len() == columns.len()), "every row has a cell for every column");
        Table { columns, rows }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table for a terminal: a line of headings and one for each row; empty if there are no rows.
    pub fn to_text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let heads: Vec<String> = self.columns.iter().map(|column| column.head.clone()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&heads]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let mut text = String::new();
        for row in [&heads].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), column) in row.iter().zip(&widths).zip(&self.columns) {
                let result = match column.align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
                result.expect("a string takes everything");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_aligned_left_and_numbers_right() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table =
            Table::new([Column::text("task"), Column::number("µs")], [row(["ps0", "1.5"]), row(["worker0", "12.25"])]);
        assert_eq!(table.to_text(), "task        µs\nps0        1.5\nworker0  12.25\n");
        let empty = Table::new([Column::text("task")], []);
        assert_eq!(empty.to_text(), String::new());
    }
}
