//! What `sealane stat --groups` shows: groups of processes, such as PyTorch's, whose ranks on this host count their calls. Needs no
//! daemon.

use std::time::{Duration, Instant};

use sealane::{CallFigures, Group, RankFigures};
use serde_json::{Value, json};

use super::rows::{bytes, columns, count, duration, span};
use crate::Failure;
use crate::table::Table;
use crate::wording::counted;

const SCHEMA: &str = "sealane-groups/1";

/// A rank is slow if the calls of the others take this many times as long, since they wait for it.
const SLOW: f64 = 1.1;

/// A collective that has been in progress for longer is stalled.
const STALLED: Duration = Duration::from_secs(1);

/// Most missing ranks that are listed.
const MISSING_MAX: usize = 8;

/// A snapshot of the groups on this host.
pub(super) struct Groups {
    taken: Instant,
    ranks: Vec<RankFigures>,
}

impl Groups {
    /// # Errors
    /// The processes cannot be listed.
    pub(super) fn look() -> Result<Groups, Failure> {
        let ranks = Group::ranks_here().map_err(Failure::work)?;
        Ok(Groups { taken: Instant::now(), ranks })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    fn each(&self) -> impl Iterator<Item = &[RankFigures]> {
        self.ranks.chunk_by(|one, next| one.group == next.group)
    }

    /// As text; rates are those since `before`.
    pub(super) fn to_text(&self, before: &Groups) -> String {
        if self.is_empty() {
            return "no groups: no process of this user on this host is a rank of one\n".into();
        }
        let seconds = self.taken.duration_since(before.taken).as_secs_f64();
        self.each().map(|ranks| group(ranks, &before.ranks, seconds)).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn to_json(&self) -> String {
        let calls = |calls: &CallFigures| json!({"call": calls.name, "count": calls.count, "bytes": calls.bytes, "seconds": calls.time.as_secs_f64()});
        let rank = |rank: &RankFigures| {
            let since = rank.since.as_secs_f64();
            json!({
                "rank": rank.rank,
                "pid": rank.process,
                "calls": rank.calls.iter().map(calls).collect::<Vec<_>>(),
                "in_progress": rank.in_progress.map(|call| json!({"call": call, "seconds": since})),
                "idle_seconds": rank.in_progress.is_none().then_some(since),
            })
        };
        let group = |ranks: &[RankFigures]| {
            json!({
                "group": name(&ranks[0]),
                "size": ranks[0].size,
                "hosts": ranks[0].hosts,
                "uptime_s": ranks[0].uptime.as_secs(),
                "missing": missing(ranks).iter().map(|rank| rank.rank).collect::<Vec<_>>(),
                "ranks": ranks.iter().map(rank).collect::<Vec<_>>(),
            })
        };
        let groups: Vec<Value> = self.each().map(group).collect();
        format!("{}\n", json!({"schema": SCHEMA, "groups": groups}))
    }
}

fn name(rank: &RankFigures) -> String {
    format!("{:016x}", rank.group)
}

/// A heading, a row for each kind of call, and the rank that the others wait for.
fn group(ranks: &[RankFigures], before: &[RankFigures], seconds: f64) -> String {
    let first = &ranks[0];
    let (size, hosts) = (counted(first.size, "rank"), counted(first.hosts, "host"));
    let here = if ranks.len() < first.size { format!(", {} of them here", ranks.len()) } else { String::new() };
    let mut text = format!("Group {}: {size} on {hosts}{here}, for {}\n", name(first), span(first.uptime));
    let mut kinds: Vec<&str> = Vec::new();
    let ended = ranks.iter().flat_map(|rank| rank.calls.iter().map(|calls| calls.name));
    for name in ended.chain(ranks.iter().filter_map(|rank| rank.in_progress)) {
        if !kinds.contains(&name) {
            kinds.push(name);
        }
    }
    if kinds.is_empty() {
        return text + "it has called nothing yet\n";
    }
    let then = |rank: &RankFigures, kind: &str| {
        let same = |then: &&RankFigures| (then.group, then.rank, then.process) == (rank.group, rank.rank, rank.process);
        before.iter().find(same).and_then(|rank| of(rank, kind))
    };
    let row = |kind: &&str| {
        let calls = ranks.iter().filter_map(|rank| Some((of(rank, kind)?, then(rank, kind))));
        let calls: Vec<(&CallFigures, Option<&CallFigures>)> = calls.collect();
        let rate = |of: fn(&CallFigures) -> u64| {
            let since = |(now, then): &(&CallFigures, Option<&CallFigures>)| of(now) - then.map_or(0, of).min(of(now));
            if seconds > 0.0 { calls.iter().map(since).map(|count| count as f64).sum::<f64>() / seconds } else { 0.0 }
        };
        let means = calls.iter().map(|(calls, _)| calls.time.as_nanos() as u64 / calls.count.max(1));
        vec![
            (*kind).to_owned(),
            count(ranks.iter().filter(|rank| rank.in_progress == Some(*kind)).count() as f64),
            count(calls.iter().map(|(calls, _)| calls.count as f64).sum()),
            count(rate(|calls| calls.count)),
            bytes(rate(|calls| calls.bytes)),
            duration(means.clone().min().unwrap_or(0)),
            duration(means.max().unwrap_or(0)),
        ]
    };
    let heads =
        columns(&["call"], &["in progress", "ended", "calls/s", "bytes/s", "mean, fastest rank", "slowest rank"]);
    text += &Table::new(heads, kinds.iter().map(row)).to_text();
    text + &stalled(ranks).unwrap_or_else(|| slowest(ranks))
}

/// The rank that has been in a collective for longest, if that is stalled.
fn longest_waiting(ranks: &[RankFigures]) -> Option<&RankFigures> {
    let longest = ranks.iter().filter(|rank| rank.in_progress.is_some()).max_by_key(|rank| rank.since)?;
    (longest.since >= STALLED).then_some(longest)
}

/// The ranks here that the others here wait for in a stalled collective.
fn missing(ranks: &[RankFigures]) -> Vec<&RankFigures> {
    let steps = |rank: &RankFigures| rank.steps_ahead_of(&ranks[0]);
    let least = ranks.iter().map(steps).min();
    if longest_waiting(ranks).is_none() || ranks.iter().map(steps).max() == least {
        return Vec::new();
    }
    ranks.iter().filter(|rank| Some(steps(rank)) == least).collect()
}

/// The ranks that are missing in a stalled collective.
fn stalled(ranks: &[RankFigures]) -> Option<String> {
    let waiting = longest_waiting(ranks)?;
    let missing = missing(ranks);
    let time = |rank: &RankFigures| duration(rank.since.as_nanos() as u64);
    let place = |rank: &RankFigures| match rank.in_progress {
        Some(call) => format!("in {call} for {}", time(rank)),
        None => format!("in no collective for {}", time(rank)),
    };
    if missing.is_empty() {
        let others = if ranks.len() < waiting.size { ": they wait for ranks of other hosts" } else { "" };
        return Some(format!(
            "all ranks here are in the same collective, rank {} {}{others}\n",
            waiting.rank,
            place(waiting)
        ));
    }
    let line = |rank: &&RankFigures| {
        format!(
            "missing: rank {} (process {}), {}, while rank {} has been {}\n",
            rank.rank,
            rank.process,
            place(rank),
            waiting.rank,
            place(waiting)
        )
    };
    let more = missing.len().saturating_sub(MISSING_MAX);
    let more = if more > 0 { format!("and {} more\n", counted(more, "rank")) } else { String::new() };
    Some(missing.iter().take(MISSING_MAX).map(line).collect::<String>() + &more)
}

fn of<'r>(rank: &'r RankFigures, kind: &str) -> Option<&'r CallFigures> {
    rank.calls.iter().find(|calls| calls.name == kind)
}

/// The rank that arrives last at calls in which all wait for all has the shortest calls.
fn slowest(ranks: &[RankFigures]) -> String {
    let collectives = |rank: &RankFigures| {
        let calls = rank.calls.iter().filter(|calls| calls.waits_for_all());
        calls.fold((0_u64, Duration::ZERO), |(count, time), calls| {
            (count.saturating_add(calls.count), time.saturating_add(calls.time))
        })
    };
    // A rank that has ended one call less may have been in it for long.
    let counts = ranks.iter().map(|rank| collectives(rank).0);
    if counts.clone().min() != counts.max() {
        return String::new();
    }
    let in_collectives = |rank: &RankFigures| collectives(rank).1;
    let mut times: Vec<(Duration, &RankFigures)> = ranks.iter().map(|rank| (in_collectives(rank), rank)).collect();
    times.sort_by_key(|(time, _)| *time);
    let ((least, slow), (most, waits)) = (times[0], times[times.len() - 1]);
    if least.as_secs_f64() * SLOW >= most.as_secs_f64() {
        return String::new();
    }
    let [least, most] = [least, most].map(|time| duration(time.as_nanos() as u64));
    format!(
        "the slowest here is rank {} (process {}): it spent {least} in collectives, rank {} {most}, as it waits for others\n",
        slow.rank, slow.process, waits.rank
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Condvar, Mutex};
    use std::thread;

    use sealane::{DType, Error, GroupOptions, ReduceOp, Store};

    use super::*;

    #[derive(Default)]
    struct InMemory(Mutex<HashMap<String, Vec<u8>>>, Condvar);

    impl Store for InMemory {
        fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
            self.0.lock().unwrap().insert(key.into(), value.into());
            self.1.notify_all();
            Ok(())
        }

        fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
            let all = self.0.lock().unwrap();
            let (all, _) = self.1.wait_timeout_while(all, limit, |all| !all.contains_key(key)).unwrap();
            Ok(all[key].clone())
        }
    }

    #[test]
    fn calls_are_shown_with_the_rank_that_others_wait_for() {
        let store = InMemory::default();
        let groups: Vec<Group> = thread::scope(|scope| {
            let join = |rank| Group::new(&store, rank, 2, &GroupOptions::default()).unwrap();
            let ranks = [0, 1].map(|rank| scope.spawn(move || join(rank)));
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let look = || {
            let mut groups = Groups::look().unwrap();
            groups.ranks.retain(|rank| rank.process == std::process::id());
            groups
        };
        let before = look();
        assert!(before.to_text(&before).contains(": 2 ranks on 1 host, for "));
        assert!(before.to_text(&before).ends_with("it has called nothing yet\n"));
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| group.all_reduce(&mut [1; 1000], DType::U8, ReduceOp::Sum, None).unwrap());
            }
        });
        let mut now = look();
        (now.taken, now.ranks[0].calls[0].time) = (before.taken + Duration::from_secs(2), Duration::from_secs(4));
        now.ranks[1].calls[0].time = Duration::from_secs(1);
        let text = now.to_text(&before);
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["all_reduce", "0", "2", "1", "1.00", "kB", "1.00", "s", "4.00", "s"], "{text}");
        let slowest = format!(
            "the slowest here is rank 1 (process {}): it spent 1.00 s in collectives, rank 0 4.00 s, as it waits for others\n",
            std::process::id()
        );
        assert!(text.ends_with(&slowest), "{text}");
        let json: Value = serde_json::from_str(&now.to_json()).unwrap();
        let rank = &json["groups"][0]["ranks"][1];
        assert_eq!((&json["schema"], &json["groups"][0]["size"]), (&json!("sealane-groups/1"), &json!(2)));
        assert_eq!(rank["calls"][0], json!({"call": "all_reduce", "count": 1, "bytes": 1000, "seconds": 1.0}));
        assert_eq!((&rank["in_progress"], &json["groups"][0]["missing"]), (&Value::Null, &json!([])));
        assert!(rank["idle_seconds"].is_number());

        // Rank 1 has had the least time in collectives so far, and does not come to the next.
        thread::scope(|scope| {
            scope.spawn(|| groups[0].barrier(None).unwrap());
            let stalled = loop {
                let now = look();
                if now.ranks[0].since >= STALLED && now.ranks[0].in_progress.is_some() {
                    break now;
                }
                thread::yield_now();
            };
            let text = stalled.to_text(&before);
            let missing = format!("missing: rank 1 (process {}), in no collective for ", std::process::id());
            let last = text.lines().next_back().unwrap();
            assert!(last.starts_with(&missing) && last.contains("while rank 0 has been in barrier for "), "{text}");
            let in_barrier = |line: &str| line.split_whitespace().take(2).eq(["barrier", "1"]);
            assert!(text.lines().any(in_barrier), "{text}");
            let json: Value = serde_json::from_str(&stalled.to_json()).unwrap();
            let group = &json["groups"][0];
            assert_eq!(
                (&group["missing"], &group["ranks"][0]["in_progress"]["call"]),
                (&json!([1]), &json!("barrier"))
            );
            assert!(group["ranks"][0]["in_progress"]["seconds"].as_f64().unwrap() >= 1.0);
            assert_eq!(group["ranks"][0]["idle_seconds"], Value::Null);
            groups[1].barrier(None).unwrap();
        });
        drop(groups);
        assert_eq!(look().ranks, []);
    }
}
