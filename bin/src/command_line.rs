//! The command as the user typed it, to be shown and run again.

use std::borrow::Cow;

/// Characters that have no special meaning to a shell.
const PLAIN: &str = "%+,-./:=@_";

/// The command line of this process, quoted for a shell, with `program` in place of the program's path.
pub fn this(program: &str) -> String {
    let arguments = std::env::args_os().skip(1);
    let words = arguments.map(|argument| argument.to_string_lossy().into_owned());
    [program.to_owned()].into_iter().chain(words.map(|word| quoted(&word).into_owned())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell if it needs quotes.
pub(crate) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_alphanumeric() || PLAIN.contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_read_them_otherwise() {
        let cases = [
            ("--set", "--set"),
            ("transport.window=80", "transport.window=80"),
            ("4MiB", "4MiB"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("<script>", "'<script>'"),
            ("$HOME", "'$HOME'"),
        ];
        for (word, expected) in cases {
            assert_eq!(quoted(word), expected);
        }
    }
}
