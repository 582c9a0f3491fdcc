//! The table of settings as the README shows it, made from the one table of settings so that it cannot drift.

use std::fmt::Write;

use super::table::{DefaultValue, Setting, TABLE, Variables};
use super::value::Value;

/// Begins the generated part of the README.
pub const BEGIN: &str = "<!-- settings: made by `cargo xtask readme` -->";
/// Ends it.
pub const END: &str = "<!-- end of settings -->";

/// All settings as a Markdown table: name, variable, default, meaning.
pub fn markdown() -> String {
    let mut text = String::from("| setting | variable | default | meaning |\n|---|---|---|---|\n");
    for setting in TABLE {
        let (name, variable, default, doc) = (setting.name, variable(setting), default(setting), setting.doc);
        writeln!(text, "| `{name}` | {variable} | {default} | {doc} |").expect("a String takes all");
    }
    text
}

/// `readme` with its table of settings made anew; `None` if it has no place for one.
pub fn in_readme(readme: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n{END}{after}", markdown()))
}

fn variable(setting: &Setting) -> String {
    match setting.variables {
        Variables::None => String::new(),
        Variables::One(name) | Variables::Verbs(name) => format!("`{name}`"),
        Variables::ByRole { ps, worker } => format!("`{ps}`, `{worker}`"),
        Variables::InvertedByRole { ps, worker } => format!("`{ps}`, `{worker}` (inverted)"),
    }
}

fn default(setting: &Setting) -> String {
    match setting.default {
        DefaultValue::Unset(meaning) => meaning.to_owned(),
        DefaultValue::Number(number) => setting.kind.show(&Value::Number(number)),
        DefaultValue::Bool(bool) => bool.to_string(),
        DefaultValue::Text("") => "the kernel's".to_owned(),
        DefaultValue::Text(text) => format!("`{text}`"),
    }
}
