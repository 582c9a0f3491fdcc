//! What this experiment set out to reach, beside what was measured. Pure.

use sealane_bench::{Column, Section, Spread, Table};

use super::chapters::{by_grpc, kept};
use super::figure::{NOT_MEASURED, quotient};
use super::results::{Results, Run, certain};

/// A quotient that was to be reached.
struct Aim {
    what: &'static str,
    at_least: f64,
    measured: fn(&Results) -> Option<Spread>,
}

const AIMS: [Aim; 7] = [
    Aim {
        what: "steps a second at 200 workers + 10 ps: 40 request buffers by one, DLRM, with static registration",
        at_least: 1.5,
        measured: buffers,
    },
    Aim {
        what: "steps a second at 200 + 10, wide & deep: a plan by no fusion",
        at_least: 1.4,
        measured: |results| variant(results.get("ps_fusion")?, &["fuse plan"]),
    },
    Aim {
        what: "steps a second at 200 + 10, wide & deep: a plan by gRPC with a call a tensor",
        at_least: 5.0,
        measured: |results| results.get("ps_grpc")?.ratio("sealane/grpc", "steps_per_s"),
    },
    Aim {
        what: "the same by gRPC with all tensors of a ps in one message",
        at_least: 5.0,
        measured: |results| results.get("ps_grpc")?.ratio("sealane/grpc, async, one message, polling", "steps_per_s"),
    },
    Aim { what: "steps a second in all: 200 workers + 10 ps by 50 + 5", at_least: 0.85, measured: kept },
    Aim {
        what: "steps a second of the training run, the exchange alone, all tasks at the daemon of their host: by gRPC",
        at_least: 3.0,
        measured: |results| by_grpc(results, "sealane"),
    },
    Aim {
        what: "the same through two daemons, with TCP between them: by gRPC",
        at_least: 3.0,
        measured: |results| by_grpc(results, "sealane-tcp"),
    },
];

/// Steps a second of the variant that has all these parts, by those of the first variant.
fn variant(run: &Run, parts: &[&str]) -> Option<Spread> {
    let has_all = |name: &&String| parts.iter().all(|part| name.split(", ").any(|of| of == *part));
    run.to_first(run.variants("sealane").iter().find(has_all)?, "steps_per_s")
}

/// 40 request buffers by one. The program compares with the first variant, whose registration is dynamic, so this is a
/// quotient of medians.
fn buffers(results: &Results) -> Option<Spread> {
    let run = results.get("ps_buffers_200")?;
    let both = variant(run, &["40 request buffers", "static"])?;
    let one = variant(run, &["1 request buffer", "static"])?;
    Some(certain(both.median / one.median))
}

/// Every aim, and whether it was reached.
pub(super) fn section(results: &Results) -> Section {
    let row = |aim: &Aim| {
        let measured = (aim.measured)(results);
        let reached = match measured {
            None => "",
            Some(spread) if spread.median >= aim.at_least => "yes",
            Some(_) => "no",
        };
        let shown = measured.map_or_else(|| NOT_MEASURED.to_owned(), quotient);
        vec![aim.what.to_owned(), aim.at_least.to_string(), shown, reached.to_owned()]
    };
    let columns =
        [Column::text("what"), Column::number("at least"), Column::number("measured"), Column::text("reached")];
    let text = "What the experiment was to show, written down before it was made.";
    Section::new("Aims", text).table(Table::new(columns, AIMS.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn an_aim_is_reached_or_not_or_not_measured() {
        let table = |results: &Results| {
            let page = fixtures::page_of(section(results));
            page.to_markdown(|_| String::new())
        };
        let all = table(&fixtures::results());
        assert!(all.contains("static registration | 1.5 | 2 | yes |"), "{all}");
        assert!(all.contains("a plan by no fusion | 1.4 | 4 | yes |"), "{all}");
        assert!(all.contains("a plan by gRPC with a call a tensor | 5 | 2 | no |"), "{all}");
        assert!(all.contains("200 workers + 10 ps by 50 + 5 | 0.85 | 0.9 | yes |"), "{all}");
        assert!(all.contains("of their host: by gRPC | 3 | 3.5 (3.2 to 3.9) | yes |"), "{all}");
        assert_eq!(table(&Results::default()).matches("| not measured |  |").count(), AIMS.len());
    }
}
