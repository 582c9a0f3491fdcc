//! The results that are kept: one file of JSON an experiment, which is what the program wrote and, under `provenance`, who made
//! it, when and where. Figures are looked up by name, so that results of an older program can be read as well.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sealane_bench::{Machine, Spread};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chapters::experiments;

/// Under what name the provenance stands beside what the program wrote.
pub(super) const PROVENANCE: &str = "provenance";

/// Where a result comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Provenance {
    /// The command line.
    pub(super) command: String,
    /// When it ended, in seconds since 1970.
    pub(super) unix_seconds: u64,
    /// How many seconds it took.
    pub(super) took_s: f64,
    /// The commit that was checked out; with `+` where files were changed since.
    pub(super) commit: String,
    /// The compiler's name and version.
    pub(super) compiler: String,
    /// The kernel's congestion control, which sockets have that ask for no other.
    pub(super) congestion: String,
    /// The machine's memory in GiB.
    pub(super) memory_gib: f64,
    /// Processes that ran or wanted to, on average over the minute before: 0 on a machine with nothing else to do.
    pub(super) load: f64,
}

/// What one experiment found out.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) provenance: Provenance,
    pub(super) report: Value,
}

/// All that is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Results {
    runs: BTreeMap<String, Run>,
}

impl Results {
    /// Reads all results of a folder, which need not be there.
    ///
    /// # Errors
    /// A file cannot be read, is no result, or belongs to no experiment.
    pub(super) fn load(folder: &Path) -> Result<Results, String> {
        let mut results = Results::default();
        let Ok(files) = fs::read_dir(folder) else { return Ok(results) };
        for file in files {
            let path = file.map_err(|error| format!("{}: {error}", folder.display()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let told = |error: String| format!("{}: {error}", path.display());
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !experiments().any(|experiment| experiment.name == name) {
                return Err(told("it belongs to no experiment of the report; delete it".to_owned()));
            }
            let text = fs::read_to_string(&path).map_err(|error| told(error.to_string()))?;
            let run = Run::read(&text).map_err(|error| told(format!("{error}; measure it anew")))?;
            results.runs.insert(name, run);
        }
        Ok(results)
    }

    #[cfg(test)]
    pub(super) fn of(runs: impl IntoIterator<Item = (&'static str, Run)>) -> Results {
        Results { runs: runs.into_iter().map(|(name, run)| (name.to_owned(), run)).collect() }
    }

    #[cfg(test)]
    pub(super) fn without(mut self, experiment: &str) -> Results {
        self.runs.remove(experiment);
        self
    }

    pub(super) fn get(&self, experiment: &str) -> Option<&Run> {
        self.runs.get(experiment)
    }

    /// The last one that was made.
    pub(super) fn last(&self) -> Option<&Run> {
        self.runs.values().max_by_key(|run| run.provenance.unix_seconds)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.values()
    }
}

impl Run {
    /// A result as it is kept.
    fn read(text: &str) -> Result<Run, String> {
        let report: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let provenance = report.get(PROVENANCE).ok_or("it does not say where it comes from")?;
        let provenance = Provenance::deserialize(provenance).map_err(|error| error.to_string())?;
        Ok(Run { provenance, report })
    }

    /// A system's figure: of a metric with percentiles one of them, as in `rtt_us.p50`. Of several variants of a system, the
    /// first that is called so; of any name, the first.
    pub(super) fn figure(&self, system: &str, variant: Option<&str>, metric: &str) -> Option<Spread> {
        let (name, percentile) = metric.split_once('.').map_or((metric, None), |(name, at)| (name, Some(at)));
        let is_it = |row: &&Value| {
            row["system"] == system && row["metric"] == name && variant.is_none_or(|variant| row["variant"] == variant)
        };
        let row = self.report["results"].as_array()?.iter().find(is_it)?;
        match percentile {
            Some(percentile) => row[percentile].as_f64().map(certain),
            None => spread(row, "value"),
        }
    }

    /// A quotient that the program took round by round, by its name and what it is of.
    pub(super) fn ratio(&self, name: &str, of: &str) -> Option<Spread> {
        let is_it = |ratio: &&Value| ratio["name"] == name && ratio["of"] == of;
        spread(self.report["ratios"].as_array()?.iter().find(is_it)?, "median")
    }

    /// A variant's figure by that of the first variant of the same system, round by round. 1 for the first itself.
    pub(super) fn to_first(&self, variant: &str, of: &str) -> Option<Spread> {
        let first = self.variants("sealane").into_iter().next()?;
        if variant == first {
            return Some(certain(1.0));
        }
        let direct = [format!("{variant} / {first}"), format!("{variant}/{first}")];
        let direct = direct.iter().find_map(|name| self.ratio(name, of));
        direct.or_else(|| self.ratio(&format!("{first}/{variant}"), of).map(inverse))
    }

    /// The names of a system's variants, in their order.
    pub(super) fn variants(&self, system: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let rows = self.report["results"].as_array().into_iter().flatten();
        for name in rows.filter(|row| row["system"] == system).filter_map(|row| row["variant"].as_str()) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// The machine, where the program tells.
    pub(super) fn machine(&self) -> Option<Machine> {
        Machine::deserialize(self.report.get("machine")?).ok()
    }
}

/// A figure with its lowest and highest round; one that has none of them is certain.
pub(super) fn spread(row: &Value, median: &str) -> Option<Spread> {
    let median = row[median].as_f64()?;
    let end = |name| row[name].as_f64().unwrap_or(median);
    Some(Spread { median, min: end("min"), max: end("max") })
}

pub(super) fn certain(value: f64) -> Spread {
    Spread { median: value, min: value, max: value }
}

/// Of a quotient, the other way round.
pub(super) fn inverse(Spread { median, min, max }: Spread) -> Spread {
    Spread { median: 1.0 / median, min: 1.0 / max, max: 1.0 / min }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{provenance, run};
    use super::*;

    fn sample() -> Run {
        run(serde_json::json!({
            "results": [
                {"system":"sealane","variant":"a","metric":"rtt_us","p50":8.0,"p99":9.0},
                {"system":"sealane","variant":"a","metric":"step_ms","value":2.0,"min":1.0,"max":4.0},
                {"system":"sealane","variant":"b","metric":"step_ms","value":3.0,"min":3.0,"max":3.0},
                {"system":"sealane","variant":"c","metric":"step_ms","value":3.0,"min":3.0,"max":3.0},
            ],
            "ratios": [
                {"name":"a/b","of":"step_ms","median":0.5,"min":0.25,"max":1.0},
                {"name":"c / a","of":"step_ms","median":3.0,"min":2.0,"max":4.0},
            ],
        }))
    }

    #[test]
    fn figures_are_found_by_name() {
        let run = sample();
        assert_eq!(run.figure("sealane", None, "rtt_us.p99"), Some(certain(9.0)));
        assert_eq!(run.figure("sealane", None, "step_ms"), Some(Spread { median: 2.0, min: 1.0, max: 4.0 }));
        assert_eq!(run.figure("sealane", Some("b"), "step_ms"), Some(certain(3.0)));
        assert_eq!(run.figure("raw", None, "step_ms"), None);
        assert_eq!(run.figure("sealane", None, "rtt_us.p42"), None);
        assert_eq!(run.variants("sealane"), ["a", "b", "c"]);
    }

    #[test]
    fn variants_are_compared_with_the_first_whichever_way_round_the_program_did() {
        let run = sample();
        assert_eq!(run.to_first("a", "step_ms"), Some(certain(1.0)));
        assert_eq!(run.to_first("b", "step_ms"), Some(Spread { median: 2.0, min: 1.0, max: 4.0 }));
        assert_eq!(run.to_first("c", "step_ms"), Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(run.to_first("d", "step_ms"), None);
    }

    #[test]
    fn a_folder_without_results_is_empty_and_one_with_strangers_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Results::load(&folder.path().join("none")).unwrap().iter().count(), 0);
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("notes.txt", "no result");
        let provenance = serde_json::to_string(&provenance()).unwrap();
        write("latency.json", &format!("{{\"{PROVENANCE}\":{provenance}}}"));
        let results = Results::load(folder.path()).unwrap();
        assert!(results.get("latency").is_some() && results.get("rate").is_none());
        write("rate.json", "{}");
        let error = Results::load(folder.path()).unwrap_err();
        assert!(error.ends_with("rate.json: it does not say where it comes from; measure it anew"), "{error}");
        write("rate.json", "{");
        assert!(Results::load(folder.path()).unwrap_err().contains("rate.json: EOF"));
        fs::remove_file(folder.path().join("rate.json")).unwrap();
        write("strange.json", "{}");
        let error = Results::load(folder.path()).unwrap_err();
        assert!(error.ends_with("strange.json: it belongs to no experiment of the report; delete it"), "{error}");
    }
}
