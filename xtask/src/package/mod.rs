//! What is installed: `cargo xtask pages` writes the manual pages and the completions of the shells from the program's own
//! description of its arguments, `cargo xtask deb` packs them with the program and what lies in `deploy/`.

mod deb;
mod pages;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::build::{Build, build, workspace};

/// Arguments of `cargo xtask pages`.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// The folder to write into; it is made
    #[arg(long, value_name = "FOLDER", default_value = "target/pages")]
    out: PathBuf,
}

impl Pages {
    pub(crate) fn run(&self) -> ExitCode {
        told(pages::write(&self.out).map_err(|error| format!("{}: {error}", self.out.display())), |()| {
            format!("manual pages and completions are in {}", self.out.display())
        })
    }
}

/// Arguments of `cargo xtask deb`.
#[derive(clap::Args)]
pub(crate) struct Deb {
    /// A program that is built already; without it, it is built for this
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Build it with RDMA verbs, which needs cmake and libclang
    #[arg(long, conflicts_with = "program")]
    verbs: bool,

    /// The folder for the package; it is made
    #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
    out: PathBuf,
}

impl Deb {
    pub(crate) fn run(&self) -> ExitCode {
        told(self.pack(), |package| format!("{}", package.display()))
    }

    fn pack(&self) -> Result<PathBuf, String> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => build(&Build {
                package: "sealane-cli",
                kind: "bin",
                target: "sealane",
                release: true,
                verbs: self.verbs,
            })?,
        };
        deb::pack(&program, &workspace().join("deploy"), &self.out)
    }
}

fn told<T>(outcome: Result<T, String>, say: impl FnOnce(T) -> String) -> ExitCode {
    match outcome {
        Ok(done) => {
            println!("{}", say(done));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
