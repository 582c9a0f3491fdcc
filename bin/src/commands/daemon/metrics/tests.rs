//! Every metric that the dashboard queries is exported, with the labels that it uses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use hyper::StatusCode;

use super::exposition::exposition;
use super::{TEXT, judged};
use crate::figures::{State, example};

const DASHBOARD: &str = include_str!("../../../../../deploy/grafana/sealane.json");

/// The labels that the scraper adds.
const OF_SCRAPER: [&str; 2] = ["instance", "job"];

#[test]
fn every_histogram_ends_with_the_bucket_of_all_values() {
    let text = exposition(example()).unwrap();
    let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
    let (mut last, mut ends) = (None, 0);
    for line in text.lines() {
        match (line.contains("_bucket{"), last.take()) {
            (true, _) => last = Some(line),
            (false, None) => {}
            (false, Some(end)) => {
                assert!(end.contains("le=\"+Inf\""), "{end}");
                let name = end.split("_bucket{").next().unwrap();
                let counts = text.lines().filter(|line| line.starts_with(&format!("{name}_count"))).map(value);
                assert!(counts.into_iter().any(|count| count == value(end)), "{end}");
                ends += 1;
            }
        }
    }
    assert_eq!(ends, text.lines().filter(|line| line.ends_with(" histogram")).count());
    assert!(ends >= 2, "{text}");
}

/// The names of all samples, each with its label names.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let text = exposition(example()).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| selector(line.rsplit_once(' ').unwrap().0)).collect()
}

/// A metric's name, and the label names in the braces after it, if any.
fn selector(text: &str) -> (String, BTreeSet<String>) {
    let end =
        text.find(|character: char| !(character.is_ascii_alphanumeric() || character == '_')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
    // Label values contain commas as well, but no quotes.
    let outside_quotes = inside.split('"').step_by(2).collect::<String>();
    let labels = outside_quotes.split(',').map(|label| label.trim_end_matches(['=', '~', '!']).trim().to_owned());
    (name.to_owned(), labels.filter(|label| !label.is_empty()).collect())
}

fn queries(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value) {
                ("expr" | "definition" | "query", Value::String(query)) => vec![query.as_str()],
                _ => queries(value),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(queries).collect(),
        _ => Vec::new(),
    }
}

/// Every place in a query where a metric is named.
fn metrics(query: &str) -> impl Iterator<Item = (String, BTreeSet<String>)> {
    query.match_indices("sealane_").map(|(at, _)| selector(&query[at..]))
}

#[test]
fn every_metric_and_label_of_the_dashboard_is_exported() {
    let (dashboard, exported): (Value, _) = (serde_json::from_str(DASHBOARD).unwrap(), exported());
    let asked: Vec<_> = queries(&dashboard).into_iter().flat_map(metrics).collect();
    assert!(asked.len() > 40, "{asked:?}");
    for (name, labels) in asked {
        let there = exported.get(&name).unwrap_or_else(|| panic!("{name} is not exported; these are: {exported:#?}"));
        for label in labels {
            assert!(
                there.contains(&label) || OF_SCRAPER.contains(&label.as_str()),
                "{name} has no label {label}: {there:?}"
            );
        }
    }
}

#[test]
fn stalled_control_thread_is_unhealthy_with_its_reason() {
    let page = |state, fault: Option<&str>| judged(state, fault.map(str::to_owned), |state| state != State::Failed);
    assert_eq!(page(State::Serving, None), (StatusCode::OK, TEXT, "serving\n".into()));
    assert_eq!(page(State::Failed, None).0, StatusCode::SERVICE_UNAVAILABLE);
    let stalled = page(State::Serving, Some("it hangs"));
    assert_eq!(stalled, (StatusCode::SERVICE_UNAVAILABLE, TEXT, "serving; it hangs\n".into()));
}

#[test]
fn every_panel_says_what_it_shows_and_asks_the_chosen_prometheus() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "that of Grafana 11");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["title"].is_string() && panel["description"].is_string(), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(target["expr"].as_str().unwrap().contains("instance=~\"$instance\""), "{panel}");
        }
    }
    let variables: Vec<_> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(variables, ["datasource", "instance"]);
}

#[test]
fn selectors_are_read() {
    let (name, labels) = selector("sealane_tensors_total{instance=~\"$instance\", direction=\"a,b\"}[5m]) / 2");
    assert_eq!(name, "sealane_tensors_total");
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), ["direction", "instance"]);
    assert_eq!(selector("sealane_uptime_seconds, instance)"), ("sealane_uptime_seconds".to_owned(), BTreeSet::new()));
}
