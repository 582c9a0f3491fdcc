//! A demo's report as a page.

use std::time::SystemTime;

use sealane_bench::{Column, Highlight, Line, Page, Picture, Section, Table};

use super::daemons::Setup;
use super::figures::{Flow, PeerLink, Point, Traffic, fusion_ratio};
use super::outcome::{Outcome, shown_bytes};
use crate::{Failure, command_line};

impl Outcome {
    /// The report of a demo that began at `made`; with what was found out until then if it failed.
    pub(super) fn to_page(&self, failure: Option<&Failure>, made: SystemTime) -> Page {
        let (workers, ps) = (self.parameters.workers, self.parameters.ps);
        let link = self.setup.link(self.network);
        let mut sections = Vec::new();
        if self.figures.steps > 0 {
            sections.extend([self.latency(), self.throughput(), self.per_task()]);
        }
        sections.extend(self.links());
        sections.push(self.what_was_asked_for());
        sections.push(Section::machine(&self.machine, [("congestion control", self.parameters.congestion.clone())]));
        Page {
            kind: "Sealane demo".to_owned(),
            title: format!("{}: {workers} workers and {ps} ps over {link}", self.workload),
            result: if failure.is_some() { self.until_then() } else { self.result() },
            failure: failure.map(ToString::to_string),
            command: command_line::this(),
            made,
            highlights: self.highlights(),
            sections,
        }
    }

    fn result(&self) -> String {
        let figures = &self.figures;
        let (tensors, bytes) = (figures.tensors_verified, shown_bytes(figures.bytes_verified));
        let [pull, push] = [figures.total.pull, figures.total.push].map(|flow| flow.gigabytes_per_s());
        format!(
            "Every byte of {tensors} tensors ({bytes}) arrived as it was sent. In {} steps the workers together pulled \
             {pull:.2}\u{a0}GB/s and pushed {push:.2}\u{a0}GB/s.",
            figures.steps
        )
    }

    fn until_then(&self) -> String {
        let figures = &self.figures;
        let bytes = shown_bytes(figures.bytes_verified);
        format!(
            "Until then {} of {} steps were done, and every byte of {} tensors ({bytes}) had been verified.",
            figures.steps, self.parameters.steps, figures.tensors_verified
        )
    }

    fn highlights(&self) -> Vec<Highlight> {
        let Traffic { pull, push } = self.figures.total;
        if self.figures.steps == 0 {
            return Vec::new();
        }
        let rate = |flow: Flow| format!("{:.2}", flow.gigabytes_per_s());
        let pull_ms = |quantile| format!("{:.2}", self.figures.latencies.value_at_quantile(quantile) as f64 / 1e6);
        let mut highlights = vec![
            Highlight::new("pull", rate(pull), "GB/s"),
            Highlight::new("push", rate(push), "GB/s"),
            Highlight::new("a pull, p50", pull_ms(0.5), "ms"),
            Highlight::new("a pull, p99", pull_ms(0.99), "ms"),
        ];
        let fusion =
            fusion_ratio(&self.peers).map(|ratio| Highlight::new("tensors a message", format!("{ratio:.2}"), ""));
        highlights.extend(fusion);
        highlights
    }

    fn latency(&self) -> Section {
        let window = self.parameters.window;
        let text = format!(
            "From the request of a tensor to its arrival. A worker has up to {window} requests in flight to each \
             ps, so most of this time a tensor waits for earlier ones."
        );
        let curve = ("all workers".to_owned(), self.figures.latencies.clone());
        Section::new("Time of a pull", text).picture(&Picture::Percentiles {
            what: "time of a pull".to_owned(),
            counted: "pulls".to_owned(),
            curves: vec![curve],
        })
    }

    fn throughput(&self) -> Section {
        let mean = match self.figures.steps_a_point {
            1 => "Each point is a step.".to_owned(),
            steps => format!("Each point is the mean of {steps} steps."),
        };
        let text = format!(
            "Combined throughput of all workers during transfers. In between, the tasks generate and compare their \
             bytes. {mean}"
        );
        let line = |series, name: &str, of: fn(&Traffic) -> Flow| {
            let point = |point: &Point| (point.ended.as_secs_f64(), of(&point.traffic).gigabytes_per_s());
            let parts = vec![self.figures.points.iter().map(point).collect()];
            Line { name: name.to_owned(), series, is_dashed: false, parts }
        };
        let lines = vec![line(0, "pull", |traffic| traffic.pull), line(1, "push", |traffic| traffic.push)];
        Section::new("Throughput over time", text).picture(&Picture::Course {
            label: "GB/s".to_owned(),
            across: "seconds since the first step".to_owned(),
            lines,
        })
    }

    fn per_task(&self) -> Section {
        Section::new("Workers", "Bytes moved by each of them both ways, and throughput.").table(self.tasks())
    }

    /// The links between engines, why they are of their kind, and how many tensors their messages have.
    fn links(&self) -> Option<Section> {
        let text = format!("A tensor's way: {}.", self.setup.path(self.network));
        if self.setup == Setup::OneDaemon {
            let none = "none: one daemon serves all tasks".to_owned();
            return Some(Section::new("Links", text).facts([("between engines", none)]));
        }
        let fusion = fusion_ratio(&self.peers).map_or_else(String::new, |ratio| {
            format!(
                " {ratio:.2} tensors per message. Messages are wire frames, including requests and releases; messages \
                 queued for a peer in one turn are sent in one write. The warm-up step is included."
            )
        });
        let columns = ["from", "to", "link", "why"].map(Column::text);
        let numbers = ["tensors", "messages", "writes", "tensors a message"].map(Column::number);
        let row = |link: &PeerLink| {
            let ratio =
                fusion_ratio(std::slice::from_ref(link)).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let counts = [link.tensors, link.messages, link.writes].map(|count| count.to_string());
            let texts = [&link.engine, &link.peer, &link.link, &link.reason].map(String::clone);
            texts.into_iter().chain(counts).chain([ratio]).collect()
        };
        let table = Table::new([&columns[..], &numbers].concat(), self.peers.iter().map(row));
        (!table.is_empty()).then(|| Section::new("Links", text + &fusion).table(table))
    }

    fn what_was_asked_for(&self) -> Section {
        let parameters = &self.parameters;
        let tensors = |count: usize, bytes| format!("{count} tensors, {}", shown_bytes(bytes));
        Section::new("Parameters", "").facts([
            ("workload", self.workload.clone()),
            ("workers", parameters.workers.to_string()),
            ("ps", parameters.ps.to_string()),
            ("steps, after the warm-up", format!("{}, after {}", parameters.steps, parameters.warmup_steps)),
            ("a worker pulls in a step", tensors(parameters.pull_tensors, parameters.pull_bytes)),
            ("a worker pushes in a step", tensors(parameters.push_tensors, parameters.push_bytes)),
            ("requests in flight to each peer", parameters.window.to_string()),
            ("engines", self.setup.mode().to_owned()),
            ("the whole demo", format!("{:.1} s", self.seconds)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::figures::Figures;
    use super::super::outcome::tests::outcome;
    use super::*;

    #[test]
    fn the_page_has_what_the_table_has_and_the_links_with_their_reasons() {
        let html = outcome().to_page(None, UNIX_EPOCH).to_html();
        for expected in [
            "tiny: 1 workers and 1 ps over verbs",
            "Every byte of 4 tensors (10.00 MB) arrived as it was sent.",
            "2.00\u{a0}GB/s and pushed 3.00\u{a0}GB/s",
            "time of a pull, ms",
            "seconds since the first step",
            "Each point is a step.",
            "worker0:2222",
            "a test says so",
            "3.00 tensors per message",
            "cubic",
        ] {
            assert!(html.contains(expected), "{expected} in {html}");
        }
        assert!(!html.contains("It failed"));
    }

    #[test]
    fn a_demo_that_failed_shows_why_and_what_there_was() {
        let failure = Failure::work("ps0:2222 failed in step <1>");
        let html = outcome().to_page(Some(&failure), UNIX_EPOCH).to_html();
        assert!(html.contains("It failed.</strong> ps0:2222 failed in step &#60;1&#62;"), "{html}");
        assert!(html.contains("Until then 1 of 1 steps were done, and every byte of 4 tensors (10.00 MB)"), "{html}");

        let nothing = Outcome { figures: Figures::new(1, 1), peers: Vec::new(), ..outcome() };
        let html = nothing.to_page(Some(&failure), UNIX_EPOCH).to_html();
        assert!(html.contains("Until then 0 of 1 steps were done"), "{html}");
        assert!(!html.contains("<svg") && !html.contains("tensors per message"), "{html}");
        assert!(html.contains("Machine"), "{html}");
    }
}
