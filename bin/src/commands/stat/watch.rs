//! The live view: what `sealane stat` prints, redrawn in place every second, until Ctrl-C. It changes no terminal mode, so nothing
//! has to be restored.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use crate::{Failure, counted};

/// Time between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// Clears the screen; moves to its first character; clears the rest of a line; clears the rest of the screen.
const CLEAR: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Shows what `look` finds until the process is interrupted. `text` formats it, given the previous result and whether this is the
/// first.
///
/// # Errors
/// There is no terminal, or it has gone, or the first look fails. A later failure is shown, and the look is repeated.
pub(super) fn run<T>(
    look: impl Fn() -> Result<T, Failure>,
    text: impl Fn(&T, &T, bool) -> String,
) -> Result<(), Failure> {
    let mut screen = io::stdout();
    if !screen.is_terminal() {
        return Err(Failure::input(
            "--watch needs a terminal; without one, use `sealane stat` or `sealane stat --json`",
        ));
    }
    let mut before = look()?;
    let (mut shown, mut clear) = (text(&before, &before, true), CLEAR);
    loop {
        let lost = |error: io::Error| Failure::work(format!("the terminal is lost ({error})"));
        let size = tcgetwinsize(&screen).map_err(|error| lost(error.into()))?;
        let drawn = drawn(&fit(&shown, size.ws_col.into(), size.ws_row.into()));
        write!(screen, "{clear}{HOME}{drawn}").and_then(|()| screen.flush()).map_err(lost)?;
        thread::sleep(INTERVAL);
        clear = "";
        shown = match look() {
            Ok(now) => {
                let shown = text(&now, &before, false);
                before = now;
                shown
            }
            Err(failure) => format!("{failure}\n\n{}", text(&before, &before, true)),
        };
    }
}

/// The output that draws these rows over others. Each is cleared before it is written: after the last column the cursor is still on
/// it, and clearing would remove its character.
fn drawn(rows: &[String]) -> String {
    let drawn = |(number, row)| match number + 1 == rows.len() {
        true => format!("{REST_OF_SCREEN}{row}"),
        false => format!("{REST_OF_LINE}{row}"),
    };
    rows.iter().enumerate().map(drawn).collect::<Vec<_>>().join("\r\n")
}

/// The rows of a screen that shows a text. A line that is too long is wrapped at a space, so that no number is cut; if there are
/// too many rows, the last one says how many are missing.
fn fit(text: &str, columns: usize, rows: usize) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let left = lines.len() - number;
        let broken = broken(line, columns.max(1));
        // Keeps room for the last row, unless this is it.
        if shown.len() + broken.len() + usize::from(left > 1) > rows {
            shown.push(format!("{} below; see `sealane stat`", counted(left, "more line")));
            break;
        }
        shown.extend(broken);
    }
    shown
}

/// A line wrapped at spaces to that many columns; only a word that is longer is cut.
fn broken(line: &str, columns: usize) -> Vec<String> {
    let mut rest: Vec<char> = line.trim_end().chars().collect();
    let mut rows = Vec::new();
    while rest.len() > columns {
        let indent = rest.iter().take_while(|each| **each == ' ').count();
        let space = rest[..=columns].iter().rposition(|each| *each == ' ').filter(|at| *at > indent);
        let next = rest.split_off(space.unwrap_or(columns));
        rows.push(rest.iter().collect());
        rest = next.into_iter().skip_while(|each| *each == ' ').collect();
    }
    rows.push(rest.iter().collect());
    rows
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use crate::figures::example;

    #[test]
    fn what_fits_is_shown_whole() {
        assert_eq!(fit("a\nbb\n\nc", 2, 4), ["a", "bb", "", "c"]);
        let text = rows::text(&example(), &example(), None);
        assert_eq!(fit(&text, 200, 100).join("\n"), text.trim_end());
    }

    #[test]
    fn a_row_keeps_its_last_character_and_a_line_its_numbers() {
        assert_eq!(drawn(&fit("ab\ncd", 2, 2)), "\x1b[Kab\r\n\x1b[Jcd", "nothing is cleared behind them");
        assert_eq!(fit("p50 123 p99 4567", 10, 9), ["p50 123", "p99 4567"]);
        assert_eq!(fit("p50 12345 p99", 9, 9), ["p50 12345", "p99"]);
        assert_eq!(fit("    1234567 8", 9, 9), ["    12345", "67 8"], "a word alone is too long");
        let text = rows::text(&example(), &example(), None);
        let words = |lines: &[String]| lines.join(" ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for columns in 40..80 {
            let rows = fit(&text, columns, 1000);
            assert_eq!(words(&rows), words(&lines), "at {columns} columns");
            assert!(rows.iter().all(|row| row.chars().count() <= columns));
        }
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(fit("a\nb\nc", 80, 2), ["a", "2 more lines below; see `sealane stat`"]);
        // A line that is too long takes two rows.
        assert_eq!(fit("a\nbbb\nc", 2, 3), ["a", "2 more lines below; see `sealane stat`"]);
        assert_eq!(fit("a\nbbb\nc", 2, 4), ["a", "bb", "b", "c"]);
        assert_eq!(fit("a", 0, 0), ["1 more line below; see `sealane stat`"]);
    }
}
