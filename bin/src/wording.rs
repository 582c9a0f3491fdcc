//! Words for people: numbers with their nouns, and known names that are close to a mistyped one. Pure; the work is bounded by
//! `NAME_CHARACTERS_MAX` squared for each name.

use strsim::levenshtein;

/// Longer names are not compared: no known name is that long.
const NAME_CHARACTERS_MAX: usize = 256;

/// The names in `known` that are closest to `wanted`, best first, at most `count`; none that differs in more than a third of its
/// characters.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    let wanted_characters = wanted.chars().count();
    if wanted_characters > NAME_CHARACTERS_MAX {
        return Vec::new();
    }
    let limit = |name: &str| (wanted_characters.max(name.chars().count()) / 3).max(1);
    let with_distance = known.into_iter().map(|name| (levenshtein(wanted, name), name));
    let mut close: Vec<_> = with_distance.filter(|(distance, name)| *distance <= limit(name)).collect();
    close.sort_unstable();
    close.truncate(count);
    close.into_iter().map(|(_, name)| name).collect()
}

/// The first few of many, and the number of the others: `a, b and 3 more`.
pub(crate) fn first_of<T: ToString>(all: &[T], shown_max: usize) -> String {
    let shown = all.len().min(shown_max);
    let text = all[..shown].iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match all.len() - shown {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// A number to three digits in the largest of `units` that it reaches; a smaller one as a whole number of `smallest`.
pub(crate) fn scaled(number: f64, units: &[(f64, &str)], smallest: &str) -> String {
    let Some((unit, name)) = units.iter().find(|(unit, _)| number >= *unit) else {
        return format!("{number:.0}{smallest}");
    };
    let value = number / unit;
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{name}")
}

/// `1 task`, `2 tasks`, `2 addresses`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_closest_first_and_nothing_far() {
        let known = ["shards", "polling", "pin", "shard"];
        assert_eq!(nearest("shars", known, 2), ["shard", "shards"]);
        assert_eq!(nearest("pim", known, 2), ["pin"]);
        assert_eq!(nearest("window", known, 2), Vec::<&str>::new());
        assert_eq!(nearest(&"x".repeat(1000), known, 2), Vec::<&str>::new());
    }
}
