//! What a call may report, and when: the promises of sends and recvs, checked as each ends.
//!
//! - A recv ends with the bytes and the shape of a tensor that was sent to that very spot and went to no other recv, or with an error that
//!   what happened explains.
//! - A tensor whose send has failed is not delivered. (Between two nodes, one whose step has ended or whose deadline has passed may have
//!   been on its way.)
//! - A tensor sent after another send has ended well is not received before that other send's tensor, unless a recv was given up there:
//!   then the earlier tensor goes to the next recv, whenever that is made.

use sealane::{Code, Error, RecvOutcome, SendOutcome, Tensor};

use super::ledger::{Call, End, is_whole, number_of};
use super::world::World;

impl World {
    /// Collects the outcomes of the calls of one task, or of all tasks.
    pub(super) fn look(&mut self, seat: Option<usize>) -> Result<(), String> {
        let mut open = std::mem::take(&mut self.ledger.open_recvs);
        let mut told = Ok(());
        open.retain(|&number| {
            let recv = &mut self.ledger.recvs[number];
            if told.is_err() || seat.is_some_and(|seat| seat != recv.call.spot.to) {
                return true;
            }
            let Some(outcome) = recv.receiving.as_mut().and_then(|receiving| receiving.try_outcome()) else {
                return true;
            };
            recv.receiving = None;
            told = self.recv_ended(number, outcome);
            false
        });
        self.ledger.open_recvs.append(&mut open);
        told?;
        // Recvs first: a send that ended well must have been received by then.
        let mut open = std::mem::take(&mut self.ledger.open_sends);
        let mut told = Ok(());
        open.retain(|&number| {
            let send = &mut self.ledger.sends[number];
            if told.is_err() || seat.is_some_and(|seat| seat != send.call.spot.from) {
                return true;
            }
            let Some(outcome) = send.sending.as_mut().and_then(|sending| sending.try_outcome()) else { return true };
            send.sending = None;
            told = self.send_ended(number, outcome);
            false
        });
        self.ledger.open_sends.append(&mut open);
        told
    }

    fn recv_ended(&mut self, number: usize, outcome: RecvOutcome) -> Result<(), String> {
        let event = self.ledger.event();
        match outcome {
            Ok(tensor) => {
                self.ledger.recvs[number].call.ended = Some((event, End::Ok));
                self.received(number, event, tensor)
            }
            Err(unreceived) => {
                let error = unreceived.error;
                self.note(format_args!("recv {number} fails: {error}"));
                self.ledger.recvs[number].call.ended = Some((event, End::Failed(error.code())));
                let recv = &self.ledger.recvs[number];
                let overlaps = || {
                    let others = self.ledger.recvs.iter().map(|recv| &recv.call);
                    recv.is_narrow || self.ledger.overlaps(&recv.call, others)
                };
                let is_explained = self.explains(&recv.call, &error, recv.fails_if_gone, overlaps);
                self.count(&error);
                if is_explained { Ok(()) } else { Err(format!("nothing explains why recv {number} failed: {error}")) }
            }
        }
    }

    /// Checks a tensor that a recv got.
    fn received(&mut self, number: usize, event: u64, tensor: Tensor) -> Result<(), String> {
        let recv = &self.ledger.recvs[number];
        let Some(of) = number_of(&tensor).filter(|of| *of < self.ledger.sends.len()) else {
            return Err(format!("recv {number} got a tensor that nobody sent: {:?}", tensor.shape()));
        };
        let send = &self.ledger.sends[of];
        if send.call.spot != recv.call.spot {
            return Err(format!("recv {number} of {:?} got send {of} of {:?}", recv.call.spot, send.call.spot));
        }
        if !is_whole(of, send.bytes, &tensor) {
            return Err(format!("recv {number} got send {of} of {} bytes as {:?}", send.bytes, tensor.shape()));
        }
        if let Some((_, other)) = send.delivered {
            return Err(format!("send {of} was delivered to recv {other} and to recv {number}"));
        }
        if let Some((_, end)) = send.call.ended
            && self.is_undelivered(&send.call, end)
        {
            return Err(format!("send {of} ended with {end:?}, and recv {number} got it"));
        }
        self.check_order(of, number)?;
        let bytes = send.bytes;
        // The tensor came before this recv was made, for one that was given up.
        let claimed = matches!(send.call.ended, Some((ended, End::Ok)) if ended < recv.call.began);
        self.report.delivered += 1;
        self.report.claimed += usize::from(claimed);
        self.note(format_args!("recv {number} has send {of} of {bytes} bytes"));
        self.ledger.sends[of].delivered = Some((event, number));
        self.kept.push(tensor);
        Ok(())
    }

    /// Checks that no send made after `of` had ended well was received before it.
    fn check_order(&self, of: usize, number: usize) -> Result<(), String> {
        let (send, recv) = (&self.ledger.sends[of].call, &self.ledger.recvs[number].call);
        // A tensor too large for the recv's memory stays, too, and a later one that fits may come first.
        let is_narrow = self.ledger.recvs.iter().any(|recv| recv.call.spot == send.spot && recv.is_narrow);
        if is_narrow || self.ledger.given_up.contains(&send.spot) {
            return Ok(());
        }
        let later = self.ledger.sends.iter().enumerate().find(|(_, other)| {
            other.call.spot == send.spot
                && matches!(send.ended, Some((ended, End::Ok)) if ended < other.call.began)
                && other.delivered.is_some_and(|(delivered, _)| delivered < recv.began)
        });
        match later {
            Some((later, _)) => {
                Err(format!("recv {number} got send {of}, behind send {later}, which was sent after it"))
            }
            None => Ok(()),
        }
    }

    fn send_ended(&mut self, number: usize, outcome: SendOutcome) -> Result<(), String> {
        let event = self.ledger.event();
        let end = match &outcome {
            Ok(()) => End::Ok,
            Err(Error::DeadlineExceeded(late)) if late.delivery_unknown => End::Unknown,
            Err(error) => End::Failed(error.code()),
        };
        self.ledger.sends[number].call.ended = Some((event, end));
        let Err(error) = outcome else {
            self.note(format_args!("send {number} ends well"));
            return Ok(());
        };
        self.note(format_args!("send {number} fails: {error}"));
        let send = &self.ledger.sends[number];
        if send.delivered.is_some() && self.is_undelivered(&send.call, end) {
            return Err(format!("send {number} was delivered, and ended with {error}"));
        }
        let overlaps = || self.ledger.overlaps(&send.call, self.ledger.sends.iter().map(|send| &send.call));
        let is_explained = self.explains(&send.call, &error, false, overlaps);
        self.count(&error);
        if is_explained { Ok(()) } else { Err(format!("nothing explains why send {number} failed: {error}")) }
    }

    /// True if a send that ended this way cannot have been delivered.
    fn is_undelivered(&self, call: &Call, end: End) -> bool {
        match end {
            End::Failed(Code::InvalidArgument | Code::ResourceExhausted) => true,
            End::Failed(Code::Aborted | Code::DeadlineExceeded) => self.is_local(call),
            // Nobody knows what became of a send whose task is gone.
            End::Failed(_) | End::Ok | End::Unknown => false,
        }
    }

    /// True if both tasks are on one node.
    fn is_local(&self, call: &Call) -> bool {
        self.seats[call.spot.from].host == self.seats[call.spot.to].host
    }

    fn explains(&self, call: &Call, error: &Error, fails_if_gone: bool, overlaps: impl Fn() -> bool) -> bool {
        match error.code() {
            Code::Aborted => self.ledger.step_ended(call.spot, 0),
            Code::DeadlineExceeded => self.now >= call.due,
            Code::Unavailable => self.ledger.one_died(call.spot, if fails_if_gone { 0 } else { call.began }),
            Code::InvalidArgument => overlaps(),
            Code::ResourceExhausted => true,
            _ => false,
        }
    }

    fn count(&mut self, error: &Error) {
        let report = &mut self.report;
        match error.code() {
            Code::Aborted => report.aborted += 1,
            Code::DeadlineExceeded => report.late += 1,
            Code::Unavailable => report.gone += 1,
            Code::ResourceExhausted => report.exhausted += 1,
            _ => {}
        }
    }
}
