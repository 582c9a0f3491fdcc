use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::plan::{Size, Tables};

fn plan() -> GrowthPlan {
    let sizes = vec![Size { workers: 10, ps: 1 }, Size { workers: 40, ps: 4 }];
    let variables = Variables { pull: vec![20_000; 12], push: vec![20_000; 12] };
    GrowthPlan { sizes, ..GrowthPlan::new("made_up", variables) }
}

fn limit_of(change: fn(&mut GrowthPlan)) -> SizeRow {
    limit_by(change)
}

fn limit_by(change: impl FnOnce(&mut GrowthPlan)) -> SizeRow {
    let mut plan = GrowthPlan { sizes: vec![Size { workers: 40, ps: 4 }], ..plan() };
    change(&mut plan);
    grow(&plan, &mut Progress::silent()).unwrap().sizes.remove(0)
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn the_report_has_the_documented_shape() {
    let report = grow(&plan(), &mut Progress::silent()).unwrap();
    let made: Value = serde_json::from_str(&report.to_json()).unwrap();
    let documented = json!({"schema":"sealane-growth/1","costs":{"calibrated_from":[],"worst_error_percent":null},
        "sizes":[{"workers":10,"ps":1,"steps_per_s":1.0,"step_ms":{"p50":1.0,"p99":1.0},
            "utilisation":{"ps_cpu":1.0,"ps_nic":0.1,"worker_cpu":0.1,"worker_nic":0.1},"efficiency":1.0,
            "first_limit":"ps_cpu","moved_by":{"what":"2 shards a ps","factor":1.7}}]});
    assert!(keys(&made).is_superset(&keys(&documented)));
    assert_eq!(made["schema"], documented["schema"]);
    assert!(keys(&made["costs"]).is_superset(&keys(&documented["costs"])), "{made}");
    let (size, expected) = (&made["sizes"][0], &documented["sizes"][0]);
    assert!(keys(size).is_superset(&keys(expected)), "{size}");
    for field in ["step_ms", "utilisation", "moved_by"] {
        assert_eq!(keys(&size[field]), keys(&expected[field]));
    }
    assert_eq!((&size["first_limit"], &size["efficiency"]), (&json!("ps_cpu"), &json!(1.0)));
    assert_eq!(made["costs"]["worker"]["byte_ns"], json!(Costs::default().worker.byte_ns));
    let again = grow(&plan(), &mut Progress::silent()).unwrap();
    assert_eq!(again.to_json(), report.to_json(), "the same input gives the same");
}

#[test]
fn the_table_says_what_was_simulated_and_what_came_of_it() {
    let text = grow(&plan(), &mut Progress::silent()).unwrap().to_table();
    for expected in
        ["growth on virtual time, async, made_up: 8 workers a host", "the program's own costs", "ps_cpu", "first limit"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(!text.contains("links_max"), "{text}");
}

#[test]
fn each_resource_can_be_the_first_limit_and_more_of_it_moves_it() {
    let row = limit_of(|plan| plan.workers_per_host = 2);
    assert_eq!(row.first_limit, FirstLimit::PsCpu, "{row:?}");
    assert!(row.moved_by.is_some_and(|moved| moved.factor > 1.3));
    let row = limit_of(|plan| plan.nic_gbit_per_s = 1.0);
    assert!(matches!(row.first_limit, FirstLimit::PsNic | FirstLimit::WorkerNic), "{row:?}");
    let row = limit_of(|plan| (plan.nic_gbit_per_s, plan.workers_per_host) = (1.0, 1));
    assert_eq!(row.first_limit, FirstLimit::PsNic, "{row:?}");
    let row = limit_of(|plan| (plan.nic_gbit_per_s, plan.workers_per_host) = (1.0, 40));
    assert_eq!(row.first_limit, FirstLimit::WorkerNic, "{row:?}");
    assert!(row.moved_by.is_some_and(|moved| moved.factor > 1.3));
    let row = limit_of(|plan| (plan.workers_per_host, plan.ps_shards) = (40, 8));
    assert_eq!(row.first_limit, FirstLimit::WorkerCpu, "{row:?}");
    let row = limit_of(|plan| plan.propagation_us = 20_000.0);
    assert_eq!(
        (row.first_limit, row.moved_by.unwrap().what.as_str()),
        (FirstLimit::Latency, "10000 µs of propagation")
    );
    let row = limit_of(|plan| plan.course.compute_us = 50_000.0);
    assert_eq!((row.first_limit, row.moved_by), (FirstLimit::Compute, None));
}

#[test]
fn a_large_variable_is_moved_by_slices_and_not_by_more_ps() {
    let row = limit_of(|plan| {
        plan.variables.pull[0] = 4_000_000;
        plan.variables.push[0] = 4_000_000;
    });
    assert!(row.imbalance > 3.0, "{row:?}");
    assert!(row.moved_by.as_ref().is_some_and(|moved| moved.what.starts_with("variables in slices of ")), "{row:?}");
    let more = row.tried.iter().find(|moved| moved.what == "8 ps").unwrap();
    assert!(more.factor < 1.1, "{row:?}");
}

#[test]
fn rows_of_many_tables_are_one_request_a_ps() {
    let tables = Tables { tables: 26, rows: 100_000, batch: 128, ..Tables::default() };
    let change = |plan: &mut GrowthPlan| {
        plan.variables = Variables { pull: vec![64], push: vec![64] };
        plan.lookups = Lookups::new(vec![tables]);
        plan.workers_per_host = 2;
    };
    let row = limit_by(change);
    let rows = row.rows.unwrap();
    // 26 tables on four ps.
    assert_eq!(rows.requests_per_step, 4.0, "{rows:?}");
    let whole = limit_by(|plan| {
        change(plan);
        plan.variables.pull.extend([tables.rows * 64; 26]);
        plan.lookups = Lookups::default();
    });
    assert!(whole.rows.is_none() && whole.steps_per_s < row.steps_per_s / 10.0, "{whole:?}");
    let costly = |row_ns| {
        limit_by(|plan| {
            change(plan);
            plan.calibration = Some(calibrated(row_ns));
        })
    };
    assert!(costly(1_000.0).steps_per_s < costly(0.0).steps_per_s / 2.0);
    let plan = GrowthPlan { lookups: Lookups::new(vec![tables]), ..plan() };
    let text = grow(&plan, &mut Progress::silent()).unwrap().to_table();
    for expected in [
        "made_up and rows of 26 tables of 100000 rows",
        "requests/s a shard",
        "A row costs no more here than its bytes",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

/// The program's own costs, and what a row costs.
fn calibrated(row_ns: f64) -> Calibration {
    let with_rows = |end: EndCosts| EndCosts { row_ns, ..end };
    let own = Costs::default();
    let costs = Costs { worker: with_rows(own.worker), ps: with_rows(own.ps) };
    Calibration { costs, from: Vec::new(), inputs: Vec::new(), ends_measured: true, left_out: 0 }
}

#[test]
fn a_wrong_plan_is_not_simulated() {
    let plan = GrowthPlan { workers_per_host: 0, ..plan() };
    let error = grow(&plan, &mut Progress::silent()).unwrap_err();
    assert_eq!(error.to_string(), "--workers-per-host is 0; give 1 to 1024");
}
