//! Builds programs of this workspace, and reports where cargo put them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::command::cargo;

pub(crate) fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

#[derive(PartialEq)]
pub(crate) struct Build {
    pub(crate) package: &'static str,
    /// Cargo's kind of target: `bin`, `example` or `test`.
    pub(crate) kind: &'static str,
    pub(crate) target: &'static str,
    /// True to build it as for packages, which takes minutes: only for what is packed or measured. False to build it as for tests.
    pub(crate) is_packed: bool,
}

impl Build {
    /// Builds it, with more arguments for cargo. Its progress and errors go to our standard error.
    ///
    /// # Errors
    /// It does not build (cargo has said why), or the package has no such target.
    pub(crate) fn build(&self, arguments: &[&str]) -> Result<PathBuf, String> {
        let Build { package, kind, target, is_packed } = self;
        let mut cargo = cargo();
        // If possible with the features of the whole workspace, which a build of that has already compiled.
        let selection = if *is_packed { &["--profile", "dist", "--package", package][..] } else { &["--workspace"] };
        cargo.arg("build").args(selection).arg(format!("--{kind}")).arg(target).args(arguments);
        cargo.arg("--message-format=json-render-diagnostics").current_dir(workspace()).stdin(Stdio::null());
        let done = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo ({error})"))?;
        if !done.status.success() {
            return Err(format!("{target} of {package} does not build: cargo failed ({})", done.status));
        }
        // An artifact with an executable is a program; a library has one only for its unit tests.
        let is_it = |message: &Value| message["target"]["kind"][0] == *kind && message["target"]["name"] == *target;
        let messages = String::from_utf8_lossy(&done.stdout);
        let mut messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(is_it);
        let path = messages.find_map(|message| message["executable"].as_str().map(PathBuf::from));
        path.ok_or_else(|| format!("cargo built no {kind} {target} of {package}"))
    }
}
