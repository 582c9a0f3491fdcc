//! The settings as the documentation shows them, made from the one table of settings so that they cannot drift: the reference
//! of all, and the README's table of those that variables give.

use std::fmt::Write;

use super::FILE_NAME;
use super::table::{DefaultValue, Setting, TABLE, Variables};
use super::value::Value;

/// Begins the generated part of the README.
pub const BEGIN: &str = "<!-- settings: made by `cargo xtask docs` -->";
/// Ends it.
pub const END: &str = "<!-- end of settings -->";

/// `readme` with its table of settings made anew; `None` if it has no place for one.
pub fn in_readme(readme: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let mut table = String::from("| variable | setting | default | meaning |\n|---|---|---|---|\n");
    for setting in TABLE.iter().filter(|setting| setting.variables != Variables::None) {
        let (name, variable, default, doc) = (setting.name, variable(setting), default(setting), setting.doc);
        writeln!(table, "| {variable} | `{name}` | {default} | {doc} |").expect("a String takes all");
    }
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

/// The page of all settings.
pub fn reference() -> String {
    let mut page = format!(
        "<!-- Made by `cargo xtask docs` from the table of settings in the code. -->\n\
         # Settings\n\n\
         A flag wins over a variable, a variable over `{FILE_NAME}` (in the working directory, or `--config FILE`), the file over the default.\n\
         Every setting may be given as `--set NAME=VALUE` and in the file: `runtime.shards` is the key `shards` of the table `[runtime]`. A value\n\
         that cannot be read, a name that no setting has, and two values that contradict each other are errors, never a silent default.\n\
         `sealane check` prints all settings with what gave them.\n\n\
         Of two variables the first is read for a ps and for any job that is not named here, the second for a worker or chief (`--role`, or\n\
         `TF_CONFIG`). *Inverted* means that the variable says the opposite of the setting. A number of bytes may have a unit: KiB, MiB, GiB, TiB.\n"
    );
    let mut section = "";
    for setting in TABLE {
        if setting.section() != section {
            section = setting.section();
            write!(page, "\n## `[{section}]`\n\n").expect("a String takes all");
            page += "| setting | variable or flag | accepts | default | meaning |\n|---|---|---|---|---|\n";
        }
        let flag = setting.flag.map(|flag| format!("`{flag}`"));
        let given: Vec<String> =
            [Some(variable(setting)), flag].into_iter().flatten().filter(|by| !by.is_empty()).collect();
        let (name, given, default) = (setting.name, given.join(", "), default(setting));
        let (accepts, doc) = (setting.kind.to_string().replace('|', "\\|"), setting.doc);
        writeln!(page, "| `{name}` | {given} | {accepts} | {default} | {doc} |").expect("a String takes all");
    }
    page
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
