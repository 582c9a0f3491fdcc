//! A canvas that writes SVG, with the few shapes that a plot needs.

use std::fmt::Write;

use super::palette::{LIGHT, SERIES};

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
    width: f64,
    text: String,
}

impl Canvas {
    pub(super) fn new(width: f64) -> Self {
        Self { width, text: String::new() }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: Style) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let class = style.class();
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"));
    }

    /// A filled rectangle in the colour of a series.
    pub(super) fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), series: usize) {
        let ((x, y), (width, height), series) = (corner, size, series % SERIES);
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"fill{series}\"/>"
        ));
    }

    /// A curve that series tell apart by their dashes.
    pub(super) fn curve(&mut self, points: &[(f64, f64)], series: usize) {
        self.polyline(points, &format!("curve{}", series % SERIES));
    }

    /// A line between points that series tell apart by their [`point`](Self::point)s.
    pub(super) fn joined(&mut self, points: &[(f64, f64)], series: usize, is_dashed: bool) {
        self.polyline(points, &format!("line{}{}", series % SERIES, if is_dashed { " dashed" } else { "" }));
    }

    fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let mut places = String::new();
        for (x, y) in points {
            write!(places, "{x:.1},{y:.1} ").expect("a string takes everything");
        }
        let places = places.trim_end();
        self.add(format_args!("<polyline points=\"{places}\" class=\"{class}\"/>"));
    }

    /// A point in the colour and shape of a series: a disc, a square, a triangle, a diamond, and so on.
    pub(super) fn point(&mut self, at: (f64, f64), series: usize) {
        let ((x, y), series) = (at, series % SERIES);
        let corners: &[(f64, f64)] = match series {
            0 => {
                return self
                    .add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" class=\"fill{series}\"/>"));
            }
            1 => &[(-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)],
            2 => &[(0.0, -3.8), (3.6, 2.8), (-3.6, 2.8)],
            3 => &[(0.0, -4.0), (4.0, 0.0), (0.0, 4.0), (-4.0, 0.0)],
            4 => &[(0.0, 3.8), (3.6, -2.8), (-3.6, -2.8)],
            _ => &[(-3.8, -1.4), (3.8, -1.4), (3.8, 1.4), (-3.8, 1.4)],
        };
        let places: Vec<String> = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        self.add(format_args!("<polygon points=\"{}\" class=\"fill{series}\"/>", places.join(" ")));
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

    /// A file of its own, light, of so much height.
    pub(super) fn into_file(self, height: f64) -> String {
        let (Self { width, text }, style) = (self, LIGHT.style_sheet(""));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>\n{style}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n{text}</svg>\n"
        )
    }

    /// An element of a page that has the style sheet; `name` is for those who cannot see it.
    pub(super) fn into_element(self, height: f64, class: &str, name: &str) -> String {
        let (Self { width, text }, name) = (self, escaped(name));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot {class}\" viewBox=\"0 0 {width} {height:.0}\" role=\"img\">\n\
             <title>{name}</title>\n{text}</svg>\n"
        )
    }

    /// The width.
    pub(super) fn width(&self) -> f64 {
        self.width
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
