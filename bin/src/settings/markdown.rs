//! The settings as the documentation shows them, made from the one table of settings so that they cannot drift.

use std::fmt::Write;

use super::FILE_NAME;
use super::table::{Setting, TABLE, Variables};
use super::value::Value;

/// The page of all settings.
pub fn reference() -> String {
    let mut page = format!(
        "<!-- Made by `cargo xtask docs` from the table of settings in the code. -->\n\
         # Settings\n\n\
         Flags override variables, variables override `{FILE_NAME}` (in the working directory, or `--config FILE`), \
         and the file overrides defaults.\n\
         Every setting can be given as `--set NAME=VALUE` and in the file: `runtime.shards` is the key `shards` of the table `[runtime]`.\n\
         A value that cannot be read, an unknown name, or two values that contradict each other are errors; no default replaces them\n\
         silently. `sealane check --settings` prints every setting with its source. A number of bytes may have a unit: KiB, MiB, GiB, TiB.\n\n\
         ## Environment variables\n\n\
         Besides `SEALANE_JOB`, these are the variables that DeepRec and TensorFlow users know. Of two variables, the first is read for a ps\n\
         and for any job not listed here, the second for a worker or chief (`--role`, or `TF_CONFIG`). *Inverted* means that the variable\n\
         states the opposite of the setting. A variable that is set to nothing counts as unset.\n\n\
         | variable | setting |\n|---|---|\n"
    );
    for setting in TABLE.iter().filter(|setting| setting.variables != Variables::None) {
        writeln!(page, "| {} | `{}` |", variable(setting), setting.name).expect("a String takes all");
    }
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
        Variables::One(name) => format!("`{name}`"),
        Variables::ByRole { ps, worker } => format!("`{ps}`, `{worker}`"),
        Variables::InvertedByRole { ps, worker } => format!("`{ps}`, `{worker}` (inverted)"),
    }
}

fn default(setting: &Setting) -> String {
    match &setting.default {
        Value::Text(text) if text.is_empty() => "the kernel's".to_owned(),
        Value::Text(text) => format!("`{text}`"),
        default => setting.kind.show(default),
    }
}
