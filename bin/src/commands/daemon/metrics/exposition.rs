//! The figures as OpenMetrics text (the OpenMetrics specification 1.0).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sealane_runtime::HistogramSnapshot;
use sealane_transport::LinkKind;

use super::families::{Family, Kind, OF_CLIENTS, OF_PEERS, OF_SHARDS, OF_TABLES, OF_TRAFFIC};
use crate::figures::{Figures, Peer, State, Table, Traffic};
use crate::links::KINDS;

/// The media type of [`exposition`].
pub(in crate::commands) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const NANOSECONDS: f64 = 1e9;

type Labels = Vec<(&'static str, String)>;

///
/// # Errors
/// Never: text in memory can always be written.
pub(super) fn exposition(figures: Figures) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("sealane");
    registry.register_collector(Box::new(Shown(figures)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Shown(Figures);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = &self.0;
        let (mut shards, mut peers) = (Vec::new(), Vec::new());
        let (mut clients, mut traffic, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for shard in &figures.shards {
            let of_shard = vec![("shard", shard.shard.to_string())];
            for peer in &shard.peers {
                let peer_shard = peer.peer_shard.map_or_else(|| "unknown".into(), |shard| shard.to_string());
                let labels = [("peer", peer.peer.clone()), ("peer_shard", peer_shard)];
                peers.push(([&of_shard[..], &labels].concat(), peer));
            }
            for client in &shard.clients {
                let of_client = [&of_shard[..], &[("task", client.task.clone())]].concat();
                let with_peer = |one: &Traffic| [&of_client[..], &[("peer", one.peer.clone())]].concat();
                traffic.extend(client.peers.iter().map(|one| (with_peer(one), one)));
                clients.push((of_client, client));
            }
            let of_table = |table: &Table| [("task", table.task.clone()), ("table", table.table.clone())];
            tables.extend(shard.tables.iter().map(|table| ([&of_shard[..], &of_table(table)].concat(), table)));
            shards.push((of_shard, shard));
        }
        daemon(figures, &mut encoder)?;
        families(OF_SHARDS, &shards, &mut encoder)?;
        links(figures, &mut encoder)?;
        durations(figures, &mut encoder)?;
        paths(&peers, &mut encoder)?;
        families(OF_PEERS, &peers, &mut encoder)?;
        families(OF_CLIENTS, &clients, &mut encoder)?;
        families(OF_TRAFFIC, &traffic, &mut encoder)?;
        families(OF_TABLES, &tables, &mut encoder)
    }
}

/// Metrics of the daemon as a whole.
fn daemon(figures: &Figures, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    encoder.encode_descriptor("build", "The daemon's program", None, MetricType::Info)?.encode_info(&[
        ("version", figures.version.as_str()),
        ("executor", figures.executor.as_str()),
        ("job", figures.job.as_deref().unwrap_or_default()),
    ])?;
    let mut gauge =
        |name, help, value: f64| encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value);
    gauge("uptime_seconds", "Seconds since the daemon began to serve", figures.uptime_ms as f64 / 1e3)?;
    gauge("draining", "1 while the daemon drains", f64::from(figures.state == State::Draining))?;
    gauge("tasks", "Tasks that the daemon serves", figures.tasks.len() as f64)?;
    let clients = figures.shards.first().map_or(0, |shard| shard.clients.len());
    gauge("clients", "Attached clients of this host", clients as f64)?;
    let credentials = &figures.credentials;
    if let Some(days) = credentials.days_left {
        let help = "Days until the certificate expires, or its authority if sooner; negative afterwards";
        gauge("certificate_days_left", help, days)?;
    }
    let help = "Reloads of secrets or certificates, by outcome";
    let mut counter = encoder.encode_descriptor("credentials_reloads", help, None, MetricType::Counter)?;
    for (outcome, count) in [("taken", credentials.taken), ("refused", credentials.refused)] {
        counter.encode_family(&[("outcome", outcome)])?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

/// Writes each family, with a sample for each thing and label.
fn families<T>(
    families: &[Family<T>],
    things: &[(Labels, &T)],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    if things.is_empty() {
        return Ok(());
    }
    for family in families {
        let is_counter = matches!(family.kind, Kind::Counter | Kind::CounterOfTime);
        let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut metric = encoder.encode_descriptor(family.name, without_stop(family.help), None, kind)?;
        for (labels, thing) in things {
            for (label, read) in family.samples {
                let mut labels = labels.clone();
                labels.extend(label.map(|(name, value)| (name, value.to_owned())));
                sample(family.kind, read(thing), metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn sample(kind: Kind, value: u64, mut metric: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    let seconds = value as f64 / NANOSECONDS;
    match kind {
        Kind::Counter => metric.encode_counter::<NoLabelSet, _, f64>(&value, None),
        Kind::CounterOfTime => metric.encode_counter::<NoLabelSet, _, f64>(&seconds, None),
        Kind::Gauge => metric.encode_gauge(&(value as f64)),
        Kind::GaugeOfTime => metric.encode_gauge(&seconds),
    }
}

/// Links by kind, and the kind-specific figures.
fn links(figures: &Figures, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let mut links = encoder.encode_descriptor("links", "Open links to peers", None, MetricType::Gauge)?;
    for shard in &figures.shards {
        let mut sample = |kind: LinkKind, count: u64| {
            let labels = [("shard", shard.shard.to_string()), ("link", kind.name().to_owned())];
            links.encode_family(&labels)?.encode_gauge(&(count as f64))
        };
        let others = KINDS.iter().map(|(kind, _)| shard.counters.links_of(*kind)).sum();
        sample(LinkKind::TCP, shard.counters.links.saturating_sub(others))?;
        KINDS.iter().try_for_each(|(kind, _)| sample(*kind, shard.counters.links_of(*kind)))?;
    }
    for (kind, of_kind) in KINDS {
        for figure in *of_kind {
            let Some(name) = figure.metric else { continue };
            let (of, kind_of_metric) = match figure.grows {
                true => (Kind::Counter, MetricType::Counter),
                false => (Kind::Gauge, MetricType::Gauge),
            };
            let name = format!("{}_{name}", kind.name());
            let mut metric = encoder.encode_descriptor(&name, without_stop(figure.help), None, kind_of_metric)?;
            for shard in &figures.shards {
                let labels = [("shard", shard.shard.to_string())];
                sample(of, shard.counters.figure(*kind, figure), metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// Durations of turns, and of calls by kind and direction.
fn durations(figures: &Figures, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Duration of turns that had work to do";
    let mut turns = encoder.encode_descriptor("shard_turn_seconds", help, None, MetricType::Histogram)?;
    for shard in &figures.shards {
        let labels = [("shard", shard.shard.to_string())];
        histogram(&shard.load.busy_turns, turns.encode_family(&labels)?)?;
    }
    let help = "Duration of successful calls: a recv until its tensor arrived, a send until its release, a pull until its last \
                tensor, a push until all of it was taken";
    let mut calls = encoder.encode_descriptor("call_seconds", help, None, MetricType::Histogram)?;
    for shard in &figures.shards {
        for of in &shard.calls {
            let labels =
                [("shard", shard.shard.to_string()), ("operation", of.operation.clone()), ("link", of.link.clone())];
            histogram(&of.took, calls.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Has a bucket for each power of two from 64 ns on: the same for all hosts, so that they can be summed, and half as many as are
/// kept.
fn histogram(of: &HistogramSnapshot, mut metric: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    const FIRST_POWER: u32 = 6;
    const LAST_POWER: u32 = 36;
    let bound = |power: u32| (1_u64 << power) as f64 / NANOSECONDS;
    let mut buckets: Vec<(f64, u64)> = (FIRST_POWER..=LAST_POWER).map(|power| (bound(power), 0)).collect();
    // Values above all bounds: readers require this bucket.
    buckets.push((f64::INFINITY, 0));
    for (bound, count) in of.buckets() {
        let power = bound.checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros);
        buckets[(power.clamp(FIRST_POWER, LAST_POWER + 1) - FIRST_POWER) as usize].1 += count;
    }
    metric.encode_histogram::<NoLabelSet>(of.sum() as f64 / NANOSECONDS, of.count(), &buckets, None)
}

/// The path to each peer, and why it was chosen.
fn paths(peers: &[(Labels, &Peer)], encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Path to a peer's shard, and the reason for it";
    let mut path = encoder.encode_descriptor("peer_path_info", help, None, MetricType::Gauge)?;
    for (labels, peer) in peers {
        let link = peer.link.clone().unwrap_or_else(|| "none".into());
        let how = [("state", peer.state.clone()), ("link", link), ("reason", peer.reason.clone())];
        path.encode_family(&[&labels[..], &how].concat())?.encode_gauge(&1.0)?;
    }
    Ok(())
}

/// Removes the full stop, since the encoder adds one.
fn without_stop(help: &str) -> &str {
    help.strip_suffix('.').unwrap_or(help)
}
