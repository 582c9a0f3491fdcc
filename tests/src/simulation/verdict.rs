//! What a call may report, and when: the promises of sends and recvs, checked as each ends.
//!
//! - A recv ends once, by its deadline (and the lateness of a turn): with the bytes of a tensor that was sent to that
//!   very spot, or with an error that what happened explains.
//! - A tensor is delivered at most once; its send ends well only if it was delivered; and it is not delivered after its send has
//!   ended. All this holds as long as the producer's session with the consumer stands.
//! - A session that is reset (the consumer restarted, was out of reach for longer than the lease, or its host refused calls) loses
//!   the releases in flight, so the producer cannot know whether the consumer has what it was lent. From then on three more
//!   things are legal: the tensor is delivered again to another recv; the send fails although the tensor was delivered; the
//!   tensor is delivered although the send failed, since a reset on the producer's side does not stop bytes on their way.
//! - A tensor sent before its producer cleaned up the step is not delivered to a recv that was asked after word of the cleanup had
//!   arrived, or after the link was lost that should have brought it.
//! - A recv whose receiver was dropped takes no tensor; a fused receive keeps the tensors it has.
//!
//! What fused receives add is in `fused.rs`; the promises of pulls are in `plans/verdict.rs`, those of pushes in `pushes/verdict.rs`, and
//! those of pulls of rows in `tables/verdict.rs`.

use std::time::Duration;

use sealane_fusion::{Code, Error, RecvOutcome, SendOutcome, Tensor};

use super::climate::{LATENESS_MAX, Weather};
use super::ledger::{End, Era, Recv};
use super::run::Simulation;
use super::workload::{self, Spot, Told};

impl Simulation {
    /// The current era of a spot's producer.
    pub(super) fn era(&self, at: Spot) -> Era {
        let host = &self.hosts[self.host_of(at.producer)];
        let resets = match host.runs() {
            false => u64::MAX,
            true => {
                let shard = host.shard_for(&self.task_name(at.producer), &self.task_name(at.consumer));
                host.seats[shard].node.counters().sessions_reset
            }
        };
        Era { process: host.process, resets }
    }

    /// Collects the outcomes of a host's calls.
    pub(super) fn look_at_calls(&mut self, host: usize) -> Result<(), String> {
        self.look_at_batches(host)?;
        let mut recvs = std::mem::take(&mut self.ledger.open_recvs[host]);
        let mut left = Vec::new();
        for number in recvs.drain(..) {
            let receiver = self.ledger.recvs[number].receiver.as_ref();
            match receiver.map(|receiver| receiver.try_recv()) {
                Some(Ok(outcome)) => self.recv_ended(number, outcome)?,
                Some(Err(oneshot::TryRecvError::Disconnected)) => {
                    return Err(format!("recv {number} was forgotten without a word"));
                }
                // Without a receiver it is part of a fused receive, which was handled above.
                Some(Err(oneshot::TryRecvError::Empty)) | None => left.push(number),
            }
        }
        self.ledger.open_recvs[host] = left;
        // Recvs first: a send that ended well must have been received by then.
        self.look_at_groups(host)?;
        let mut sends = std::mem::take(&mut self.ledger.open_sends[host]);
        let mut left = Vec::new();
        for number in sends.drain(..) {
            let receiver = self.ledger.sends[number].receiver.as_ref();
            match receiver.map(|receiver| receiver.try_recv()) {
                Some(Ok(outcome)) => self.send_ended(number, outcome)?,
                Some(Err(oneshot::TryRecvError::Disconnected)) => {
                    return Err(format!("send {number} was forgotten without a word"));
                }
                Some(Err(oneshot::TryRecvError::Empty)) => left.push(number),
                None => {}
            }
        }
        self.ledger.open_sends[host] = left;
        self.look_at_pulls(host)?;
        self.look_at_pushes(host)?;
        self.look_at_rows(host)
    }

    pub(super) fn recv_ended(&mut self, number: usize, outcome: RecvOutcome) -> Result<(), String> {
        let (now, recv) = (self.now, &self.ledger.recvs[number]);
        if now > recv.deadline + LATENESS_MAX {
            return Err(format!("recv {number} ended {:?} after its deadline", now - recv.deadline));
        }
        let end = match outcome {
            Ok(tensor) => {
                self.delivered(number, &tensor)?;
                self.ledger.held.push(tensor);
                End::Ok
            }
            Err(unreceived) => {
                let error = &unreceived.error;
                self.trace.note(now, format_args!("recv {number} failed: {error}"));
                if let Some(reason) = self.unexplained_recv(number, error) {
                    return Err(format!("recv {number} of {:?} was told '{error}', but {reason}", recv.at));
                }
                if let Some(destination) = &unreceived.destination {
                    let given = (destination.as_ptr() as usize, destination.len());
                    if self.ledger.recvs[number].destination != Some(given) {
                        return Err(format!("recv {number} was given back other memory than it brought"));
                    }
                }
                End::Err(error.code())
            }
        };
        self.ledger.end_recv(number, now, end);
        Ok(())
    }

    /// Checks a tensor that a recv got.
    fn delivered(&mut self, number: usize, tensor: &Tensor) -> Result<(), String> {
        let recv = &self.ledger.recvs[number];
        let send = workload::number_of(tensor).filter(|&send| send < self.ledger.sends.len());
        let Some(from) = send else { return Err(format!("recv {number} got a tensor that nobody sent")) };
        self.trace.note(self.now, format_args!("recv {number} got send {from}"));
        let era = self.era(recv.at);
        let send = &self.ledger.sends[from];
        if send.at != recv.at {
            return Err(format!("recv {number} of {:?} got what was sent to {:?}", recv.at, send.at));
        }
        if self.ledger.is_stale(send, recv) {
            return Err(format!("recv {number} got send {from} of a step that had been cleaned up between the two"));
        }
        if !workload::is_of(tensor, workload::seed_of(send.at, from), from, send.bytes) {
            return Err(format!("recv {number} got a corrupted tensor"));
        }
        if let Some((at, room)) = recv.destination
            && (room < send.bytes || send.bytes > 0 && tensor.bytes().as_ptr() as usize != at)
        {
            return Err(format!("recv {number} got its tensor elsewhere than in its own memory"));
        }
        // A fused receive that reports late may have got the tensor in any era since it was asked.
        let late = recv.batch.is_some_and(Told::is_together);
        let came_now = |recv: &Recv| !recv.batch.is_some_and(Told::is_together) || recv.era == era;
        // A link whose loss only the producer has noticed may still bring what the producer took back.
        let resets = self.hosts[recv.host].seats[recv.shard].node.counters().sessions_reset;
        let eras = (era, Era { process: recv.process, resets });
        if let Some(&(earlier, before)) = send.deliveries.last()
            && before == eras
            && came_now(recv)
            && came_now(&self.ledger.recvs[earlier])
        {
            return Err(format!("send {from} was delivered to recv {earlier} and again to recv {number}"));
        }
        match send.ended {
            Some((_, End::Ok)) if !late => return Err(format!("send {from} was delivered after it had been released")),
            Some((_, End::Err(code))) if send.era == era => {
                return Err(format!("send {from} had failed with {code:?} and was delivered to recv {number}"));
            }
            _ => {}
        }
        self.ledger.sends[from].deliveries.push((number, eras));
        Ok(())
    }

    pub(super) fn send_ended(&mut self, number: usize, outcome: SendOutcome) -> Result<(), String> {
        let (now, send) = (self.now, &self.ledger.sends[number]);
        if now > send.deadline.saturating_add(LATENESS_MAX) {
            return Err(format!("send {number} ended {:?} after its deadline", now - send.deadline));
        }
        let end = match outcome {
            Ok(()) => {
                self.trace.note(now, format_args!("send {number} released"));
                if send.deliveries.is_empty() && !self.ledger.may_have_taken(send.at) {
                    return Err(format!("send {number} ended well, but nobody has the tensor"));
                }
                End::Ok
            }
            Err(error) => {
                self.trace.note(now, format_args!("send {number} failed: {error}"));
                if let Some(reason) = self.unexplained_send(number, &error) {
                    return Err(format!("send {number} to {:?} was told '{error}', but {reason}", send.at));
                }
                let unknown = matches!(&error, Error::DeadlineExceeded(late) if late.delivery_unknown);
                if !unknown && !send.deliveries.is_empty() && send.era == self.era(send.at) {
                    return Err(format!("send {number} failed with '{error}' although it was delivered"));
                }
                if unknown { End::Unknown } else { End::Err(error.code()) }
            }
        };
        self.ledger.end_send(number, now, end);
        Ok(())
    }

    /// Why nothing that happened explains the error; `None` if something does.
    fn unexplained_recv(&self, number: usize, error: &Error) -> Option<&'static str> {
        let recv = &self.ledger.recvs[number];
        let overlaps = |&other: &usize| {
            let known = &self.ledger.recvs[other];
            other != number && overlap(known.ended, recv.issued, known.deadline)
        };
        let explained = match error.code() {
            Code::DeadlineExceeded => self.now >= recv.deadline,
            Code::Aborted => self.ledger.is_touched(recv.at),
            Code::Unavailable => self.climate.weather != Weather::Calm,
            Code::ResourceExhausted => self.climate.scarce,
            Code::NotFound => {
                // One that is told with others may have failed earlier.
                let heard = if recv.batch.is_some_and(Told::is_together) { recv.issued } else { self.now };
                self.was_news(recv.at.producer, recv.at.consumer, heard)
            }
            Code::PermissionDenied => self.was_denied(recv.at.producer, recv.at.consumer),
            Code::InvalidArgument => {
                let short = recv.destination.is_some_and(|(_, room)| {
                    self.ledger.sends_of(recv.at).iter().any(|&send| self.ledger.sends[send].bytes > room)
                });
                short || self.ledger.recvs_of(recv.at).iter().any(overlaps)
            }
            _ => false,
        };
        (!explained).then_some("nothing that happened explains it")
    }

    pub(super) fn unexplained_send(&self, number: usize, error: &Error) -> Option<&'static str> {
        let send = &self.ledger.sends[number];
        let overlaps = |&other: &usize| {
            let known = &self.ledger.sends[other];
            other != number && overlap(known.ended, send.issued, Duration::MAX)
        };
        let farewell = self.ledger.farewells.contains(&send.host);
        let explained = match error.code() {
            Code::DeadlineExceeded => self.now >= send.deadline,
            Code::Aborted => farewell || self.ledger.is_touched(send.at),
            Code::ResourceExhausted => self.climate.scarce,
            Code::InvalidArgument => self.ledger.sends_of(send.at).iter().any(overlaps),
            _ => false,
        };
        (!explained).then_some("nothing that happened explains it")
    }
}

/// True if a call was still open when another was issued. One whose receiver was dropped counts as open until its deadline, since nothing
/// else is known of it.
fn overlap(ended: Option<(Duration, End)>, issued: Duration, deadline: Duration) -> bool {
    match ended {
        None => true,
        Some((_, End::Deaf)) => deadline.saturating_add(LATENESS_MAX) > issued,
        Some((when, _)) => when > issued,
    }
}
