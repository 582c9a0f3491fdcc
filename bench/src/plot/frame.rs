//! What every plot has around its shapes: the legend, the axes with their names and ticks, and the grid.

use super::axis::{Tick, spaced};
use super::svg::{Anchor, Canvas, Style};

/// What a character of a label and of a small text takes, in pixels, on average.
pub(super) const LABEL_CHARACTER: f64 = 7.2;
pub(super) const SMALL_CHARACTER: f64 = 6.6;

/// Height of a line of text.
const LINE: f64 = 20.0;

/// Room that a vertical tick's label needs.
const TICK_LINE: f64 = 15.0;

/// Widest plot that has little room beside it.
const NARROW: f64 = 480.0;

/// Where a plot goes: the whole width below `top`, its axes `height` high.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sheet {
    pub(super) top: f64,
    pub(super) height: f64,
}

/// Where the axes are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// The frame below `top` for a plot with labels of `left` pixels on its left.
    pub(super) fn new(canvas: &Canvas, left: f64, top: f64, height: f64) -> Frame {
        let margin = if canvas.width() < NARROW { 28.0 } else { 32.0 };
        Frame { left, right: canvas.width() - margin, top, bottom: top + height }
    }

    /// The place of a share of the width, from the left.
    pub(super) fn x(self, share: f64) -> f64 {
        self.left + (self.right - self.left) * share
    }

    /// The place of a share of the height, from the bottom.
    pub(super) fn y(self, share: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * share
    }

    /// Draws the grid line and the label of each tick of the vertical axis, and above it its name.
    pub(super) fn draw_y(self, canvas: &mut Canvas, ticks: Vec<Tick>, name: &str) {
        for tick in spaced(ticks, self.bottom - self.top, |_| TICK_LINE) {
            let y = self.y(tick.share);
            canvas.line((self.left, y), (self.right, y), Style::Grid);
            canvas.text((self.left - 8.0, y + 4.0), Anchor::End, Style::Small, &tick.label);
        }
        canvas.line((self.left, self.top), (self.left, self.bottom), Style::Axis);
        canvas.text((2.0, self.top - 12.0), Anchor::Start, Style::Label, name);
    }

    /// Draws the same of the horizontal axis, whose name is below it. Gives the place below that.
    pub(super) fn draw_x(self, canvas: &mut Canvas, ticks: Vec<Tick>, name: &str) -> f64 {
        let room = |label: &str| SMALL_CHARACTER * label.chars().count() as f64 + 8.0;
        for tick in spaced(ticks, self.right - self.left, room) {
            let x = self.x(tick.share);
            canvas.line((x, self.top), (x, self.bottom), Style::Grid);
            canvas.text((x, self.bottom + 18.0), Anchor::Middle, Style::Small, &tick.label);
        }
        canvas.line((self.left, self.bottom), (self.right, self.bottom), Style::Axis);
        let mut below = self.bottom + 20.0;
        for line in wrapped(name, ((canvas.width() - 8.0) / LABEL_CHARACTER) as usize) {
            below += LINE;
            canvas.text((canvas.width() / 2.0, below), Anchor::Middle, Style::Label, &line);
        }
        below + 12.0
    }
}

/// Says which look is whose, in as many lines as that takes. `draw` draws the look at a place. Gives the place below.
pub(super) fn draw_legend(
    canvas: &mut Canvas,
    top: f64,
    names: &[&str],
    draw: impl Fn(&mut Canvas, usize, (f64, f64)),
) -> f64 {
    let (mut x, mut y) = (2.0, top + 14.0);
    for (index, name) in names.iter().enumerate() {
        let width = 34.0 + LABEL_CHARACTER * name.chars().count() as f64;
        if x > 2.0 && x + width > canvas.width() {
            (x, y) = (2.0, y + LINE);
        }
        draw(canvas, index, (x, y - 4.5));
        canvas.text((x + 34.0, y), Anchor::Start, Style::Label, name);
        x += width + 18.0;
    }
    // Room for the name of the axis below.
    y + 42.0
}

/// Breaks a text at spaces into lines of at most `columns` characters, if its words allow it.
pub(super) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped() {
        let lines = wrapped("one two three four", 9);
        assert_eq!(lines, ["one two", "three", "four"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
    }
}
