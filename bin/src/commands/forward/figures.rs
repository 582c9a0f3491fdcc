//! What a forwarder has carried, over HTTP for Prometheus.

use std::fmt::Write as _;
use std::sync::Arc;

use hyper::StatusCode;
use sealane::{StreamFigures, Streams};

use crate::commands::daemon::metrics::{MEDIA_TYPE, Page, TEXT};

/// A family's name, kind, help, and the value that it shows.
type Family = (&'static str, &'static str, &'static str, fn(&StreamFigures) -> u64);

const FAMILIES: [Family; 5] = [
    ("connections_open", "gauge", "Connections that are carried now", |figures| figures.open),
    ("connections", "counter", "Connections that were carried", |figures| figures.opened),
    ("connections_reset", "counter", "Connections that broke off", |figures| figures.reset),
    ("sent_bytes", "counter", "Bytes carried to the peer", |figures| figures.bytes_sent),
    ("received_bytes", "counter", "Bytes carried from the peer", |figures| figures.bytes_received),
];

pub(super) fn page(path: &str, streams: &Streams) -> Page {
    match path {
        "/metrics" => (StatusCode::OK, MEDIA_TYPE, exposition(&streams.figures())),
        "/" => (StatusCode::OK, TEXT, "A Sealane forwarder. See /metrics.\n".into()),
        _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics\n".into()),
    }
}

fn exposition(figures: &[(Arc<str>, StreamFigures)]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in FAMILIES {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let _ = write!(text, "# HELP sealane_forward_{name} {help}.\n# TYPE sealane_forward_{name} {kind}\n");
        for (peer, figures) in figures {
            // A task's name is host:port, and needs no escaping.
            let _ = writeln!(text, "sealane_forward_{name}{suffix}{{peer=\"{peer}\"}} {}", value(figures));
        }
    }
    text + "# EOF\n"
}
