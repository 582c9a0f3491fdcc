//! The live view: what `sealane stat` prints, drawn again in place every second, until Ctrl-C. Nothing of the terminal is changed, so
//! that nothing has to be put back.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use super::{look, rows};
use crate::settings::ClientsSocket;
use crate::{Failure, counted};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Clears the screen; goes to its first character; clears the rest of a line, and of the screen.
const CLEAR: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\r\n";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Shows the daemon at `socket` until the process is interrupted.
///
/// # Errors
/// There is no terminal, or none any more, or no daemon at first: one that ends later is said, and waited for.
pub(super) fn run(socket: &ClientsSocket) -> Result<(), Failure> {
    let mut screen = io::stdout();
    if !screen.is_terminal() {
        return Err(Failure::input(
            "--watch needs a terminal; without one, use `sealane stat` or `sealane stat --json`",
        ));
    }
    let mut before = look(socket)?;
    let (mut text, mut clear) = (rows::text(&before, &before, None), CLEAR);
    loop {
        let lost = |error: io::Error| Failure::work(format!("the terminal is lost ({error})"));
        let size = tcgetwinsize(&screen).map_err(|error| lost(error.into()))?;
        let drawn = fit(&text, size.ws_col.into(), size.ws_row.into()).join(REST_OF_LINE);
        write!(screen, "{clear}{HOME}{drawn}{REST_OF_SCREEN}").and_then(|()| screen.flush()).map_err(lost)?;
        thread::sleep(INTERVAL);
        clear = "";
        text = match look(socket) {
            Ok(now) => {
                let text = rows::text(&now, &before, Some(&before));
                before = now;
                text
            }
            Err(failure) => format!("{failure}\n\n{}", rows::text(&before, &before, None)),
        };
    }
}

/// The lines of a text that a screen shows. One that is too long goes on in the next row, no number is cut; where there are too many,
/// the last one says how many more there are.
fn fit(text: &str, columns: usize, rows: usize) -> Vec<String> {
    let height = |line: &str| line.chars().count().div_ceil(columns.max(1)).max(1);
    let (mut shown, mut free) = (Vec::new(), rows);
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let left = lines.len() - number;
        // Room for the last line, unless this is it.
        if height(line) + usize::from(left > 1) > free {
            shown.push(format!("{} below; see `sealane stat`", counted(left, "more line")));
            break;
        }
        free -= height(line);
        shown.push((*line).to_owned());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::example;

    #[test]
    fn what_fits_is_shown_whole() {
        assert_eq!(fit("a\nbb\n\nc", 2, 4), ["a", "bb", "", "c"]);
        let text = rows::text(&example(), &example(), None);
        assert_eq!(fit(&text, 200, 100).join("\n"), text.trim_end());
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(fit("a\nb\nc", 80, 2), ["a", "2 more lines below; see `sealane stat`"]);
        // A long line takes two rows.
        assert_eq!(fit("a\nbbb\nc", 2, 3), ["a", "2 more lines below; see `sealane stat`"]);
        assert_eq!(fit("a\nbbb\nc", 2, 4), ["a", "bbb", "c"]);
        assert_eq!(fit("a", 0, 0), ["1 more line below; see `sealane stat`"]);
    }
}
