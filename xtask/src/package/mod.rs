//! What is installed: `cargo xtask pages` writes the manual pages and the completions of the shells from the program's own
//! description of its arguments, `cargo xtask deb` packs them with the program, the libraries of C and what lies in `deploy/`.

mod deb;
mod pages;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::build::{Build, build, libraries, workspace};

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
    /// A folder with the program and the libraries of C, built already; without it, they are built for this
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,

    /// Build the program with RDMA verbs, which needs cmake and libclang
    #[arg(long, conflicts_with = "built")]
    verbs: bool,

    /// The folder for the packages; it is made
    #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
    out: PathBuf,
}

impl Deb {
    pub(crate) fn run(&self) -> ExitCode {
        told(self.pack(), |packages| {
            let packages: Vec<String> = packages.iter().map(|package| package.display().to_string()).collect();
            packages.join("\n")
        })
    }

    fn pack(&self) -> Result<Vec<PathBuf>, String> {
        let built = match &self.built {
            Some(folder) => deb::Built {
                program: folder.join("sealane"),
                shared: folder.join(deb::SHARED),
                archive: folder.join(deb::ARCHIVE),
            },
            None => self.build()?,
        };
        deb::pack(&built, &workspace(), &self.out)
    }

    fn build(&self) -> Result<deb::Built, String> {
        let program =
            build(&Build { package: "sealane-cli", kind: "bin", target: "sealane", release: true, verbs: self.verbs })?;
        let libraries = libraries("sealane-c")?;
        let library = |name: &str| {
            let found = libraries.iter().find(|library| library.file_name().is_some_and(|file| file == name));
            found.cloned().ok_or_else(|| format!("cargo built no {name}"))
        };
        Ok(deb::Built { program, shared: library(deb::SHARED)?, archive: library(deb::ARCHIVE)? })
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
