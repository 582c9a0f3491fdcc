//! The role of the task that is served, and what `TF_CONFIG` says of it.

use std::fmt;
use std::str::FromStr;

use serde_json::Value as Json;

use super::Environment;
use crate::Failure;

/// The variable in which TensorFlow tells a process the cluster and its task.
pub const TF_CONFIG: &str = "TF_CONFIG";

/// What kind of task is served, which decides whose variables are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A parameter server.
    Ps,
    Worker,
    /// The worker that also saves the model.
    Chief,
    /// Any other job: reads a ps's variables.
    Other,
}

impl Role {
    pub fn of_job(job: &str) -> Role {
        job.parse().unwrap_or(Role::Other)
    }

    /// True if the variables of a worker are read, false if those of a ps.
    pub fn reads_worker_variables(self) -> bool {
        matches!(self, Role::Worker | Role::Chief)
    }
}

/// The roles that a flag can name.
const NAMED: [(Role, &str); 3] = [(Role::Ps, "ps"), (Role::Worker, "worker"), (Role::Chief, "chief")];

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(NAMED.iter().find(|(role, _)| role == self).map_or("other", |(_, name)| name))
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let named = NAMED.iter().find(|(_, name)| *name == text);
        named.map(|(role, _)| *role).ok_or_else(|| "write ps, worker or chief".to_owned())
    }
}

/// What `TF_CONFIG` says of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TfConfig {
    pub job: Option<String>,
    /// The task's gRPC address.
    pub task: Option<String>,
}

impl TfConfig {
    /// Reads `TF_CONFIG`; absent or empty, it says nothing.
    ///
    /// # Errors
    ///
    /// It is not JSON, or its task is not one of its cluster.
    pub fn read(environment: &Environment) -> Result<TfConfig, Failure> {
        match environment.get(TF_CONFIG)?.map(str::trim) {
            None | Some("") => Ok(TfConfig::default()),
            Some(text) => parse(text).map_err(|problem| {
                Failure::input(format!(
                    "TF_CONFIG cannot be read ({problem}); write TensorFlow's JSON there, or unset it"
                ))
            }),
        }
    }
}

fn parse(text: &str) -> Result<TfConfig, String> {
    let config: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !config.is_object() {
        return Err("it is not a JSON object".to_owned());
    }
    let job = match &config["task"]["type"] {
        Json::Null => return Ok(TfConfig::default()),
        Json::String(job) => job.clone(),
        other => return Err(format!("task.type is {other}, not a string")),
    };
    Ok(TfConfig { task: task(&config, &job)?, job: Some(job) })
}

/// Finds the task's address; a task outside the cluster (an evaluator) has none.
fn task(config: &Json, job: &str) -> Result<Option<String>, String> {
    let index = match &config["task"]["index"] {
        Json::Null => return Ok(None),
        // TensorFlow also accepts the index as a string.
        Json::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|index| usize::try_from(index).ok()),
    };
    let index: usize = index.ok_or_else(|| format!("task.index is {}, not an index", config["task"]["index"]))?;
    // Kubeflow gives a sparse cluster to the workers of an elastic job.
    let Some((cluster, tasks)) = ["cluster", "sparseCluster"]
        .map(|name| (name, &config[name][job]))
        .into_iter()
        .find(|(_, tasks)| !tasks.is_null())
    else {
        return Ok(None);
    };
    // A job is a list of addresses, or has addresses by index.
    let task = if tasks.is_object() { &tasks[index.to_string()] } else { &tasks[index] };
    match task {
        Json::String(task) => Ok(Some(task.clone())),
        _ => Err(format!("{cluster}.{job} has no address at index {index}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TfConfig, String> {
        let environment: Environment = [(TF_CONFIG, text)].into_iter().collect();
        TfConfig::read(&environment).map_err(|error| error.to_string())
    }

    fn says(job: &str, task: Option<&str>) -> TfConfig {
        TfConfig { job: Some(job.to_owned()), task: task.map(str::to_owned) }
    }

    #[test]
    fn finds_job_and_task() {
        let cluster = r#""cluster":{"ps":["a:1","b:1"],"worker":["c:1"]}"#;
        let config = |task: &str| read(&format!("{{{cluster},\"task\":{task}}}"));
        assert_eq!(config(r#"{"type":"ps","index":1}"#), Ok(says("ps", Some("b:1"))));
        assert_eq!(config(r#"{"type":"worker","index":"0"}"#), Ok(says("worker", Some("c:1"))));
        assert_eq!(config(r#"{"type":"evaluator","index":0}"#), Ok(says("evaluator", None)));
        assert_eq!(config(r#"{"type":"ps"}"#), Ok(says("ps", None)));
        let by_index = r#"{"cluster":{"worker":{"3":"d:1"}},"task":{"type":"worker","index":3}}"#;
        assert_eq!(read(by_index), Ok(says("worker", Some("d:1"))));
        assert_eq!(read(&by_index.replace("cluster", "sparseCluster")), Ok(says("worker", Some("d:1"))));
        for nothing in ["null", "{}"] {
            assert_eq!(config(nothing), Ok(TfConfig::default()));
        }
        for nothing in ["", " ", "{}"] {
            assert_eq!(read(nothing), Ok(TfConfig::default()));
        }
    }

    #[test]
    fn says_what_it_cannot_read() {
        for (text, problem) in [
            ("{", "EOF"),
            ("[]", "not a JSON object"),
            (r#"{"task":{"type":1}}"#, "task.type is 1"),
            (r#"{"task":{"type":"ps","index":-1}}"#, "task.index is -1"),
            (r#"{"task":{"type":"ps","index":"x"}}"#, "task.index is \"x\""),
            (r#"{"cluster":{"ps":[]},"task":{"type":"ps","index":0}}"#, "cluster.ps has no address at index 0"),
            (
                r#"{"sparseCluster":{"ps":{"1":"a:1"}},"task":{"type":"ps","index":0}}"#,
                "sparseCluster.ps has no address",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with("TF_CONFIG cannot be read ("), "{error}");
            assert!(error.contains(problem), "{error}");
            assert!(error.ends_with("or unset it"), "{error}");
        }
    }

    #[test]
    fn only_workers_and_chiefs_read_the_worker_variables() {
        for (job, worker) in [("worker", true), ("chief", true), ("ps", false), ("master", false)] {
            assert_eq!(Role::of_job(job).reads_worker_variables(), worker, "{job}");
        }
        assert_eq!(Role::of_job("evaluator").to_string(), "other");
        assert!("other".parse::<Role>().is_err());
    }
}
