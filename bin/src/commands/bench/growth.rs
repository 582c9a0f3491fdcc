//! `sealane bench growth`: the parameter-server experiment on virtual time, at sizes that no machine here can run.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sealane_bench::Progress;
use sealane_bench::growth::{Calibration, GrowthPlan, Lookups, Variables, grow};

use super::tables::{RowsFlags, Step};
use crate::output_file::{OutputFile, STANDARD_OUTPUT};
use crate::workload::Workload;
use crate::{Context, Failure, command_line};

/// Largest report that costs are found from: thousands of times what a run writes.
const REPORT_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    plan: GrowthPlan,

    #[command(flatten)]
    rows: RowsFlags,

    /// Fit message costs to reports of `sealane bench ps --json`; several, from workloads of different sizes; and the cost of a
    /// row to those of `sealane bench rows --json` among them
    #[arg(long, value_name = "FILE.json", num_args = 1..)]
    calibrate: Vec<PathBuf>,

    /// Write the report as JSON to a file, or with `-` to standard output and nothing else
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,

    /// Plot steps per second against workers
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Simulates, and reports.
///
/// # Errors
/// The flags, the workload or a report are wrong, or a file cannot be written.
pub(super) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let plan = args.plan()?;
    plan.check()?;
    let to_stdout = args.json.as_deref().is_some_and(|file| file == Path::new(STANDARD_OUTPUT));
    let json = OutputFile::named("--json", args.json.as_ref().filter(|_| !to_stdout))?;
    let plot = OutputFile::named("--plot", args.plot.as_ref())?;
    let report = grow(&plan, &mut Progress::on_stderr())?;
    if let Some(file) = plot {
        file.write(&report.to_svg(&command_line::this()))?;
    }
    if let Some(file) = json {
        file.write(&report.to_json())?;
    }
    context.print(&if to_stdout { report.to_json() } else { report.to_table() })
}

impl Args {
    fn plan(&self) -> Result<GrowthPlan, Failure> {
        let name = &self.plan.workload;
        let workload = Workload::parse(&Workload::text(name)?, name)?;
        let Step { pull, push, tables } = self.rows.step(&workload)?;
        let sizes_of = |sizes: Vec<usize>| sizes.into_iter().map(|bytes| bytes as u64).collect();
        let variables = Variables { pull: sizes_of(pull), push: sizes_of(push) };
        let calibration = match &self.calibrate[..] {
            [] => None,
            files => Some(Calibration::of(&files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?)?),
        };
        let lookups = Lookups::new(tables);
        Ok(GrowthPlan { workload: workload.name, variables, lookups, calibration, ..self.plan.clone() })
    }
}

/// A report's name and text.
fn read(path: &Path) -> Result<(String, String), Failure> {
    let name = path.display().to_string();
    let refused = |error: io::Error| {
        Failure::input(format!(
            "--calibrate {name} cannot be read ({error}); name a report that `sealane bench ps --json` wrote"
        ))
    };
    let mut text = String::new();
    let file = File::open(path).map_err(refused)?;
    file.take(REPORT_BYTES_MAX + 1).read_to_string(&mut text).map_err(refused)?;
    if text.len() as u64 > REPORT_BYTES_MAX {
        return Err(Failure::input(format!(
            "--calibrate {name} has more than {REPORT_BYTES_MAX} bytes; name a report that `sealane bench ps --json` wrote"
        )));
    }
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use sealane_bench::{Mode, Size};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<GrowthPlan, Failure> {
        Line::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}")).args.plan()
    }

    #[test]
    fn flags_are_passed_on_and_defaults_are_the_plans() {
        let line =
            "growth --sizes 200+10,1000+50 --workload dlrm_kaggle --slice 64KiB --mode sync --nic-gbit 25 --seed 7";
        let chosen = plan(line).unwrap();
        assert_eq!(chosen.sizes, [Size { workers: 200, ps: 10 }, Size { workers: 1_000, ps: 50 }]);
        assert_eq!((chosen.slice_bytes, chosen.course.mode, chosen.course.seed), (Some(64 << 10), Mode::Sync, 7));
        assert_eq!((chosen.workload.as_str(), chosen.nic_gbit_per_s), ("dlrm_kaggle", 25.0));
        assert_eq!((chosen.variables.pull.len(), chosen.variables.push.len()), (40, 66));
        let rows = plan("growth --rows --workload dlrm_kaggle --batch 2048").unwrap();
        assert_eq!((rows.variables.pull.len(), rows.variables.push.len()), (14, 66));
        assert_ne!(rows.lookups, Lookups::default());
        let default = plan("growth").unwrap();
        let own = GrowthPlan::new("wide_deep_400", default.variables.clone());
        assert_eq!(format!("{default:?}"), format!("{own:?}"));
        assert!(Line::try_parse_from(["growth", "--sizes", "200"]).is_err());
    }

    #[test]
    fn a_report_that_is_none_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let refused = |name: &str| plan(&format!("growth --calibrate {}", path(name))).unwrap_err().to_string();
        assert!(refused("none.json").contains("none.json cannot be read (No such file"));
        std::fs::write(path("my.json"), "{}").unwrap();
        assert!(refused("my.json").contains("name a report that `sealane bench ps --json FILE` wrote"));
        File::create(path("large.json")).unwrap().set_len(REPORT_BYTES_MAX + 1).unwrap();
        assert!(refused("large.json").contains("has more than 16777216 bytes"));
    }
}
