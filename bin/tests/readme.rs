//! The documentation is correct: it lists today's settings, its examples are the tested ones, and its promises have tests.

use sealane_cli::settings::TABLE;
use sealane_cli::settings::markdown::reference;
use sealane_cli::workload::{TensorSpec, Workload};

const README: &str = include_str!("../../README.md");

#[test]
fn the_readme_is_short() {
    let lines = README.lines().count();
    assert!(lines <= 150, "README.md has {lines} lines: move what is for some readers only to a page in docs/");
}

#[test]
fn the_reference_has_todays_settings() {
    let page = include_str!("../../docs/settings.md");
    assert!(reference() == page, "docs/settings.md is out of date: run `cargo xtask docs`");
    for setting in TABLE {
        let row = format!("| `{}` |", setting.name);
        assert_eq!(page.lines().filter(|line| line.starts_with(&row)).count(), 1, "{}", setting.name);
    }
}

/// An example without its heading line.
fn body<'a>(example: &'a str, head_ends: &str) -> &'a str {
    example.split_once(head_ends).expect("a head, then the code").1
}

#[test]
fn the_quick_starts_are_the_examples() {
    let guide = include_str!("../../docs/guide.md");
    let rust = body(include_str!("../../client/examples/quick_start.rs"), "\n\n");
    let ps = body(include_str!("../../python/examples/quick_start_ps.py"), "\"\"\"\n\n");
    let worker = body(include_str!("../../python/examples/quick_start.py"), "\"\"\"\n\n");
    let pages = [("README.md", README, "python", ps), ("README.md", README, "python", worker)];
    for (page, text, language, code) in pages.into_iter().chain([("docs/guide.md", guide, "rust", rust)]) {
        let block = format!("```{language}\n{code}```\n");
        assert!(text.contains(&block), "{page} does not show the example:\n{block}");
    }
}

#[test]
fn workload_file_of_the_guide_is_read() {
    let guide = include_str!("../../docs/guide.md");
    let (_, example) = guide.split_once("```json\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let workload = Workload::parse(example, "guide.json").unwrap();
    let names = |specs: &[TensorSpec]| specs.iter().map(|spec| spec.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&workload.pull), ["dense/kernel", "step"]);
    assert_eq!(names(&workload.push), ["dense/kernel:gradient"]);
    assert_eq!((workload.pull_bytes(), workload.push_bytes()), (256 * 128 * 4 + 8, 256 * 128 * 4));
}

/// Every row of the tables of failures names a test that exists.
#[test]
fn every_promise_has_its_test() {
    let page = include_str!("../../docs/failures.md");
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| What happens |");
    let mut rows = 0;
    for row in page.lines().filter(is_row) {
        let (name, file) = row
            .rsplit_once("| [`")
            .and_then(|(_, test)| test.strip_suffix(") |")?.split_once("`](../"))
            .unwrap_or_else(|| panic!("no test: {row}"));
        let text = std::fs::read_to_string(workspace.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        // A test that is a command is named only in its own file.
        let keyword = if file.ends_with(".py") { "def" } else { "fn" };
        let is_there = text.contains(&format!("{keyword} {name}(")) || name.starts_with("cargo xtask ");
        assert!(is_there, "{file} has no test {name}");
        rows += 1;
    }
    assert!(rows > 40, "{rows} rows");
}
