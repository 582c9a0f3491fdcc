//! A job whose tasks are reached through forwarders: what its programs get instead of the tasks' addresses.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::Failure;
use crate::commands::map::CLUSTERS;
use crate::settings::TF_CONFIG;

/// The job's `TF_CONFIG` with the address of each other task replaced by its local address; without one, the tasks and their local
/// addresses. One line of JSON.
///
/// # Errors
/// It is not `TF_CONFIG`, or names a task that is not in the endpoint map.
pub(super) fn rewritten(
    config: Option<&str>,
    task: &str,
    addresses: &BTreeMap<String, String>,
) -> Result<String, Failure> {
    let Some(text) = config.filter(|text| !text.trim().is_empty()) else {
        return Ok(format!("{}\n", json!(addresses)));
    };
    let mut config: Json = serde_json::from_str(text)
        .map_err(|error| Failure::input(format!("{TF_CONFIG} is not JSON ({error}); correct it, or unset it")))?;
    for name in CLUSTERS {
        let Some(jobs) = config.get_mut(name).and_then(Json::as_object_mut) else { continue };
        for address in jobs.values_mut().flat_map(members) {
            match address.as_str().and_then(|address| addresses.get(address)) {
                Some(local) => *address = json!(local),
                None if *address == task => {}
                None => {
                    return Err(Failure::input(format!(
                        "{TF_CONFIG} has the task {address} that the endpoint map has not; add it there"
                    )));
                }
            }
        }
    }
    Ok(format!("{config}\n"))
}

/// The addresses of a job: a list, or an object by index.
fn members(job: &mut Json) -> Box<dyn Iterator<Item = &mut Json> + '_> {
    match job {
        Json::Array(list) => Box::new(list.iter_mut()),
        Json::Object(by_index) => Box::new(by_index.values_mut()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> BTreeMap<String, String> {
        let local = |port: u16| format!("127.0.0.1:{port}");
        BTreeMap::from([("ps0:2222".to_owned(), local(1)), ("ps1:2222".to_owned(), local(2))])
    }

    #[test]
    fn other_tasks_are_named_by_their_local_addresses_and_all_else_stays() {
        let config =
            r#"{"cluster":{"ps":["ps0:2222","ps1:2222"],"worker":["w:1"]},"task":{"type":"worker","index":0},"x":[1]}"#;
        let told = rewritten(Some(config), "w:1", &addresses()).unwrap();
        let expected = config.replace("ps0:2222", "127.0.0.1:1").replace("ps1:2222", "127.0.0.1:2");
        let read = |text: &str| serde_json::from_str::<Json>(text).unwrap();
        assert_eq!(read(&told), read(&expected));
        assert_eq!(told.matches('\n').count(), 1);
        let sparse = r#"{"sparseCluster":{"ps":["ps0:2222"],"worker":{"3":"w:1"}}}"#;
        let told = rewritten(Some(sparse), "w:1", &addresses()).unwrap();
        assert_eq!(read(&told)["sparseCluster"], json!({"ps": ["127.0.0.1:1"], "worker": {"3": "w:1"}}));
    }

    #[test]
    fn without_a_job_the_addresses_are_told() {
        for nothing in [None, Some(" ")] {
            let told = rewritten(nothing, "w:1", &addresses()).unwrap();
            assert_eq!(told, "{\"ps0:2222\":\"127.0.0.1:1\",\"ps1:2222\":\"127.0.0.1:2\"}\n");
        }
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        for (config, said) in
            [("{", "not JSON"), (r#"{"cluster":{"ps":["ps7:1"]}}"#, "ps7:1"), (r#"{"cluster":{"ps":[3]}}"#, "3")]
        {
            assert!(rewritten(Some(config), "w:1", &addresses()).unwrap_err().to_string().contains(said));
        }
    }
}
