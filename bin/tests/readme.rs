//! The README tells the truth: its settings are today's, its examples are those that the tests run.

use sealane_cli::settings::markdown::in_readme;

#[test]
fn the_readme_has_todays_settings() {
    let readme = include_str!("../../README.md");
    let made = in_readme(readme).expect("the README has a place marked for the settings");
    assert!(made == readme, "the table of settings is out of date: run `cargo xtask readme`");
}

/// An example without the line that says what it is.
fn body<'a>(example: &'a str, head_ends: &str) -> &'a str {
    example.split_once(head_ends).expect("a head, then the code").1
}

#[test]
fn the_quick_start_is_the_examples() {
    let readme = include_str!("../../README.md");
    let rust = body(include_str!("../../client/examples/quick_start.rs"), "\n\n");
    let python = body(include_str!("../../python/examples/quick_start.py"), "\"\"\"\n\n");
    for (language, code) in [("rust", rust), ("python", python)] {
        let block = format!("```{language}\n{code}```\n");
        assert!(readme.contains(&block), "the README's quick start in {language} is not the example:\n{block}");
    }
}
