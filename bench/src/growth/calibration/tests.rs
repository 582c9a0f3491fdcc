use serde_json::{Value, json};

use super::*;

const KNOWN: Costs = Costs {
    worker: EndCosts { write_ns: 900.0, message_ns: 300.0, byte_ns: 0.11, row_ns: 0.0 },
    ps: EndCosts { write_ns: 2_600.0, message_ns: 700.0, byte_ns: 0.14, row_ns: 0.0 },
};

/// A report as `sealane bench ps` would have written it if the known costs were all.
fn report(workers: usize, ps: usize, messages: f64, bytes: f64, ends: bool) -> Value {
    let input = Input {
        report: String::new(),
        variant: String::new(),
        workload: None,
        size: Size { workers, ps },
        mode: Mode::Async,
        compute_us: 0.0,
        steps_per_s: 1.0,
        messages,
        bytes,
        cpu_ns: 1.0,
        ends_ns: None,
    };
    let of_end = |end: &EndCosts| cost(&input.counts(), &[end.write_ns, end.message_ns, end.byte_ns]) / 1e6;
    let (of_worker, of_ps) = (of_end(&KNOWN.worker), of_end(&KNOWN.ps));
    let variant = "async, 40 request buffers, static, plan, polling";
    let mut rows = vec![
        json!({"system":"sealane","variant":variant,"metric":"steps_per_s","value":input.simulated(&KNOWN),"min":1.0,"max":2.0}),
        json!({"system":"sealane","variant":variant,"metric":"step_ms","p50":1.0,"p90":1.0,"p99":1.0,"p999":1.0,"max":1.0,"count":3}),
        json!({"system":"sealane","variant":variant,"metric":"messages_per_step","value":messages,"min":1.0,"max":2.0}),
        json!({"system":"sealane","variant":variant,"metric":"bytes_per_step","value":bytes,"min":1.0,"max":2.0}),
        json!({"system":"sealane","variant":variant,"metric":"cpu_ms_per_step","value":of_worker + of_ps,"min":1.0,"max":2.0}),
        json!({"system":"sealane","variant":"async, off","metric":"steps_per_s","value":3.0,"min":1.0,"max":2.0}),
        json!({"system":"grpc","variant":"unary","metric":"steps_per_s","value":3.0,"min":1.0,"max":2.0}),
    ];
    if ends {
        for (metric, value) in [("worker_cpu_ms_per_step", of_worker), ("ps_cpu_ms_per_step", of_ps)] {
            rows.push(json!({"system":"sealane","variant":variant,"metric":metric,"value":value,"min":1.0,"max":2.0}));
        }
    }
    json!({"schema":"sealane-bench/1","bench":"ps","link":"tcp","machine":{},
        "parameters":{"workers":workers,"ps":ps,"workload":"made_up","mode":"async","rounds":5},
        "results":rows,"ratios":[]})
}

fn reports(ends: bool) -> Vec<(String, String)> {
    let all = [
        report(50, 5, 140.0, 7e6, ends),
        report(50, 5, 120.0, 4e6, ends),
        report(20, 2, 440.0, 2e8, ends),
        report(200, 10, 180.0, 7e6, ends),
    ];
    all.iter().enumerate().map(|(index, report)| (format!("{index}.json"), report.to_string())).collect()
}

fn near(found: f64, known: f64) -> bool {
    (found / known - 1.0).abs() < 1e-6
}

#[test]
fn known_costs_are_found_and_foretell_what_was_measured() {
    let calibration = Calibration::of(&reports(true)).unwrap();
    for (found, known) in [(calibration.costs.worker, KNOWN.worker), (calibration.costs.ps, KNOWN.ps)] {
        assert!(near(found.write_ns, known.write_ns), "{found:?}");
        assert!(near(found.message_ns, known.message_ns), "{found:?}");
        assert!(near(found.byte_ns, known.byte_ns), "{found:?}");
    }
    assert!(calibration.ends_measured);
    assert_eq!((calibration.inputs.len(), calibration.left_out), (4, 4));
    assert!(calibration.worst_error_percent() < 0.01, "{calibration:?}");
    assert_eq!(calibration.from, ["0.json", "1.json", "2.json", "3.json"]);
}

#[test]
fn what_a_row_costs_is_found_in_reports_of_rows() {
    let (messages, tables) = (60.0, json!({"tables":26,"rows":100,"dim":16,"batch":2048,"skew":"uniform"}));
    // Every row of such small tables is named.
    let rows = 26.0 * 100.0;
    let bytes = rows * 64.0;
    let of_end = |end: &EndCosts, row_ns: f64| {
        let known = cost(&[2.0, messages, bytes], &[end.write_ns, end.message_ns, end.byte_ns]);
        (known + row_ns * rows) / 1e6
    };
    let figure = |metric: &str, value: f64| json!({"system":"sealane","variant":"rows","metric":metric,"value":value});
    let report = json!({"schema":"sealane-bench/1","bench":"rows","parameters":{"workers":1,"ps":1,"tables":[tables]},"results":[
        figure("steps_per_s", 1.0), figure("messages_per_step", messages), figure("bytes_per_step", bytes),
        figure("worker_cpu_ms_per_step", of_end(&KNOWN.worker, 25.0)), figure("ps_cpu_ms_per_step", of_end(&KNOWN.ps, 40.0))]});
    let all = [reports(true), vec![("rows.json".to_owned(), report.to_string())]].concat();
    let calibration = Calibration::of(&all).unwrap();
    let found = [calibration.costs.worker.row_ns, calibration.costs.ps.row_ns];
    assert!(near(found[0], 25.0) && near(found[1], 40.0), "{found:?}");
    assert_eq!(calibration.inputs.len(), 4);
    assert_eq!(Calibration::of(&reports(true)).unwrap().costs.ps.row_ns, 0.0);
    let mut wrong = report;
    wrong["bench"] = "ps".into();
    let text = Calibration::of(&[("rows.json".to_owned(), wrong.to_string())]).unwrap_err().to_string();
    assert_eq!(text, "rows.json: it is of ps with --rows; name one without, or one of rows");
}

#[test]
fn what_is_measured_of_both_ends_together_is_halved() {
    let calibration = Calibration::of(&reports(false)).unwrap();
    assert!(!calibration.ends_measured);
    assert_eq!(calibration.costs.worker, calibration.costs.ps);
    assert!(near(calibration.costs.ps.write_ns, (KNOWN.ps.write_ns + KNOWN.worker.write_ns) / 2.0));
    assert!(calibration.inputs.iter().all(|input| input.cpu_error_percent.abs() < 1e-3));
    // The ps was the slower half: as many steps as its equal halves allow were not made.
    assert!(calibration.worst_error_percent() > 5.0, "{calibration:?}");
}

#[test]
fn what_cannot_be_used_is_refused_with_its_place() {
    let refused = |change: fn(&mut Value)| {
        let mut value = report(50, 5, 140.0, 7e6, false);
        change(&mut value);
        let other = report(50, 5, 120.0, 4e6, false);
        let reports = [("good.json".to_owned(), other.to_string()), ("my.json".to_owned(), value.to_string())];
        let error = Calibration::of(&reports).unwrap_err();
        assert!(error.is_usage());
        error.to_string()
    };
    assert!(refused(|report| *report = json!([])).starts_with("my.json: "));
    let text = refused(|report| report["bench"] = "fuse".into());
    assert!(text.starts_with("my.json: it is a report of fuse in sealane-bench/1; name one of ps or rows"), "{text}");
    assert!(refused(|report| report["schema"] = "sealane-growth/1".into()).contains("sealane-growth/1"));
    let text = refused(|report| report["parameters"]["ps"] = 0.into());
    assert!(text.starts_with("my.json: parameters.ps is not 1 to "), "{text}");
    let text = refused(|report| report["parameters"]["workers"] = Value::Null);
    assert!(text.starts_with("my.json: parameters.workers is not"), "{text}");
    let text = refused(|report| report["results"][3]["metric"] = "rows".into());
    assert!(text.contains("has no bytes_per_step above 0; measure again"), "{text}");
    let text = refused(|report| report["results"][4]["value"] = 0.into());
    assert!(text.contains("has no cpu_ms_per_step above 0"), "{text}");
    let text = refused(|report| report["results"] = json!([]));
    assert!(text.starts_with("good.json, my.json: they have 1 measurements of sealane pulling by plan"), "{text}");
    assert!(Calibration::of(&[]).unwrap_err().to_string().contains("give 1 to 256"));
    let broken = Calibration::of(&[("my.json".to_owned(), "{".to_owned())]).unwrap_err().to_string();
    assert!(broken.starts_with("my.json: EOF while parsing") && broken.contains("sealane bench ps --json"), "{broken}");
}
