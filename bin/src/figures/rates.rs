//! What has happened between two looks at a daemon, as rates.

use super::{Figures, Shard};

/// Rates of one daemon, or of one of its shards.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    /// Tensors a second that tasks of the daemon sent.
    pub(crate) tensors_sent: f64,
    /// Tensors a second that they received.
    pub(crate) tensors_received: f64,
    /// Bytes a second that they sent.
    pub(crate) bytes_sent: f64,
    /// Bytes a second that they received.
    pub(crate) bytes_received: f64,
    /// Share of the time that the shards were busy, from 0 to 1.
    pub(crate) busy: f64,
}

impl Rates {
    /// From the daemon's start, or since `before` if that is of the same process.
    pub(crate) fn of(now: &Figures, before: Option<&Figures>) -> Rates {
        let before = before.filter(|before| before.pid == now.pid && before.uptime_ms < now.uptime_ms);
        let each = now.shards.iter().map(|shard| Self::of_shard(now, shard, before));
        let mut sum = each.fold(Rates::default(), |sum, one| Rates {
            tensors_sent: sum.tensors_sent + one.tensors_sent,
            tensors_received: sum.tensors_received + one.tensors_received,
            bytes_sent: sum.bytes_sent + one.bytes_sent,
            bytes_received: sum.bytes_received + one.bytes_received,
            busy: sum.busy + one.busy,
        });
        sum.busy /= now.shards.len().max(1) as f64;
        sum
    }

    /// The same for one shard.
    pub(crate) fn of_shard(now: &Figures, shard: &Shard, before: Option<&Figures>) -> Rates {
        let then = before.and_then(|before| before.shards.iter().find(|then| then.shard == shard.shard));
        let passed_ms = now.uptime_ms - before.map_or(0, |before| before.uptime_ms);
        let seconds = passed_ms.max(1) as f64 / 1000.0;
        let grown = |of: &dyn Fn(&Shard) -> u64| of(shard).saturating_sub(then.map_or(0, of)) as f64;
        let (busy, idle) = (grown(&|shard| shard.load.busy_ns), grown(&|shard| shard.load.idle_ns));
        let all = busy + idle + grown(&|shard| shard.load.asleep_ns);
        Rates {
            tensors_sent: grown(&|shard| shard.counters.tensors_sent) / seconds,
            tensors_received: grown(&|shard| shard.counters.tensors_received) / seconds,
            bytes_sent: grown(&|shard| shard.counters.bytes_sent) / seconds,
            bytes_received: grown(&|shard| shard.counters.bytes_received) / seconds,
            busy: if all > 0.0 { busy / all } else { 0.0 },
        }
    }
}
