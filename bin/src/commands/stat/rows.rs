//! What `sealane stat` shows: figures as rows of text under headings.

use std::collections::BTreeMap;
use std::time::Duration;

use sealane_fusion::metrics::TableCounters;
use sealane_runtime::HistogramSnapshot;

use crate::figures::{Client, Credentials, Figures, Peer, Rates, Shard, Traffic};
use crate::table::{Column, Table};
use crate::wording::{counted, scaled};

/// Columns of texts, followed by columns of numbers.
pub(super) fn columns(texts: &[&str], numbers: &[&str]) -> Vec<Column> {
    texts.iter().map(|head| Column::text(head)).chain(numbers.iter().map(|head| Column::number(head))).collect()
}

/// A table with a title, for a file or a terminal of 80 columns or more; empty without rows.
fn titled(title: &str, columns: Vec<Column>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let table = Table::new(columns, rows);
    if table.is_empty() { String::new() } else { format!("\n{title}\n{}", table.to_text()) }
}

/// Everything that `sealane stat` prints; rates are those since `before`, calls those since `calls_before`, or since the start.
pub(super) fn text(now: &Figures, before: &Figures, calls_before: Option<&Figures>) -> String {
    let (before, calls) = (Some(before), calls(now, calls_before));
    let tables =
        [shards(now, before), calls, peers(now, before), clients(now), lanes(now), traffic(now), published(now)];
    head(now).join("\n") + "\n" + &tables.concat()
}

/// Describes the daemon in three lines.
fn head(now: &Figures) -> [String; 3] {
    let uptime = span(Duration::from_millis(now.uptime_ms));
    let clients = now.shards.first().map_or(0, |shard| shard.clients.len());
    let failed = match now.shards.iter().map(|shard| shard.counters.clients_failed).sum::<u64>() {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    let (tasks, shards) = (counted(now.tasks.len(), "task"), counted(now.shards.len(), "shard"));
    let clients = counted(clients, "client");
    let job = now.job.as_ref().map_or_else(String::new, |job| format!(" job '{job}'"));
    [
        format!("sealane {}, process {}, {}{job} for {uptime}", now.version, now.pid, now.state),
        format!("{tasks} at {}; {shards} on {}; {clients}{failed}", now.addresses.join(", "), now.executor),
        credentials(&now.credentials),
    ]
}

fn credentials(of: &Credentials) -> String {
    let left = match of.days_left {
        Some(days) if days < 0.0 => "; its certificate has expired".into(),
        Some(days) => format!("; its certificate is valid for {days:.1} days"),
        None => String::new(),
    };
    let refused = match of.refused {
        0 => String::new(),
        times => format!("; new files were refused {}, see the log", counted(times as usize, "time")),
    };
    format!("peer authentication: {}{left}{refused}", of.shown)
}

fn shards(now: &Figures, before: Option<&Figures>) -> String {
    let row = |shard: &Shard| {
        let rates = Rates::of_shard(now, shard, before);
        let slab = |pool: &str| {
            let found = shard.slabs.iter().find(|slab| slab.pool == pool);
            found.map_or_else(|| "-".into(), |slab| percent(slab.used_bytes as f64 / slab.size_bytes.max(1) as f64))
        };
        vec![
            shard.shard.to_string(),
            shard.cpu.map_or_else(|| "-".into(), |cpu| cpu.to_string()),
            percent(rates.busy),
            quantile(&turns(now, shard, before), 0.99),
            count(rates.tensors_received),
            count(rates.tensors_sent),
            bytes(rates.bytes_received),
            bytes(rates.bytes_sent),
            shard.counters.parked.to_string(),
            shard.counters.pending_sends.to_string(),
            slab("send"),
            slab("receive"),
        ]
    };
    let columns = columns(
        &[],
        &["shard", "cpu", "busy", "turn p99", "in/s", "out/s", "bytes in/s", "out/s", "parked", "held", "send", "recv"],
    );
    titled("Shards", columns, now.shards.iter().map(row))
}

fn turns(now: &Figures, shard: &Shard, before: Option<&Figures>) -> HistogramSnapshot {
    let then = now.earlier_shard(before, shard.shard);
    then.map_or_else(|| shard.load.busy_turns.clone(), |then| shard.load.busy_turns.since(&then.load.busy_turns))
}

/// How long calls took since `before`, or since the start, over all shards.
fn calls(now: &Figures, before: Option<&Figures>) -> String {
    let rows = by_kind(now, before).into_iter().map(|(operation, link, took)| {
        let mean = duration(took.sum().checked_div(took.count()).unwrap_or(0));
        vec![operation, link, count(took.count() as f64), quantile(&took, 0.5), quantile(&took, 0.99), mean]
    });
    let columns = columns(&["call", "over"], &["ended", "p50", "p99", "mean"]);
    titled("Calls", columns, rows)
}

/// Durations by kind of call and way, over all shards.
fn by_kind(now: &Figures, before: Option<&Figures>) -> Vec<(String, String, HistogramSnapshot)> {
    let mut kinds: Vec<(String, String, HistogramSnapshot)> = Vec::new();
    for shard in &now.shards {
        let then = now.earlier_shard(before, shard.shard);
        for calls in &shard.calls {
            let earlier = then.and_then(|then| {
                then.calls.iter().find(|then| (&then.operation, &then.link) == (&calls.operation, &calls.link))
            });
            let took = earlier.map_or_else(|| calls.took.clone(), |then| calls.took.since(&then.took));
            match kinds.iter_mut().find(|kind| (&kind.0, &kind.1) == (&calls.operation, &calls.link)) {
                Some((.., sum)) => *sum += &took,
                None => kinds.push((calls.operation.clone(), calls.link.clone(), took)),
            }
        }
    }
    kinds
}

fn peers(now: &Figures, before: Option<&Figures>) -> String {
    let passed_ms = now.uptime_ms - now.earlier(before).map_or(0, |before| before.uptime_ms);
    let seconds = passed_ms.max(1) as f64 / 1e3;
    let row = |shard: &Shard, peer: &Peer| {
        let then = now.earlier_shard(before, shard.shard).and_then(|then| {
            then.peers.iter().find(|then| (&then.peer, then.peer_shard) == (&peer.peer, peer.peer_shard))
        });
        let grown = |of: fn(&Peer) -> u64| of(peer).saturating_sub(then.map_or(0, of)) as f64 / seconds;
        let counters = &peer.counters;
        let fused = counters.tensors_sent + counters.tensors_received;
        let messages = (counters.messages_sent + counters.messages_received).max(1);
        vec![
            peer.peer.clone(),
            format!("{}:{}", shard.shard, peer.peer_shard.map_or_else(|| "?".into(), |shard| shard.to_string())),
            peer.link.clone().unwrap_or_else(|| "-".into()),
            peer.state.clone(),
            bytes(grown(|peer| peer.counters.bytes_received)),
            bytes(grown(|peer| peer.counters.bytes_sent)),
            counters.in_flight.to_string(),
            format!("{:.1}", fused as f64 / messages as f64),
            counters.links_lost.to_string(),
            why(peer),
        ]
    };
    let columns = [
        columns(&["peer", "shards", "path", "state"], &["in/s", "out/s", "asked", "fused", "lost"]),
        columns(&["why"], &[]),
    ]
    .concat();
    titled("Peers", columns, now.shards.iter().flat_map(|shard| shard.peers.iter().map(|peer| row(shard, peer))))
}

/// Why the path is as it is: the reason of a link that is up, else how it ended.
fn why(peer: &Peer) -> String {
    match (peer.state.as_str(), peer.last_error.as_str()) {
        ("up", _) | (_, "") => peer.reason.clone(),
        (_, error) => error.to_owned(),
    }
}

fn clients(now: &Figures) -> String {
    let mut rows: Vec<(String, i32, [u64; 6])> = Vec::new();
    for client in now.shards.iter().flat_map(|shard| &shard.clients) {
        let of = &client.counters;
        let more =
            [of.tensors_received, of.tensors_sent, of.bytes_received, of.bytes_sent, of.pinned_bytes, of.under_way];
        match rows.iter_mut().find(|row| (&row.0, row.1) == (&client.task, client.pid)) {
            Some((.., sum)) => sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more),
            None => rows.push((client.task.clone(), client.pid, more)),
        }
    }
    let row =
        |(task, pid, [received, sent, bytes_received, bytes_sent, pinned, under_way]): (String, i32, [u64; 6])| {
            vec![
                task,
                pid.to_string(),
                count(received as f64),
                count(sent as f64),
                bytes(bytes_received as f64),
                bytes(bytes_sent as f64),
                bytes(pinned as f64),
                under_way.to_string(),
            ]
        };
    let columns = columns(&["task"], &["pid", "tensors in", "out", "bytes in", "out", "pinned", "calls"]);
    titled("Clients of this host", columns, rows.into_iter().map(row))
}

/// Pairs of clients whose small tensors bypass the daemon.
fn lanes(now: &Figures) -> String {
    titled(
        "Direct lanes between clients",
        columns(&["task", "task"], &[]),
        now.direct_lanes.iter().map(|pair| pair.to_vec()),
    )
}

/// What has moved between tasks of this host and their peers: tensors and bytes by Sealane, those by other transports, and
/// Sealane's share of both.
fn traffic(now: &Figures) -> String {
    let share = |share: Option<f64>| share.map_or_else(|| "-".into(), percent);
    let row = |client: &Client, traffic: &Traffic| {
        let of = &traffic.counters;
        vec![
            client.task.clone(),
            traffic.peer.clone(),
            count(of.tensors_received as f64),
            count(of.tensors_sent as f64),
            bytes(of.bytes_received as f64),
            bytes(of.bytes_sent as f64),
            count(of.elsewhere_tensors_received as f64 + of.elsewhere_tensors_sent as f64),
            bytes(of.elsewhere_bytes_received as f64 + of.elsewhere_bytes_sent as f64),
            share(traffic.tensors_share),
            share(traffic.bytes_share),
        ]
    };
    let clients = now.shards.iter().flat_map(|shard| &shard.clients);
    let mut rows: Vec<Vec<String>> =
        clients.flat_map(|client| client.peers.iter().map(|traffic| row(client, traffic))).collect();
    rows.sort();
    // Short headings, so that it fits into 80 columns.
    let columns = columns(&["task", "peer"], &["in", "out", "bytes in", "out", "other", "bytes", "share", "bytes"]);
    titled("Peers of clients, and Sealane's share of their traffic", columns, rows)
}

/// Tables of this host's tasks whose rows were pulled, over all shards.
fn published(now: &Figures) -> String {
    let mut sums: BTreeMap<(&str, &str), [u64; 5]> = BTreeMap::new();
    for table in now.shards.iter().flat_map(|shard| &shard.tables) {
        let of = &table.counters;
        let more = [of.requests, of.rows, of.bytes, of.rows_named, of.gather_ns];
        let sum = sums.entry((&table.task, &table.table)).or_default();
        // The number of named rows is reported by the clients that asked, so it may be anything.
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    let row = |((task, table), [requests, rows, total, named, gather_ns]): ((&str, &str), [u64; 5])| {
        let counters = TableCounters { rows, rows_named: named, ..TableCounters::default() };
        vec![
            task.to_owned(),
            // A client can choose any text.
            table.escape_debug().take(TABLE_CHARACTERS_MAX).collect(),
            count(requests as f64),
            count(rows as f64),
            bytes(total as f64),
            counters.share_of_duplicates().map_or_else(|| "-".into(), percent),
            duration(gather_ns.checked_div(rows).unwrap_or(0)),
        ]
    };
    let columns = columns(&["task", "table"], &["requests", "rows", "bytes", "repeated", "per row"]);
    titled("Tables, and rows of them that were pulled", columns, sums.into_iter().map(row))
}

/// Characters of a table's key that are shown.
const TABLE_CHARACTERS_MAX: usize = 40;

/// A fraction of 1 as a percentage.
fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Nanoseconds, to three digits.
pub(super) fn duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0 => "-".into(),
        nanoseconds => scaled(nanoseconds as f64, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs")], " ns"),
    }
}

fn quantile(of: &HistogramSnapshot, share: f64) -> String {
    duration(of.quantile(share).unwrap_or(0))
}

/// A number, with k, M or G from ten thousand on.
pub(super) fn count(number: f64) -> String {
    match number < 1e4 {
        true => format!("{number:.0}"),
        false => scaled(number, &[(1e9, "G"), (1e6, "M"), (1e3, "k")], ""),
    }
}

/// Bytes, with decimal units.
pub(super) fn bytes(bytes: f64) -> String {
    scaled(bytes, &[(1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB")], " B")
}

/// Days, hours, minutes and seconds; only the two largest that are not zero.
pub(super) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_units() {
        assert_eq!([0.0, 999.0, 12_345.0, 3.2e6, 1e9].map(count), ["0", "999", "12.3k", "3.20M", "1.00G"]);
        assert_eq!([0.0, 1500.0, 2.5e9, 1e12].map(bytes), ["0 B", "1.50 kB", "2.50 GB", "1.00 TB"]);
        assert_eq!(
            [0, 80, 7800, 12_000_000, 2_000_000_000].map(duration),
            ["-", "80 ns", "7.80 µs", "12.0 ms", "2.00 s"]
        );
        let spans = [5, 65, 3700, 90_000].map(|seconds| span(Duration::from_secs(seconds)));
        assert_eq!(spans, ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]);
    }
}
