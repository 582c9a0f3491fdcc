//! Finds the known names that a mistyped one may have meant. Pure; its work is bounded by
//! `NAME_CHARACTERS_MAX` squared for each name.

/// Longer names are not compared: no known name is that long.
const NAME_CHARACTERS_MAX: usize = 256;

/// The names in `known` that are closest to `wanted`, best first, at most `count`; none that
/// differs in more than a third of its characters.
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    let wanted: Vec<char> = wanted.chars().collect();
    if wanted.len() > NAME_CHARACTERS_MAX {
        return Vec::new();
    }
    let mut close: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|name| {
            let characters: Vec<char> = name.chars().take(NAME_CHARACTERS_MAX).collect();
            let limit = (wanted.len().max(characters.len()) / 3).max(1);
            // No need to fill the table when the lengths alone are too far apart.
            if wanted.len().abs_diff(characters.len()) > limit {
                return None;
            }
            let distance = edit_distance(&wanted, &characters);
            (distance <= limit).then_some((distance, name))
        })
        .collect();
    close.sort_unstable();
    close.truncate(count);
    close.into_iter().map(|(_, name)| name).collect()
}

/// Fewest characters to insert, delete or replace to turn one into the other (Levenshtein).
fn edit_distance(source: &[char], target: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=target.len()).collect();
    for (index, from) in source.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in target.iter().enumerate() {
            let replace = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replace.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[target.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        let distance = |a: &str, b: &str| edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("shards", "shard"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn gives_the_closest_first_and_nothing_far() {
        let known = ["shards", "polling", "pin", "shard"];
        assert_eq!(nearest("shars", known, 2), ["shard", "shards"]);
        assert_eq!(nearest("pim", known, 2), ["pin"]);
        assert_eq!(nearest("window", known, 2), Vec::<&str>::new());
        assert_eq!(nearest(&"x".repeat(1000), known, 2), Vec::<&str>::new());
    }
}
