//! `cargo xtask report`: runs every experiment, keeps what each wrote in `bench/results`, and writes of it `bench/REPORT.md`,
//! `bench/REPORT.html`, the pictures, and the figures of the README. What was kept can be rendered again without measuring.

mod aims;
mod chapters;
mod comparison;
mod experiment;
mod figure;
#[cfg(test)]
mod fixtures;
mod measure;
mod page;
mod readme;
mod results;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::chapters::experiments;
use self::experiment::{Experiment, Program, RESULTS};
use self::measure::Bench;
use self::results::Results;
use crate::build::{Build, build, workspace};
use crate::generated;

/// What is measured, as users get it.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", release: true, verbs: false };

/// Where a quick run leaves its results and pages, from the workspace's root.
const QUICK: &str = "target/report-quick";

#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask report\n  cargo xtask report --only latency,ps_fusion\n  cargo xtask report --check"
)]
pub(crate) struct Report {
    /// Measure only these experiments anew (repeatable, or with commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure what needs the RDMA lab as well, which boots an emulated machine for each
    #[arg(long)]
    lab: bool,
    /// Measure nothing: write the report and the README's figures anew from what was kept
    #[arg(long, conflicts_with_all = ["only", "lab", "quick", "check"])]
    render: bool,
    /// Write nothing; fail if the report or the README is not what the results say
    #[arg(long, conflicts_with_all = ["only", "lab", "quick"])]
    check: bool,
    /// Try everything as shortly as can be; what comes of it goes to target/report-quick, and means nothing
    #[arg(long)]
    quick: bool,
    /// Measure this program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

impl Report {
    pub(crate) fn run(&self) -> ExitCode {
        let root = workspace();
        let done = match (self.render, self.check) {
            (true, _) => pages(&root, &root).and_then(|pages| write(&root, &pages)),
            (_, true) => pages(&root, &root).and_then(|pages| check(&root, &pages)),
            _ => self.measure(&root),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(problems) => {
                problems.iter().for_each(|problem| eprintln!("error: {problem}"));
                ExitCode::FAILURE
            }
        }
    }

    fn measure(&self, root: &Path) -> Result<(), Vec<String>> {
        let one = |problem: String| vec![problem];
        let mut experiments = chosen(&self.only, self.lab, measure::has_tensorflow()).map_err(one)?;
        let place = if self.quick { root.join(QUICK) } else { root.to_path_buf() };
        if self.quick {
            experiments.iter_mut().for_each(|experiment| *experiment = experiment.quick());
        }
        let program = match &self.program {
            Some(program) => program.canonicalize().map_err(|error| one(format!("{}: {error}", program.display())))?,
            None => build(&SEALANE).map_err(one)?,
        };
        let folder = place.join(RESULTS);
        let measured = Bench { program, folder }.run(&experiments, &Results::load(&root.join(RESULTS)).map_err(one)?);
        let pages = pages(root, &place)?;
        write(&place, &pages)?;
        eprintln!("the report is in {} and {}", place.join(page::MARKDOWN).display(), place.join(page::HTML).display());
        measured
    }
}

/// The experiments of these names; without names all, those of the lab only if asked for, those of TensorFlow where it is.
fn chosen(names: &[String], lab: bool, tensorflow: bool) -> Result<Vec<Experiment>, String> {
    if let Some(unknown) = names.iter().find(|name| !experiments().any(|known| known.name == **name)) {
        let known: Vec<_> = experiments().map(|experiment| experiment.name).collect();
        return Err(format!("there is no experiment {unknown:?}; the experiments are {}", known.join(", ")));
    }
    let is_chosen = |experiment: &&Experiment| match names {
        [] => match experiment.program {
            Program::Lab(_) => lab,
            Program::TensorFlow => tensorflow,
            Program::Bench | Program::Growth(_) | Program::Python => true,
        },
        names => names.iter().any(|name| name == experiment.name),
    };
    Ok(experiments().filter(is_chosen).copied().collect())
}

/// Every file that follows from the results that are kept in `place`; the README's text is that of `root`.
fn pages(root: &Path, place: &Path) -> Result<Vec<generated::Page>, Vec<String>> {
    let results = Results::load(&place.join(RESULTS)).map_err(|problem| vec![problem])?;
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme).map_err(|error| vec![format!("{}: {error}", readme.display())])?;
    let mut pages = page::files(place, &results);
    pages.push((place.join("README.md"), readme::written(&text, &results)?));
    Ok(pages)
}

fn write(place: &Path, pages: &[generated::Page]) -> Result<(), Vec<String>> {
    let folder = place.join(RESULTS);
    fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    for picture in strays(place, pages) {
        fs::remove_file(&picture).map_err(|error| vec![format!("{}: {error}", picture.display())])?;
    }
    generated::write(pages)
}

fn check(place: &Path, pages: &[generated::Page]) -> Result<(), Vec<String>> {
    let command = "cargo xtask report --render";
    let stray = |picture: PathBuf| format!("{} belongs to no chapter; run `{command}`", picture.display());
    let mut problems: Vec<String> = strays(place, pages).into_iter().map(stray).collect();
    problems.extend(generated::check(pages, "the results say", command).err().into_iter().flatten());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Pictures beside the results that the report does not have any more.
fn strays(place: &Path, pages: &[generated::Page]) -> Vec<PathBuf> {
    let files = fs::read_dir(place.join(RESULTS)).into_iter().flatten().flatten().map(|file| file.path());
    let is_stray = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "svg") && !pages.iter().any(|(path, _)| path == file)
    };
    files.filter(is_stray).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when a result, the report or the README was changed by hand, or a result was measured and not rendered.
    #[test]
    fn the_report_and_the_readme_are_what_the_results_say() {
        let root = workspace();
        let pages = pages(&root, &root).unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
        check(&root, &pages).unwrap_or_else(|old| panic!("{}", old.join("\n")));
    }

    #[test]
    fn a_changed_figure_is_seen() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let results = fixtures::results();
        let pages = page::files(place, &results);
        assert!(
            check(place, &pages)
                .unwrap_err()
                .iter()
                .any(|problem| problem.contains("REPORT.md is not what the results say"))
        );
        write(place, &pages).unwrap();
        assert_eq!(check(place, &pages), Ok(()));
        for file in [page::MARKDOWN, page::HTML] {
            let path = place.join(file);
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replacen("8 µs", "7 µs", 1)).unwrap();
            let problems = check(place, &pages).unwrap_err();
            assert!(
                problems.len() == 1 && problems[0].contains(file) && problems[0].contains("--render"),
                "{problems:?}"
            );
            fs::write(&path, text).unwrap();
        }
        let stray = place.join(RESULTS).join("old.svg");
        fs::write(&stray, "").unwrap();
        assert!(check(place, &pages).unwrap_err()[0].contains("old.svg belongs to no chapter"));
        write(place, &pages).unwrap();
        assert_eq!((check(place, &pages), stray.exists()), (Ok(()), false));
    }

    #[test]
    fn experiments_are_chosen_by_name() {
        let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = chosen(&names(&["rate", "latency"]), false, false).unwrap();
        assert_eq!(found.iter().map(|experiment| experiment.name).collect::<Vec<_>>(), ["latency", "rate"]);
        let is_lab: fn(&Experiment) -> bool = |experiment| matches!(experiment.program, Program::Lab(_));
        let has = |lab, tensorflow, is: fn(&Experiment) -> bool| chosen(&[], lab, tensorflow).unwrap().iter().any(is);
        assert!(!has(false, true, is_lab) && has(true, false, is_lab));
        let is_tensorflow: fn(&Experiment) -> bool = |experiment| experiment.program == Program::TensorFlow;
        assert!(!has(true, false, is_tensorflow) && has(false, true, is_tensorflow));
        let error = chosen(&names(&["speed"]), false, false).unwrap_err();
        assert!(error.starts_with("there is no experiment \"speed\"; the experiments are ps_buffers_50, "), "{error}");
    }
}
