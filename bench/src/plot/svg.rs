//! A canvas that writes SVG, with the few shapes that a plot needs.

use std::fmt::Write;

/// The look of everything, in one place.
const STYLE: &str = "\
text{font-family:Helvetica,Arial,sans-serif;font-size:13px;fill:#222}\
.title{font-family:Menlo,Consolas,monospace;font-size:13px;font-weight:bold}\
.small{font-size:12px;fill:#555}\
.grid{stroke:#ddd;stroke-width:1}\
.axis{stroke:#222;stroke-width:1.2}\
.whisker{stroke:#222;stroke-width:1.6}";

/// How a shape looks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    Title,
    Label,
    Small,
    Grid,
    Axis,
    Whisker,
}

impl Style {
    fn class(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::Label => "label",
            Self::Small => "small",
            Self::Grid => "grid",
            Self::Axis => "axis",
            Self::Whisker => "whisker",
        }
    }
}

/// Which end of a text its place is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG that is being written. Places are in pixels from the upper left.
#[derive(Debug)]
pub(super) struct Canvas {
    text: String,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        Self { text }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: Style) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let class = style.class();
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"));
    }

    pub(super) fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), colour: &str) {
        let ((x, y), (width, height)) = (corner, size);
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        ));
    }

    pub(super) fn curve(&mut self, points: &[(f64, f64)], colour: &str) {
        let mut places = String::new();
        for (x, y) in points {
            write!(places, "{x:.1},{y:.1} ").expect("a string takes everything");
        }
        let places = places.trim_end();
        self.add(format_args!(
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.2\"/>"
        ));
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: Anchor, style: Style, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (class, text) = (style.class(), escaped(text));
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A text that reads upwards, centred at a place.
    pub(super) fn upright_text(&mut self, at: (f64, f64), text: &str) {
        let ((x, y), text) = (at, escaped(text));
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x:.1} {y:.1})\">{text}</text>"
        ));
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{element}").expect("a string takes everything");
    }
}

/// Text as XML may contain it: markup is replaced, control characters are left out.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            control if control.is_control() => {}
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_is_harmless() {
        assert_eq!(escaped("a<b>&\u{7}c"), "a&lt;b&gt;&amp;c");
    }
}
