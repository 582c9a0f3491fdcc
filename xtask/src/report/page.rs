//! The report as one page, of which both files are made, and its pictures. Pure.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use sealane_bench::{Column, Highlight, Machine, Page, Section, Table, brief, utc};

use super::aims;
use super::chapters::{CHAPTERS, by_grpc, experiments};
use super::experiment::RESULTS;
use super::results::{Results, Run};
use crate::generated;

/// The report's two files, from the workspace's root.
pub(super) const MARKDOWN: &str = "bench/REPORT.md";
pub(super) const HTML: &str = "bench/REPORT.html";

/// What makes all of it.
const COMMAND: &str = "cargo xtask report";

/// Sections before the first chapter; none of them has a picture.
const BEFORE_CHAPTERS: usize = 2;

/// What the figures can show and what they cannot, each a paragraph.
const LIMITS: [&str; 5] = [
    "All of it ran on one virtual machine with two CPUs, over its loopback interface. Both sides of every exchange share memory, caches and the \
     kernel; there is no network card, no wire, no switch, no packet that is lost. What it can show is what software costs: instructions, system \
     calls, copies, messages and waiting for each other, of systems that do the same work in the same minute. What it cannot show is the speed of \
     a cluster.",
    "With many workers on two CPUs, the CPUs are always the limit: total steps a second say how much CPU a step costs, and a worker's step takes as \
     long as those of all workers together. On machines of their own, workers would compute while others exchange, and a network card, the incast \
     at a ps, or the slowest worker could be the first limit. The chapter on computed growth estimates that, with a model.",
    "The published figures beside ours come from other machines, other networks, other models and other versions. They say whether an effect is of \
     the same kind and size, not who is faster. DLRM and wide & deep are here the shapes of their tensors; nothing is trained but in the training run.",
    "Every figure is the median of its rounds, with the lowest and the highest round in brackets; percentiles are of all rounds together. Systems of \
     one command take turns within each round, and quotients are taken round by round, so that a machine that slows down slows both. Figures of two \
     commands were measured at different times: compare their quotients rather than their figures. A virtual machine's neighbours disturb it: \
     the last table says how busy the machine was with other things.",
    "A speed beside raw or gRPC is above 1 where Sealane is faster, of rates and of times alike. Steps a second are those of all workers together, a \
     step's time is that of one worker.",
];

/// The whole report.
pub(super) fn page(results: &Results) -> Page {
    let mut sections = vec![limits(), aims::section(results)];
    sections.extend(CHAPTERS.iter().map(|chapter| chapter.section(results)));
    sections.push(machine(results));
    sections.push(runs(results));
    let last = results.last().map_or(0, |run| run.provenance.unix_seconds);
    Page {
        kind: "Sealane measured".to_owned(),
        title: "The parameter-server experiment, and what Sealane's parts cost".to_owned(),
        result: summary(results),
        failure: None,
        command: COMMAND.to_owned(),
        made: UNIX_EPOCH + Duration::from_secs(last),
        highlights: highlights(results),
        sections,
    }
}

/// Both files and the pictures of the Markdown.
pub(super) fn files(root: &Path, results: &Results) -> Vec<generated::Page> {
    let page = page(results);
    let name = |number: usize| format!("{}.svg", CHAPTERS[number - BEFORE_CHAPTERS].name);
    let folder = Path::new(RESULTS).file_name().unwrap_or_default().to_string_lossy();
    let markdown = page.to_markdown(|number| format!("{folder}/{}", name(number)));
    let markdown =
        format!("<!-- Made by `{COMMAND}` from {RESULTS}: measure anew instead of changing it. -->\n{markdown}");
    let subtitle = results.iter().find_map(Run::machine).map_or_else(String::new, |machine| in_brief(&machine));
    let pictures = page.sections.iter().enumerate().filter_map(|(number, section)| {
        let svg = section.shown()?.to_svg(section.heading(), &subtitle);
        Some((root.join(RESULTS).join(name(number)), svg))
    });
    let mut files: Vec<_> = pictures.collect();
    files.push((root.join(MARKDOWN), markdown));
    files.push((root.join(HTML), page.to_html()));
    files
}

fn in_brief(machine: &Machine) -> String {
    format!("{}, {} CPUs, Linux {}", machine.cpu_model, machine.cpus, machine.kernel)
}

/// How much of it there is, and of when.
fn summary(results: &Results) -> String {
    let (all, there) = (experiments().count(), results.iter().count());
    let commits: BTreeSet<_> = results.iter().map(|run| run.provenance.commit.as_str()).collect();
    let days: BTreeSet<_> = results.iter().map(|run| day(run.provenance.unix_seconds)).collect();
    let Some(machine) = results.iter().find_map(Run::machine) else {
        return format!("None of {all} experiments has been measured yet.");
    };
    let these = |what: &str, of: Vec<String>| match of.as_slice() {
        [one] => format!("{what} {one}"),
        many => format!("{what}s {}", many.join(", ")),
    };
    let commits = these("commit", commits.into_iter().map(str::to_owned).collect());
    let days = days.into_iter().collect::<Vec<_>>().join(", ");
    let of =
        if all == there { format!("All {all} experiments were") } else { format!("{there} of {all} experiments were") };
    format!("{of} measured on {}, {days}, at {commits}.", in_brief(&machine))
}

/// The date alone.
pub(super) fn day(unix_seconds: u64) -> String {
    let moment = utc(UNIX_EPOCH + Duration::from_secs(unix_seconds));
    moment.split(' ').next().unwrap_or_default().to_owned()
}

fn highlights(results: &Results) -> Vec<Highlight> {
    let ratio = |experiment, name, of| Some(results.get(experiment)?.ratio(name, of)?.median);
    let figures = [
        ("200 workers + 10 ps: plan by gRPC", ratio("ps_grpc", "sealane/grpc", "steps_per_s")),
        ("training run by gRPC", by_grpc(results, "sealane").map(|spread| spread.median)),
        ("1000 x 64 B by gRPC, a call each", ratio("fuse_plan", "sealane/grpc", "steps_per_s")),
        ("64 B there and back: raw by Sealane", ratio("latency", "sealane/raw", "rtt_us.p50").map(|value| 1.0 / value)),
    ];
    let shown = figures.into_iter().filter_map(|(label, value)| Some(Highlight::new(label, brief(value?), "times")));
    shown.collect()
}

fn limits() -> Section {
    let [first, rest @ ..] = LIMITS;
    rest.into_iter().fold(Section::new("What these figures can show, and what they cannot", first), Section::note)
}

fn machine(results: &Results) -> Section {
    let run = results.iter().find(|run| run.machine().is_some());
    let (Some(run), Some(machine)) = (run, run.and_then(Run::machine)) else {
        return Section::new("Machine", "Nothing was measured.");
    };
    let provenance = &run.provenance;
    let more = [
        ("memory", format!("{} GiB", brief(provenance.memory_gib))),
        ("congestion control, unless said", provenance.congestion.clone()),
        ("compiler", provenance.compiler.clone()),
    ];
    Section::machine(&machine, more)
}

/// Every experiment with what is known of its making.
fn runs(results: &Results) -> Section {
    let row = |name: &str| {
        let Some(Run { provenance, .. }) = results.get(name) else {
            return [name, "not measured", "", "", ""].map(str::to_owned).to_vec();
        };
        let measured = utc(UNIX_EPOCH + Duration::from_secs(provenance.unix_seconds));
        let took = format!("{:.0} s", provenance.took_s);
        vec![name.to_owned(), measured, took, provenance.commit.clone(), format!("{:.1}", provenance.load)]
    };
    let text = "When each was measured, how long it took, and of which commit it was; a commit with + had changes that were not committed. Busy is \
                how many processes ran on the machine on average over the minute before, which should be none.";
    let heads = [
        Column::text("experiment"),
        Column::text("measured"),
        Column::number("took"),
        Column::text("commit"),
        Column::number("busy"),
    ];
    Section::new("Runs", text).table(Table::new(heads, experiments().map(|experiment| row(experiment.name))))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    fn markdown(results: &Results) -> String {
        let files = files(Path::new("/"), results);
        files.into_iter().find(|(path, _)| path.ends_with(MARKDOWN)).unwrap().1
    }

    #[test]
    fn every_table_is_there() {
        let text = markdown(&fixtures::results());
        for expected in [
            "All ",
            "| 40 request buffers, static | 2 | 2 | 2 |",
            "| published: mt-verbs by verbs (DLRM, RDMA) | equal | 1.25 | 1.48 |",
            "| 200 + 10 | 1 request buffer, dynamic | 10/s |",
            "| fuse plan | 4 | 40/s |",
            "| fuse plan | 4 | 0.25 |",
            "| published: FuseRecv by none (wide & deep) | 1.4 | 0.45 |",
            "| parking | 0.5 | 5/s |",
            "| 2000 | 50/s |",
            "| 200 workers + 10 ps | 0.9 | 90/s |",
            "| 10 k + 500 | 250 k | 40 ms | 90 ms | 0.95 |",
            "| ps_cpu | two shards a ps: 1.7 |",
            "off by at most 4.5 %",
            "| ps: message_ns | 310 |",
            "| dlrm_kaggle | 50 + 5 | v | 100 | 95.5 | -4.5 |",
            "| sealane | 700/s (690 to 710) | 3.5 (3.2 to 3.9) | 100/s (90 to 110) | 2 (1.9 to 2.1) |",
            "The losses of all systems are equal to the last bit",
            "| 64 B there and back, p50 | 8 µs | 6.4 µs | 24 µs | 0.8 | 3 |",
            "| 1000 x 64 B by a plan; gRPC: a call each | 0.03 ms |",
            "| a plan | 9 |",
            "| nothing reaches the tasks of its host for | 190 ms |",
            "| TLS 1.3, 64 B there and back, p50 | 8 µs | 7.14 µs | 1.12 |",
            "| 1 MiB tensors, window 2, write | 10 GB/s | 1 |",
            "| latency | 2025-11-20 20:03:11 UTC | 12 s | 0123abc | 0.1 |",
            "congestion control, unless said | bbr",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!text.contains("ot measured") && !text.contains("another command"), "{text}");
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_is_invented() {
        let results = fixtures::results().without("ps_fusion");
        let text = markdown(&results);
        assert!(text.contains("\nNot measured: ps_fusion.\n"), "{text}");
        assert!(text.contains("| ps_fusion | not measured |"), "{text}");
        assert!(!text.contains("| fuse receive"), "{text}");
        let empty = markdown(&Results::default());
        assert!(empty.contains("None of "), "{empty}");
        for experiment in experiments() {
            assert!(empty.contains(&format!("| {} | not measured |", experiment.name)), "{}", experiment.name);
        }
        // No figure of ours: only aims and what others have published.
        for unit in [" µs", "GB/s |", " ms |", "/s |"] {
            assert!(!empty.contains(unit), "{unit} in {empty}");
        }
    }

    #[test]
    fn a_result_of_another_command_is_named() {
        let mut run = fixtures::results().get("restart").unwrap().clone();
        run.provenance.command = "sealane bench restart --rounds 1".to_owned();
        let text = markdown(&Results::of([("restart", run)]));
        assert!(text.contains("\nsealane bench restart --rounds 1\n"), "{text}");
        assert!(text.contains("Measured by another command than the report has today: restart."), "{text}");
    }

    #[test]
    fn pictures_are_files_that_the_markdown_shows() {
        let files = files(Path::new("/"), &fixtures::results());
        let text = &files.iter().find(|(path, _)| path.ends_with(MARKDOWN)).unwrap().1;
        let pictures: Vec<_> =
            files.iter().filter(|(path, _)| path.extension().is_some_and(|extension| extension == "svg")).collect();
        assert!(pictures.len() > 8, "{}", pictures.len());
        for (path, svg) in &pictures {
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(text.contains(&format!("](results/{name})")), "{name}");
            assert!(svg.starts_with("<svg ") && svg.contains("Abacus"), "{name}");
        }
        assert_eq!(text.matches("![").count(), pictures.len());
    }

    #[test]
    fn figures_of_several_commits_are_told_apart() {
        let one = fixtures::results();
        assert!(summary(&one).ends_with("2025-11-20, at commit 0123abc."), "{}", summary(&one));
        let mut run = one.get("latency").unwrap().clone();
        run.provenance.commit = "9999fff+".to_owned();
        let two = Results::of([("latency", run), ("rate", one.get("rate").unwrap().clone())]);
        assert!(summary(&two).ends_with("at commits 0123abc, 9999fff+."), "{}", summary(&two));
    }
}
