//! What a plot's shapes look like: one style sheet, in the colours of a light or a dark page. The colours of the series are
//! those of Okabe and Ito, which people with any colour vision can tell apart; curves also differ by their dashes and points
//! by their shapes, so that a print in grey can be read.

use std::fmt::Write;

/// Series that look different; further ones look like the first again.
pub(super) const SERIES: usize = 6;

/// Dashes of the curves of each series.
const DASHES: [&str; SERIES] = ["none", "9 3", "2 3", "9 3 2 3", "5 5", "14 3"];

/// The colours of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Palette {
    ground: &'static str,
    ink: &'static str,
    small: &'static str,
    grid: &'static str,
    series: [&'static str; SERIES],
}

/// On white.
pub(crate) const LIGHT: Palette = Palette {
    ground: "#fff",
    ink: "#222",
    small: "#555",
    grid: "#ddd",
    series: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#3d9bd1"],
};

/// On nearly black: the same hues, lighter.
pub(crate) const DARK: Palette = Palette {
    ground: "#14181c",
    ink: "#e8e8e8",
    small: "#aab2ba",
    grid: "#3a4148",
    series: ["#56b4e9", "#ff8a3d", "#2ec9a0", "#e6a3c8", "#f0c94a", "#9db9ff"],
};

impl Palette {
    /// The style sheet; each rule begins with `scope`, which ends in a space or is empty.
    pub(crate) fn style_sheet(&self, scope: &str) -> String {
        let Palette { ground, ink, small, grid, series } = self;
        let mut sheet = String::new();
        let mut rule = |selector: &str, body: &str| {
            writeln!(sheet, "{scope}{selector}{{{body}}}").expect("a string takes everything");
        };
        // A rim in the colour of the ground keeps lines that pass behind a text away from its letters.
        rule("text", &format!("fill:{ink};stroke:{ground};stroke-width:4px;paint-order:stroke;stroke-linejoin:round"));
        rule("text", "font-family:Helvetica,Arial,sans-serif;font-size:13px");
        rule(".ground", &format!("fill:{ground}"));
        rule(".title", "font-family:Menlo,Consolas,monospace;font-weight:bold");
        rule(".small", &format!("font-size:12px;fill:{small}"));
        rule(".grid", &format!("stroke:{grid};stroke-width:1"));
        rule(".axis", &format!("stroke:{ink};stroke-width:1.2"));
        rule(".whisker", &format!("stroke:{ink};stroke-width:1.6"));
        for (index, (colour, dashes)) in series.iter().zip(DASHES).enumerate() {
            rule(&format!(".fill{index}"), &format!("fill:{colour}"));
            rule(
                &format!(".curve{index}"),
                &format!("stroke:{colour};stroke-width:2.2;fill:none;stroke-dasharray:{dashes}"),
            );
            rule(&format!(".line{index}"), &format!("stroke:{colour};stroke-width:1.8;fill:none"));
        }
        // After the lines, whose dashes it changes.
        rule(".dashed", "stroke-dasharray:4 4");
        sheet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of a colour, after the Web Content Accessibility Guidelines 2.
    fn luminance(colour: &str) -> f64 {
        let digits = colour.strip_prefix('#').expect("a colour begins with #");
        let digits =
            if digits.len() == 3 { digits.chars().flat_map(|digit| [digit; 2]).collect() } else { digits.to_owned() };
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&digits[at..at + 2], 16).expect("two hex digits")) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn everything_can_be_seen_on_its_ground() {
        for palette in [LIGHT, DARK] {
            let ground = palette.ground;
            assert!(contrast(palette.ink, ground) > 7.0);
            assert!(contrast(palette.small, ground) > 4.5);
            for colour in palette.series {
                assert!(contrast(colour, ground) > 3.0, "{colour} on {ground}: {}", contrast(colour, ground));
            }
        }
    }
}
