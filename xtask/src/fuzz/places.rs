//! What fuzzing builds, and where it keeps its files: all below `target/fuzz`, but for the corpora that are part of the sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sealane_tests::fuzz::Target;

use crate::build::workspace;
use crate::command::{cargo, output, run};

/// What makes LLVM count each edge of the code and tell what is compared with what. The stable compiler takes them, and
/// they are those of `cargo fuzz --sanitizer none`.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                         -Cllvm-args=-sanitizer-coverage-pc-table \
                         -Cllvm-args=-sanitizer-coverage-trace-compares";

pub(super) struct Places {
    /// The program with all targets.
    pub(super) program: PathBuf,
    /// `target/fuzz`: a build of its own, since its flags are no other's.
    folder: PathBuf,
}

impl Places {
    /// Builds the program with all fuzz targets, `tests/fuzz`, so that it notes which code each input reaches.
    ///
    /// # Errors
    /// There is no C++ compiler, or it does not build (cargo has said why).
    pub(super) fn build() -> Result<Places, String> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        if run(Command::new(&compiler).arg("--version")).is_err() {
            let compiler = compiler.display();
            return Err(format!("libFuzzer is C++ and {compiler} cannot be run; as root: apt-get install g++"));
        }
        // With a target named, the flags are for the program alone, not for what runs while it is built.
        let machine = machine()?;
        let (manifest, folder) = (workspace().join("tests/fuzz/Cargo.toml"), workspace().join("target/fuzz"));
        let mut cargo = cargo();
        cargo.args(["build", "--release", "--locked", "--target", &machine, "--manifest-path"]).arg(manifest);
        cargo.env("RUSTFLAGS", RUSTFLAGS).env("CARGO_TARGET_DIR", &folder).env_remove("CARGO_ENCODED_RUSTFLAGS");
        let status = cargo.stdin(Stdio::null()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err("the fuzz targets do not build".to_owned());
        }
        Ok(Places { program: folder.join(machine).join("release/sealane-fuzz"), folder })
    }

    /// The target's folder of what former runs found: in `corpus` the inputs that reach something, in `findings` those that break a
    /// promise. Runs add to it.
    pub(super) fn kept(&self, kind: &str, target: &Target) -> Result<PathBuf, String> {
        let folder = self.folder.join(kind).join(target.name);
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// The same, with these files alone.
    pub(super) fn filled<'a>(
        &self,
        kind: &str,
        target: &Target,
        files: impl IntoIterator<Item = (String, &'a [u8])>,
    ) -> Result<PathBuf, String> {
        let folder = self.kept(kind, target)?;
        let emptied = fs::remove_dir_all(&folder).and_then(|()| fs::create_dir(&folder));
        emptied.map_err(|error| format!("cannot empty {}: {error}", folder.display()))?;
        files.into_iter().try_for_each(|(name, bytes)| write(&folder.join(name), bytes))?;
        Ok(folder)
    }

    /// What runs begin with: the target's own seeds, and its corpus of the sources.
    pub(super) fn begun(&self, target: &Target) -> Result<[PathBuf; 2], String> {
        let seeds = (target.seeds)();
        let numbered = seeds.iter().enumerate().map(|(number, seed)| (format!("seed-{number:02}"), &seed[..]));
        let inputs = target.corpus().map_err(|error| format!("cannot read the corpus of {}: {error}", target.name))?;
        let named = inputs.iter().map(|(name, input)| (name.clone(), &input[..]));
        Ok([self.filled("seeds", target, numbered)?, self.filled("kept", target, named)?])
    }

    /// The target's words, as libFuzzer reads them; `None` if it has none.
    pub(super) fn words(&self, target: &Target) -> Result<Option<PathBuf>, String> {
        if target.words.is_empty() {
            return Ok(None);
        }
        let path = self.kept("dictionary", target)?.join("words");
        let lines: String = target.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
        write(&path, lines.as_bytes())?;
        Ok(Some(path))
    }
}

/// The compiler's name of this machine.
fn machine() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = output(Command::new(rustc).arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc does not say which machine this is: {said}"))
}

/// A word between quotes: bytes that are not plain in two digits each.
fn escaped(word: &[u8]) -> String {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    };
    word.iter().map(escaped).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_they_are_read() {
        assert_eq!(escaped(b"a \"b\\"), r#"a \"b\\"#);
        assert_eq!(escaped(b"\x93NUMPY\n"), "\\x93NUMPY\\x0a");
    }
}
