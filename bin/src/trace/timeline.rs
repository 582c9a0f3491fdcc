//! Events of calls as spans of a timeline, in the Trace Event Format of Chrome (its "nestable async events"). Keeps open calls, at
//! most [`OPEN_CALLS_MAX`].

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

use nix::time::{ClockId, clock_gettime};
use sealane_transport::trace::{Batch, Moment, TraceEvent};
use serde_json::{Value, json};

/// Most calls that are open at once; further ones are not recorded.
const OPEN_CALLS_MAX: usize = 1 << 20;

/// Names a call or an answer: its shard, its session, its name there.
type Name = (u16, u64, u64);

/// A call that has begun and not ended.
struct Open {
    category: &'static str,
    title: String,
    /// Its number in the file.
    id: u64,
    /// The span within the call that is open.
    stage: Option<&'static str>,
}

pub(super) struct Timeline {
    /// The start of the trace, with the host's clock at that moment in µs, by which traces of several processes are aligned.
    began: Instant,
    began_us: f64,
    pid: u32,
    open: HashMap<Name, Open>,
    /// The send behind each answer; at most as many as calls.
    responses: HashMap<Name, Name>,
    shards: Vec<u16>,
    next_id: u64,
    untold: u64,
    text: String,
}

impl Timeline {
    pub(super) fn new(who: &str) -> Timeline {
        let clock = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map_or(0.0, |time| time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3);
        let mut timeline = Timeline {
            began: Instant::now(),
            began_us: clock,
            pid: std::process::id(),
            open: HashMap::new(),
            responses: HashMap::new(),
            shards: Vec::new(),
            next_id: 0,
            untold: 0,
            text: String::new(),
        };
        let pid = timeline.pid;
        timeline.put(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": who}}));
        timeline
    }

    pub(super) fn tell(&mut self, batch: Batch) -> String {
        let Batch { shard, events } = batch;
        if !self.shards.contains(&shard) {
            self.shards.push(shard);
            let (pid, name) = (self.pid, format!("shard {shard}"));
            self.put(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": shard, "args": {"name": name}}));
        }
        for event in events {
            self.take(shard, event);
        }
        std::mem::take(&mut self.text)
    }

    /// The end of the file, without a trailing comma.
    pub(super) fn end(&mut self, dropped: u64) -> String {
        let mut open: Vec<(u64, Name)> = self.open.iter().map(|(name, open)| (open.id, *name)).collect();
        open.sort_unstable();
        for (_, name) in open {
            self.finish(name, Instant::now(), json!({"ended": "with the trace"}));
        }
        let (pid, untold) = (self.pid, self.untold);
        self.put(&json!({
            "ph": "M", "name": "process_labels", "pid": pid,
            "args": {"labels": format!("{dropped} events dropped, {untold} calls left out")},
        }));
        let text = std::mem::take(&mut self.text);
        text.trim_end_matches([',', '\n']).to_owned()
    }

    fn take(&mut self, shard: u16, TraceEvent { at, session, call, moment }: TraceEvent) {
        let name = (shard, session, call.to_bits());
        match moment {
            Moment::RecvQueued { step, key } => {
                self.begin(name, "recv", format!("recv {key}"), at, json!({"key": key, "step": step}));
                self.stage(name, at, "queued");
            }
            Moment::RecvOnTheWire => self.stage(name, at, "on the wire"),
            Moment::RecvDelivered { bytes } => self.finish(name, at, json!({"bytes": bytes})),
            Moment::RecvEnded => self.finish(name, at, json!({"ended": "without its tensor here"})),
            Moment::RecvInMemory { step, key, since, bytes } => {
                let name = (shard, u64::MAX, self.next_id);
                self.begin(
                    name,
                    "recv",
                    format!("recv {key}"),
                    since,
                    json!({"key": key, "step": step, "link": "memory"}),
                );
                self.finish(name, at, json!({"bytes": bytes}));
            }
            Moment::SendQueued { step, key, bytes } => {
                let arguments = json!({"key": key, "step": step, "bytes": bytes});
                self.begin(name, "send", format!("send {key}"), at, arguments);
                self.stage(name, at, "waits for its recv");
            }
            Moment::SendMatched { session, response } => {
                // Responses that were lost with their link never reach the wire, and stay until the end.
                if self.responses.len() < OPEN_CALLS_MAX {
                    self.responses.insert((shard, session, response.to_bits()), name);
                }
                self.stage(name, at, "matched, queued");
            }
            Moment::ResponseOnTheWire => {
                // A released send may since have another response with the same name.
                if let Some(send) = self.responses.remove(&name) {
                    self.stage(send, at, "on the wire, until released");
                }
            }
            Moment::SendReleased => self.finish(name, at, json!({})),
            Moment::SendEnded => self.finish(name, at, json!({"ended": "its tensor was not taken"})),
            Moment::SendInMemory { step, key, bytes } => {
                let name = (shard, u64::MAX, self.next_id);
                let arguments = json!({"key": key, "step": step, "bytes": bytes, "link": "memory"});
                self.begin(name, "send", format!("send {key}"), at, arguments);
                self.finish(name, at, json!({}));
            }
            Moment::PullQueued { tensors } => {
                // Pulls and pushes have names distinct from sends.
                let title = format!("pull of {tensors} tensors");
                self.begin(other(name, 1), "pull", title, at, json!({"tensors": tensors}));
            }
            Moment::PullEnded => self.finish(other(name, 1), at, json!({})),
            Moment::PushQueued { queue, tensors } => {
                let arguments = json!({"queue": queue, "tensors": tensors});
                self.begin(other(name, 2), "push", format!("push into {queue}"), at, arguments);
            }
            Moment::PushEnded => self.finish(other(name, 2), at, json!({})),
        }
    }

    fn begin(&mut self, name: Name, category: &'static str, title: String, at: Instant, arguments: Value) {
        if self.open.len() >= OPEN_CALLS_MAX {
            self.untold += 1;
            return;
        }
        // The event that ended the call of this name was dropped.
        self.finish(name, at, json!({"ended": "earlier"}));
        let id = self.next_id;
        self.next_id += 1;
        self.span("b", (category, id), &title, (name.0, at), arguments);
        self.open.insert(name, Open { category, title, id, stage: None });
    }

    /// Records that a call is at another stage now.
    fn stage(&mut self, name: Name, at: Instant, stage: &'static str) {
        let Some(open) = self.open.get_mut(&name) else { return };
        let (of, before) = ((open.category, open.id), open.stage.replace(stage));
        if let Some(before) = before {
            self.span("e", of, before, (name.0, at), json!({}));
        }
        self.span("b", of, stage, (name.0, at), json!({}));
    }

    fn finish(&mut self, name: Name, at: Instant, arguments: Value) {
        let Some(Open { category, title, id, stage }) = self.open.remove(&name) else { return };
        if let Some(stage) = stage {
            self.span("e", (category, id), stage, (name.0, at), json!({}));
        }
        self.span("e", (category, id), &title, (name.0, at), arguments);
    }

    fn span(&mut self, phase: &str, of: (&str, u64), name: &str, (shard, at): (u16, Instant), arguments: Value) {
        // A call may have begun before the trace.
        let since = at
            .checked_duration_since(self.began)
            .map_or_else(|| -self.began.duration_since(at).as_secs_f64(), |since| since.as_secs_f64());
        let event = json!({
            "ph": phase, "cat": of.0, "id": format!("{:#x}", of.1), "name": name, "pid": self.pid, "tid": shard,
            "ts": ((self.began_us + since * 1e6) * 1e3).round() / 1e3, "args": arguments,
        });
        self.put(&event);
    }

    fn put(&mut self, event: &Value) {
        writeln!(self.text, "{event},").expect("a string takes everything");
    }
}

/// The name of a call that the owner of sessions counts separately.
fn other(name: Name, kind: u64) -> Name {
    (name.0, u64::MAX - kind, name.2)
}

#[cfg(test)]
mod tests {
    use sealane_transport::Handle;

    use super::*;

    fn event(session: u64, call: u64, moment: Moment) -> TraceEvent {
        TraceEvent { at: Instant::now(), session, call: Handle::from_bits(call), moment }
    }

    fn told(events: Vec<TraceEvent>) -> Vec<Value> {
        let mut timeline = Timeline::new("test");
        let text = timeline.tell(Batch { shard: 1, events }) + &timeline.end(3);
        serde_json::from_str(&format!("[{text}]")).unwrap()
    }

    fn spans(events: &[Value]) -> Vec<String> {
        let spans = events.iter().filter(|event| event["ph"] != "M");
        spans.map(|event| format!("{} {}", event["ph"], event["name"]).replace('"', "")).collect()
    }

    #[test]
    fn a_recv_goes_from_its_queue_over_the_wire_to_its_caller() {
        let events = told(vec![
            event(4, 9, Moment::RecvQueued { step: -1, key: "a \"key\"\n".into() }),
            event(4, 9, Moment::RecvOnTheWire),
            event(4, 8, Moment::RecvOnTheWire),
            event(4, 9, Moment::RecvDelivered { bytes: 64 }),
        ]);
        assert_eq!(
            spans(&events),
            ["b recv a \\key\\\\n", "b queued", "e queued", "b on the wire", "e on the wire", "e recv a \\key\\\\n"]
        );
        let first = events.iter().find(|event| event["ph"] == "b").unwrap();
        assert_eq!((&first["args"]["step"], &first["tid"], &first["cat"]), (&json!(-1), &json!(1), &json!("recv")));
        assert!(events.iter().all(|event| event["ph"] == "M" || event["ts"].as_f64().unwrap() > 0.0));
    }

    #[test]
    fn a_send_is_followed_under_the_name_that_its_response_has() {
        let events = told(vec![
            event(0, 5, Moment::SendQueued { step: 1, key: "w".into(), bytes: 10 }),
            event(0, 5, Moment::SendMatched { session: 4, response: Handle::from_bits(77) }),
            event(4, 77, Moment::ResponseOnTheWire),
            event(0, 5, Moment::SendReleased),
            event(0, 5, Moment::SendReleased),
        ]);
        assert_eq!(
            spans(&events),
            [
                "b send w",
                "b waits for its recv",
                "e waits for its recv",
                "b matched, queued",
                "e matched, queued",
                "b on the wire, until released",
                "e on the wire, until released",
                "e send w"
            ]
        );
    }

    #[test]
    fn every_span_ends() {
        let queued = |key: &str| Moment::SendQueued { step: 1, key: key.into(), bytes: 10 };
        let events = told(vec![
            event(0, 5, queued("unsent")),
            event(0, 5, Moment::SendEnded),
            event(0, 6, Moment::SendInMemory { step: 1, key: "at once".into(), bytes: 10 }),
            event(0, 7, queued("dropped")),
            event(0, 7, queued("open")),
        ]);
        let of = |phase: &str| {
            let spans = events.iter().filter(|event| event["ph"] == phase);
            let mut spans: Vec<_> = spans.map(|event| (event["id"].to_string(), event["name"].to_string())).collect();
            spans.sort();
            spans
        };
        assert_eq!(of("b"), of("e"));
        assert_eq!(of("b").len(), 4 + 3, "{events:?}");
    }

    #[test]
    fn calls_of_several_kinds_and_one_name_are_told_apart() {
        let events = told(vec![
            event(0, 5, Moment::PullQueued { tensors: 3 }),
            event(0, 5, Moment::PushQueued { queue: "q".into(), tensors: 1 }),
            event(0, 5, Moment::PullEnded),
            event(0, 5, Moment::PushEnded),
            event(0, 6, Moment::RecvInMemory { step: 0, key: "k".into(), since: Instant::now(), bytes: 1 }),
            event(3, 1, Moment::RecvQueued { step: 0, key: "lost".into() }),
            event(3, 1, Moment::RecvEnded),
        ]);
        let ids: Vec<&Value> = events.iter().filter(|event| event["ph"] == "b").map(|event| &event["id"]).collect();
        assert_eq!(ids, [&json!("0x0"), &json!("0x1"), &json!("0x2"), &json!("0x3"), &json!("0x3")]);
        assert_eq!(spans(&events).len(), 10);
        assert_eq!(events.last().unwrap()["args"]["labels"], "3 events dropped, 0 calls left out");
    }
}
