//! The tasks of `TF_CONFIG`: those of its `cluster`, whose jobs are lists of addresses or addresses by index, and of the
//! `sparseCluster` that Kubeflow gives to the workers of an elastic job. Pure except for reading the variable.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::job::Job;
use super::{Args, no_tasks, not_set, read};
use crate::settings::TF_CONFIG;
use crate::{Context, Failure};

/// The fields that contain a cluster.
pub(crate) const CLUSTERS: [&str; 2] = ["cluster", "sparseCluster"];

pub(super) fn generate(args: &Args, context: &Context) -> Result<String, Failure> {
    let (origin, text) = match &args.tf_config {
        Some(path) => (path.display().to_string(), Some(read(path)?)),
        None => (TF_CONFIG.to_owned(), context.environment().get(TF_CONFIG)?.map(str::to_owned)),
    };
    let text = text
        .filter(|text| !text.trim().is_empty())
        .ok_or_else(|| not_set(TF_CONFIG, "TensorFlow's launcher", "--tf-config FILE"))?;
    let (job, is_sparse) = job(&text, &origin)?;
    let mut made_by = args.made_by();
    if is_sparse {
        made_by += "# The cluster was sparse: these are the tasks that one process knows, not all tasks of the job.\n";
    }
    job.map(&made_by, args.ports())
}

/// The tasks, by job and index; true if the cluster itself says that there are more.
fn job(text: &str, origin: &str) -> Result<(Job, bool), Failure> {
    let wrong = |problem: String| {
        Failure::input(format!(
            "{origin}: {problem}; write TensorFlow's JSON there, as in {{\"cluster\":{{\"ps\":[\"host:2222\"]}}}}"
        ))
    };
    let config: Json = serde_json::from_str(text).map_err(|error| wrong(format!("it is not JSON ({error})")))?;
    let mut tasks: BTreeMap<(&str, u64), &str> = BTreeMap::new();
    let clusters = CLUSTERS.map(|name| (name, &config[name]));
    for (name, cluster) in clusters {
        let jobs = match cluster {
            Json::Null => continue,
            Json::Object(jobs) => jobs,
            other => return Err(wrong(format!("{name} is {}, not an object of jobs", kind(other)))),
        };
        for (role, addresses) in jobs {
            if !is_job_name(role) {
                return Err(wrong(format!(
                    "{name} has the job {role:?}, which is not a name of letters, digits and _"
                )));
            }
            for (index, address) in members(addresses).map_err(|problem| wrong(format!("{name}.{role} {problem}")))? {
                let Json::String(address) = address else {
                    let kind = kind(address);
                    return Err(wrong(format!("{name}.{role} has {kind} at index {index}, not a string")));
                };
                match tasks.insert((role, index), address) {
                    Some(other) if other != address => {
                        return Err(wrong(format!("{role} {index} is at {other} and at {address}")));
                    }
                    _ => {}
                }
            }
        }
    }
    if clusters.iter().all(|(_, cluster)| cluster.is_null()) {
        return Err(wrong("it has no cluster".to_owned()));
    }
    let mut job = Job::default();
    for ((role, index), address) in tasks {
        job.add(role, index, address, || format!("{origin}: {role} {index}, {address:?}"))?;
    }
    if job.len() == 0 { Err(no_tasks(origin)) } else { Ok((job, !config[CLUSTERS[1]].is_null())) }
}

/// The addresses of a job with their indexes, in either form.
fn members(addresses: &Json) -> Result<Vec<(u64, &Json)>, String> {
    match addresses {
        Json::Array(list) => Ok((0..).zip(list).collect()),
        Json::Object(by_index) => {
            let number = |index: &str| index_of(index).ok_or_else(|| format!("has the index {index:?}, not a number"));
            by_index.iter().map(|(index, address)| Ok((number(index)?, address))).collect()
        }
        other => Err(format!("is {}, not a list of addresses", kind(other))),
    }
}

/// An index in its only accepted spelling.
fn index_of(text: &str) -> Option<u64> {
    let index: u64 = text.parse().ok()?;
    (index.to_string() == text).then_some(index)
}

/// Whether TensorFlow accepts it as the name of a job.
fn is_job_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// The kind of a value, for a message that should not repeat it.
fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a bool",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::map::generate::job::Ports;
    use proptest::prelude::*;
    use sealane_transport::endpoint_map::lint;

    fn map(text: &str) -> Result<String, String> {
        let (job, _) = job(text, "TF_CONFIG").map_err(|error| error.to_string())?;
        job.map("", Ports { first: 7000, is_each: false }).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_of_a_cluster_gives_its_tasks_by_job_and_index() {
        let list = r#"{"cluster":{"worker":["b:1","c:1"],"ps":["a:1"]}}"#;
        let by_index = r#"{"cluster":{"worker":{"1":"c:1","0":"b:1"},"ps":["a:1"]}}"#;
        let expected = "# 3 tasks, 3 hosts\na:1=a:7000  # ps 0\nb:1=b:7000  # worker 0\nc:1=c:7000  # worker 1\n";
        for text in [list, by_index] {
            assert_eq!(map(text).as_deref(), Ok(expected), "{text}");
        }
        let sparse = r#"{"sparseCluster":{"worker":{"3":"b:1"},"ps":["a:1"]},"task":{"type":"worker","index":3}}"#;
        assert!(map(sparse).unwrap().ends_with("b:1=b:7000  # worker 3\n"));
        assert!(job(sparse, "").unwrap().1 && !job(list, "").unwrap().1);
        let both = r#"{"cluster":{"ps":["a:1"]},"sparseCluster":{"ps":["a:1"],"worker":{"0":"b:1"}}}"#;
        assert!(map(both).unwrap().starts_with("# 2 tasks"));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_place() {
        for (text, says) in [
            ("", "it is not JSON (EOF"),
            ("[]", "it has no cluster"),
            ("{}", "it has no cluster"),
            (r#"{"cluster":[]}"#, "cluster is a list, not an object of jobs"),
            (r#"{"cluster":{"ps":"a:1"}}"#, "cluster.ps is a string, not a list of addresses"),
            (r#"{"cluster":{"ps":[1]}}"#, "cluster.ps has a number at index 0, not a string"),
            (r#"{"cluster":{"ps":{"01":"a:1"}}}"#, "cluster.ps has the index \"01\", not a number"),
            (r#"{"cluster":{"p s":["a:1"]}}"#, "the job \"p s\", which is not a name"),
            (r#"{"cluster":{"ps":["a:1"]},"sparseCluster":{"ps":["b:1"]}}"#, "ps 0 is at a:1 and at b:1"),
        ] {
            let error = map(text).unwrap_err();
            assert!(error.starts_with("TF_CONFIG: ") && error.contains(says), "{text}: {error}");
            assert!(error.ends_with(r#"as in {"cluster":{"ps":["host:2222"]}}"#), "{error}");
        }
        let address = map(r#"{"cluster":{"ps":["a:1","b"]}}"#).unwrap_err();
        assert!(address.starts_with("TF_CONFIG: ps 1, \"b\": there is no port; "), "{address}");
        let none = map(r#"{"cluster":{"ps":[]}}"#).unwrap_err();
        assert_eq!(none, "TF_CONFIG names no task; write at least one");
        let twice = map(r#"{"cluster":{"chief":["a:1"],"worker":["a:1"]}}"#).unwrap_err();
        assert!(twice.starts_with("chief 0 and worker 0 are both at a:1; "), "{twice}");
    }

    proptest! {
        #[test]
        fn any_address_gives_a_map_without_remarks_or_an_error(address in "[a-c0-9:.\\[\\]%_#= \n-]{0,20}") {
            let text = serde_json::json!({"cluster": {"ps": [address]}}).to_string();
            if let Ok(map) = map(&text) {
                prop_assert_eq!(lint(&map), []);
            }
        }
    }
}
