//! Builds programs and libraries of this workspace, and finds out where cargo put them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::cargo;

/// The folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// A program of this workspace.
#[derive(PartialEq)]
pub(crate) struct Build {
    pub(crate) package: &'static str,
    /// As cargo calls it: `bin`, `example` or `test`.
    pub(crate) kind: &'static str,
    pub(crate) target: &'static str,
    /// Optimised as users get it: takes minutes to build, so only what is measured.
    pub(crate) release: bool,
    /// With the feature `verbs`, which needs the packages of the RDMA lab.
    pub(crate) verbs: bool,
}

/// Builds one program.
///
/// # Errors
/// When it does not build (cargo has said why), or the package has no such target.
pub(crate) fn build(build: &Build) -> Result<PathBuf, String> {
    build_with(build, &[])
}

/// The same, with more arguments for cargo.
///
/// # Errors
/// As those of [`build()`].
pub(crate) fn build_with(build: &Build, arguments: &[&str]) -> Result<PathBuf, String> {
    let Build { package, kind, target, release, verbs } = build;
    let mut cargo = cargo();
    cargo.args(if *kind == "test" { &["test", "--no-run"][..] } else { &["build"] });
    // With the features of the whole workspace where it can be, which a build of that has made already.
    let selection = if *release || *verbs { &["--package", package][..] } else { &["--workspace"] };
    cargo.args(selection).args(release.then_some("--release"));
    cargo.args(verbs.then_some(["--features", "verbs"]).into_iter().flatten());
    cargo.arg(format!("--{kind}")).arg(target).args(arguments);
    cargo.arg("--message-format=json-render-diagnostics").current_dir(workspace());
    let messages = messages(&mut cargo).map_err(|error| format!("{target} of {package} does not build: {error}"))?;
    executable(&messages, build).ok_or_else(|| format!("cargo built no {kind} {target} of {package}"))
}

/// Builds the library of a package, optimised as users get it.
///
/// # Errors
/// When it does not build, and cargo has said why.
pub(crate) fn build_library(package: &str) -> Result<(), String> {
    let mut cargo = cargo();
    cargo.args(["build", "--package", package, "--lib", "--release"]).current_dir(workspace());
    messages(&mut cargo).map(drop).map_err(|error| format!("{package} does not build: {error}"))
}

/// What cargo says of what it builds. Its progress and its complaints go to where ours go.
fn messages(cargo: &mut Command) -> Result<String, String> {
    let done = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = done.map_err(|error| format!("cannot run cargo ({error})"))?;
    if !done.status.success() {
        return Err(format!("cargo failed ({})", done.status));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The path of a program in cargo's messages. What has a path is a program: a library has one as its unit tests alone.
fn executable(messages: &str, build: &Build) -> Option<PathBuf> {
    let is_it = |message: &Value| {
        let target = &message["target"];
        target["kind"][0] == build.kind && target["name"] == build.target
    };
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(is_it).find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"sealane_transport"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"sealane_transport"},"profile":{"test":true},"executable":"/t/deps/sealane_transport-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"sealane"},"profile":{"test":false},"filenames":["/t/sealane"],"executable":"/t/sealane"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"conformance"},"profile":{"test":true},"executable":"/t/deps/conformance-2"}
{"reason":"build-finished","success":true}
not a message
"#;

    #[test]
    fn a_program_is_found_by_its_kind_and_name() {
        let found = |kind, target| {
            let build = Build { package: "any", kind, target, release: false, verbs: false };
            executable(MESSAGES, &build).map(|path| path.display().to_string())
        };
        assert_eq!(found("lib", "sealane_transport").as_deref(), Some("/t/deps/sealane_transport-1"));
        assert_eq!(found("test", "conformance").as_deref(), Some("/t/deps/conformance-2"));
        assert_eq!(found("bin", "sealane").as_deref(), Some("/t/sealane"));
        assert_eq!(found("example", "sealane"), None);
        assert_eq!(found("test", "sockets"), None);
    }
}
