//! The README tells the truth: its settings are today's, its examples are those that the tests run.

use sealane_cli::settings::TABLE;
use sealane_cli::settings::markdown::{in_readme, reference};

#[test]
fn the_readme_has_todays_settings() {
    let readme = include_str!("../../README.md");
    let made = in_readme(readme).expect("the README has a place marked for the settings");
    assert!(made == readme, "the table of settings is out of date: run `cargo xtask docs`");
}

#[test]
fn the_reference_has_todays_settings() {
    let page = include_str!("../../docs/settings.md");
    assert!(reference() == page, "docs/settings.md is out of date: run `cargo xtask docs`");
    for setting in TABLE {
        assert_eq!(page.matches(&format!("| `{}` |", setting.name)).count(), 1, "{}", setting.name);
    }
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

/// What stands in the README's table of what happens when something goes wrong: each row with its test.
#[test]
fn every_promise_has_its_test() {
    let readme = include_str!("../../README.md");
    let (_, table) = readme.split_once("| | the caller is told | and | test |\n").expect("the table");
    let (table, _) = table.split_once("\n\n").expect("it ends");
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut rows = 0;
    for row in table.lines().skip(1) {
        let (name, file) = row
            .rsplit_once("| [`")
            .and_then(|(_, test)| test.strip_suffix(") |")?.split_once("`]("))
            .unwrap_or_else(|| panic!("no test: {row}"));
        let text = std::fs::read_to_string(workspace.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        // What is a chore of its own says so in its file.
        let is_there = text.contains(&format!("fn {name}(")) || name.starts_with("cargo xtask ");
        assert!(is_there, "{file} has no test {name}");
        rows += 1;
    }
    assert!(rows > 20, "{rows} rows");
}
