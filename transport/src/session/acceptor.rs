//! The accepting half of a session: the peer's streams into queues of this side, and their credit.
//!
//! Streams are kept across links, so that a repeated push is recognized and dropped.

#[cfg(feature = "fuzzing")]
mod invariants;

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;
use sealane_runtime::Buffer;

use super::control::Control;
use super::quota::{Charges, Held, PeerQuota, Share};
use super::receive::{ReceiveMemory, Sink, Untaken};
use super::{Event, Session, failure_of};
use crate::arena::{Arena, Handle};
use crate::error::Error;
use crate::limits::{
    BATCHED_TENSOR_BYTES, INLINE_PAYLOAD_BYTES, MEASURE_QUEUE, NO_TASK, STREAM_BYTES_MAX, STREAMS_MAX,
};
use crate::link::{Landing, LandingOf, Place};
use crate::outbox::Outbox;
use crate::payload::Meta;
use crate::tensor::{Tensor, TensorBatch, TensorMeta};
use crate::wire::{Push, PushFailure, PushGrant, PushOpen, PushRecord, PushWant, Pushes, WireError};

/// A stream that the peer has opened: give it credit with [`Session::grant`] when its queue has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The stream, by this side's handle.
    pub stream: Handle,
    /// The peer's pushing task, by the owner's number for it.
    pub from: u32,
    /// The task of this side, by its index in this side's task list.
    pub to: u16,
    /// The queue's name.
    pub queue: Box<str>,
}

/// How much more a stream may bring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credit {
    /// Tensors.
    pub messages: u64,
    /// Payload bytes; the last tensor may exceed what is left of them.
    pub bytes: u64,
}

/// Credit that a stream waits for, in addition to what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes without which its next tensor is not sent.
    pub least: u64,
    /// Bytes needed for all tensors that are known to follow.
    pub all: u64,
}

/// A push that was refused.
struct Refused {
    number: u64,
    code: u8,
    reason: String,
}

struct Stream {
    /// The peer's handle.
    id: Handle,
    /// The task in whose memory its tensors arrive.
    to: u16,
    /// Bytes of its queue's name.
    name_bytes: usize,
    /// Number of the next push.
    next: u64,
    /// Bytes of all pushes before it.
    bytes: u64,
    granted_messages: u64,
    granted_bytes: u64,
    /// The largest number of pushes that the stream ever had credit for at once. The peer may not yet know the outcome of that
    /// many of the last pushes.
    credit_max: u64,
    /// Refusals that the peer may not have received: a failure may be lost with its link, and the next grant would then say
    /// that the push was taken.
    refused: VecDeque<Refused>,
    /// How many of the first refusals were sent on this link.
    refused_told: usize,
    /// Nobody accepts: pushes from `next` on are dropped, and the peer keeps them until it has a grant.
    shut: bool,
    /// The peer must be told so, with the number of the next push. Only for a push that came on this link: the same number
    /// comes again only after the peer was told, so that no push is taken that the peer believes it still has.
    rewind_owed: bool,
    /// Pushes sent before the peer learned this may still come: they are skipped until the next one in order comes.
    rewound: bool,
    /// What the peer last said on this link, if its next tensor is larger than its credit. Both count from the stream's
    /// beginning: bytes at which the next tensor can be sent, and bytes at which all known ones can.
    wanted: (u64, u64),
    /// There is something to send: what was taken, or more credit.
    news: bool,
    /// Metadata of the last push, usually shared by the next.
    last_meta: Option<TensorMeta>,
}

impl Stream {
    fn credit(&self) -> Credit {
        Credit {
            messages: self.granted_messages.saturating_sub(self.next),
            bytes: self.granted_bytes.saturating_sub(self.bytes),
        }
    }

    /// True if a push with this number is the next; false if it is a repeated or skipped one.
    fn expects(&self, number: u64) -> Result<bool, WireError> {
        if number > self.next && self.rewound && number < self.granted_messages {
            return Ok(false);
        }
        if number > self.next {
            return Err(WireError::BadValue { what: "number of a push", found: number });
        }
        if number == self.next && (number >= self.granted_messages || self.bytes >= self.granted_bytes) {
            return Err(WireError::BadValue { what: "push without credit", found: number });
        }
        Ok(number == self.next)
    }

    /// The last push was not taken after all, and must be sent again.
    fn shut(&mut self, bytes: usize) {
        self.next -= 1;
        self.bytes -= bytes as u64;
        (self.shut, self.rewind_owed, self.rewound) = (true, true, true);
    }

    fn count(&mut self, bytes: usize) {
        self.rewound = false;
        self.next += 1;
        self.bytes += bytes as u64;
    }

    fn refuse(&mut self, number: u64, error: &Error) {
        while self.refused.front().is_some_and(|oldest| oldest.number + self.credit_max < self.next) {
            self.refused.pop_front();
            self.refused_told = self.refused_told.saturating_sub(1);
        }
        let (code, reason) = failure_of(error);
        self.refused.push_back(Refused { number, code, reason });
    }

    /// Renews the credit of a push that reached no queue: the code that grants credit does not see it.
    fn credit_again(&mut self, bytes: usize) {
        self.granted_messages += 1;
        self.granted_bytes += bytes as u64;
    }
}

pub(super) struct Acceptor {
    streams: Option<Arena<Stream>>,
    /// Charges for the peer's streams, and for the bytes of their queues' names.
    share: Share,
    ids: HashMap<Handle, Handle>,
    news: VecDeque<Handle>,
}

impl Acceptor {
    pub(super) fn new(quota: &Rc<PeerQuota>) -> Self {
        Self { streams: None, share: Share::of(quota), ids: HashMap::new(), news: VecDeque::new() }
    }

    /// What is charged to the peer, and what the table actually holds.
    pub(super) fn counted(&self) -> (Charges, Charges) {
        let mut there = Charges::default();
        for (_, stream) in self.streams.iter().flat_map(Arena::iter) {
            there[Held::Streams as usize] += 1;
            there[Held::NameBytes as usize] += stream.name_bytes;
        }
        (self.share.mine(), there)
    }

    fn streams(&mut self) -> &mut Arena<Stream> {
        self.streams.get_or_insert_with(|| Arena::new(STREAMS_MAX))
    }

    fn get(&mut self, stream: Handle) -> Option<&mut Stream> {
        self.streams.as_mut()?.get_mut(stream)
    }

    #[inline]
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    fn tell(&mut self, handle: Handle) {
        let Some(stream) = self.get(handle) else { return };
        if !stream.news {
            stream.news = true;
            self.news.push_back(handle);
        }
    }

    /// Stages the next refusal or grant; a stream's refusals come first. False if there is none.
    pub(super) fn stage(&mut self, outbox: &mut Outbox) -> bool {
        while let Some(handle) = self.news.pop_front() {
            let Some(stream) = self.get(handle) else { continue };
            if let Some(refused) = stream.refused.get(stream.refused_told) {
                let Refused { number, code, reason } = refused;
                let failure = PushFailure { stream: stream.id, code: *code, number: *number, reason };
                outbox.stage(|writer| writer.push_failure(&failure));
                stream.refused_told += 1;
                self.news.push_front(handle);
                return true;
            }
            stream.news = false;
            if std::mem::take(&mut stream.rewind_owed) {
                // This also says how many were taken.
                let (code, reason) = failure_of(&unaccepted());
                let failure = PushFailure { stream: stream.id, code, number: stream.next, reason: &reason };
                outbox.stage(|writer| writer.push_failure(&failure));
                stream.news = true;
                self.news.push_front(handle);
                return true;
            }
            if stream.shut {
                continue;
            }
            let (messages, bytes) = (stream.granted_messages, stream.granted_bytes);
            let grant = PushGrant { stream: stream.id, taken: stream.next, messages, bytes };
            outbox.stage(|writer| writer.push_grant(&grant));
            return true;
        }
        false
    }

    /// The link is gone: the peer opens its streams again, and is then told what was taken.
    pub(super) fn suspend(&mut self) {
        self.news.clear();
        for (_, stream) in self.streams.iter_mut().flat_map(Arena::iter_mut) {
            (stream.news, stream.refused_told) = (false, 0);
            (stream.shut, stream.rewind_owed, stream.rewound) = (false, false, false);
            stream.wanted = (0, 0);
        }
    }

    /// Forgets the peer's streams, and returns their handles.
    pub(super) fn forget_all(&mut self) -> Vec<Handle> {
        self.ids.clear();
        self.news.clear();
        self.share.give_all_back();
        let Some(streams) = &mut self.streams else { return Vec::new() };
        let all = streams.select(|_| true);
        all.iter().for_each(|stream| drop(streams.remove(*stream)));
        all
    }

    fn forget(&mut self, id: Handle) -> Option<Handle> {
        let handle = self.ids.remove(&id)?;
        let stream = self.streams().remove(handle)?;
        self.share.give_back(Held::Streams, 1);
        self.share.give_back(Held::NameBytes, stream.name_bytes);
        Some(handle)
    }

    /// The small tensors of a frame, without those that came before. `None` if they must be taken in one by one: because the
    /// first is not small (usually all of a frame are alike), or because there is no credit, so that the error names the push
    /// without credit.
    fn take_together(&mut self, handle: Handle, pushes: &Pushes<'_>) -> Result<Option<TensorBatch>, WireError> {
        let Some(stream) = self.get(handle) else { return Ok(None) };
        let Some(passed) = stream.next.checked_sub(pushes.first) else { return Ok(None) };
        let is_small = |(_, payload): PushRecord<'_>| payload.len() <= BATCHED_TENSOR_BYTES;
        if !pushes.records.iter().next().transpose()?.is_some_and(is_small) {
            return Ok(None);
        }
        let batch = TensorBatch::copy_of(pushes.records, passed)?;
        let (count, bytes) = (batch.len() as u64, batch.payload_bytes() as u64);
        // The last one may exceed what is left of the credit.
        let before_last = batch.bytes_before_last() as u64;
        let has_credit =
            stream.next + count <= stream.granted_messages && stream.bytes + before_last < stream.granted_bytes;
        if count == 0 || !has_credit {
            return Ok(None);
        }
        (stream.next, stream.bytes, stream.rewound) = (stream.next + count, stream.bytes + bytes, false);
        Ok(Some(batch))
    }

    /// The payload of a push begins to arrive; `None` for one that came before.
    fn expect(&mut self, push: &Push<'_>) -> Result<Option<(Handle, &mut Stream)>, WireError> {
        let Some(&handle) = self.ids.get(&push.stream) else { return Ok(None) };
        let Some(stream) = self.get(handle) else { return Ok(None) };
        let is_next = stream.expects(push.number)?;
        if is_next && stream.bytes.max(stream.granted_bytes).saturating_add(push.payload_bytes) > STREAM_BYTES_MAX {
            return Err(WireError::BadValue { what: "bytes of a push", found: push.payload_bytes });
        }
        Ok(is_next.then_some((handle, stream)))
    }
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Grants a stream `credit` in addition to what it has.
    pub fn grant(&mut self, stream: Handle, credit: Credit) {
        let Some(of) = self.acceptor.get(stream) else { return };
        of.shut = false;
        of.granted_messages = of.granted_messages.max(of.next) + credit.messages;
        of.granted_bytes = of.granted_bytes.max(of.bytes) + credit.bytes;
        of.credit_max = of.credit_max.max(of.granted_messages - of.next);
        self.acceptor.tell(stream);
    }

    /// How much more a stream may bring; `None` if it has ended.
    pub fn credit(&self, stream: Handle) -> Option<Credit> {
        Some(self.acceptor.streams.as_ref()?.get(stream)?.credit())
    }

    /// The credit that a stream waits for; `None` if it waits for none, or has ended.
    pub fn wanted(&self, stream: Handle) -> Option<Wanted> {
        let of = self.acceptor.streams.as_ref()?.get(stream)?;
        let has = of.granted_bytes.max(of.bytes);
        let (least, all) = of.wanted;
        // `least` is capped at one tensor, whatever the peer says; the slack is for a small tensor that came with too little
        // credit.
        let most = self.limits.tensor_bytes_max + INLINE_PAYLOAD_BYTES as u64;
        (least > has).then(|| Wanted { least: (least - has).min(most), all: all - has })
    }

    /// The peer says how much credit a stream waits for.
    pub(super) fn push_wanted(&mut self, want: &PushWant) -> Result<(), WireError> {
        if want.all < want.least || want.all > STREAM_BYTES_MAX {
            return Err(WireError::BadValue { what: "bytes that a stream wants", found: want.all });
        }
        let Some(&stream) = self.acceptor.ids.get(&want.stream) else { return Ok(()) };
        if let Some(of) = self.acceptor.get(stream) {
            of.wanted = (want.least, want.all);
            self.events.push_back(Event::Wanting { stream });
        }
        Ok(())
    }

    /// Refuses a push that had come.
    pub fn refuse_push(&mut self, stream: Handle, number: u64, error: &Error) {
        let Some(of) = self.acceptor.get(stream) else { return };
        of.refuse(number, error);
        self.acceptor.tell(stream);
    }

    pub(super) fn stream_opened(&mut self, open: &PushOpen<'_>) -> Result<(), WireError> {
        let Some(from) = self.requester(open.from, open.to)? else { return Ok(()) };
        if let Some(&known) = self.acceptor.ids.get(&open.stream) {
            // The stream is opened again on a new link: what was taken and refused must be told again.
            if let Some(stream) = self.acceptor.get(known) {
                if stream.name_bytes != open.queue.len() {
                    let found = open.queue.len() as u64;
                    return Err(WireError::BadValue { what: "length of the queue's name of a known stream", found });
                }
                stream.refused.retain(|refused| refused.number >= open.first);
                stream.refused_told = 0;
            }
            self.acceptor.tell(known);
            // The pusher's task may have been unknown, and is known now.
            self.events.push_back(Event::Opened(Opened { stream: known, from, to: open.to, queue: open.queue.into() }));
            return Ok(());
        }
        if open.first != 0 {
            return Err(WireError::BadValue { what: "first push of a new stream", found: open.first });
        }
        let share = &mut self.acceptor.share;
        let taken = share.take(Held::Streams, 1).and_then(|()| {
            share.take(Held::NameBytes, open.queue.len()).inspect_err(|_| share.give_back(Held::Streams, 1))
        });
        if let Err(full) = taken {
            let (code, reason) = failure_of(&full);
            self.control.push_answer(Control::StreamRefused { stream: open.stream, code, reason });
            return Ok(());
        }
        let stream = Stream {
            id: open.stream,
            to: if open.queue == MEASURE_QUEUE { NO_TASK } else { open.to },
            name_bytes: open.queue.len(),
            next: 0,
            bytes: 0,
            granted_messages: 0,
            granted_bytes: 0,
            credit_max: 0,
            refused: VecDeque::new(),
            refused_told: 0,
            shut: false,
            rewind_owed: false,
            rewound: false,
            wanted: (0, 0),
            news: false,
            last_meta: None,
        };
        let Ok(stream) = self.acceptor.streams().insert(stream) else {
            unreachable!("it has room for all that a peer may have")
        };
        self.acceptor.ids.insert(open.stream, stream);
        self.events.push_back(Event::Opened(Opened { stream, from, to: open.to, queue: open.queue.into() }));
        Ok(())
    }

    pub(super) fn stream_closed(&mut self, id: Handle) {
        if let Some(stream) = self.acceptor.forget(id) {
            self.events.push_back(Event::Closed { streams: vec![stream] });
        }
    }

    /// Takes in small tensors.
    pub(super) fn pushes_came(
        &mut self,
        pushes: &Pushes<'_>,
        memory: &dyn ReceiveMemory,
        sink: &mut Option<&mut dyn Sink<W, D>>,
    ) -> Result<(), WireError> {
        let Some(&handle) = self.acceptor.ids.get(&pushes.stream) else { return Ok(()) };
        if let Some(sink) = sink
            && sink.takes_together(handle)
            && let Some(came) = self.acceptor.take_together(handle, pushes)?
        {
            self.came.tensors += came.len() as u64;
            sink.pushed_together(handle, came);
            self.acceptor.tell(handle);
            return Ok(());
        }
        // The length that was checked against the last metadata: usually all of a frame have the same.
        let mut checked = None;
        for (place, entry) in pushes.records.iter().enumerate() {
            // No stream reaches the largest number; it is refused like any number too far ahead.
            let number = pushes.first.saturating_add(place as u64);
            let (meta, payload) = entry?;
            self.came.tensors += 1;
            let Some(stream) = self.acceptor.get(handle) else { return Ok(()) };
            if let Some(meta) = meta
                && stream.last_meta.as_ref().is_none_or(|last| last.as_wire() != meta)
            {
                stream.last_meta = Some(TensorMeta::from_wire(meta).map_err(|_| bad_meta(meta.len()))?);
                checked = None;
            }
            if stream.expects(number)? {
                let meta = stream.last_meta.as_ref().expect("the first entry has metadata");
                if checked != Some(payload.len()) {
                    meta.check_bytes(payload.len() as u64).map_err(|_| bad_meta(payload.len()))?;
                    checked = Some(payload.len());
                }
                let (meta, to) = (meta.clone(), stream.to);
                stream.count(payload.len());
                match memory.allocate(to, payload.len()) {
                    Ok(mut buffer) => {
                        buffer.volatile_mut().copy_from(payload);
                        self.take_push(handle, number, Tensor::from_parts(meta, buffer), sink);
                    }
                    Err(full) => {
                        stream.credit_again(payload.len());
                        stream.refuse(number, &full);
                    }
                }
            }
        }
        self.acceptor.tell(handle);
        Ok(())
    }

    /// Finds the place for a tensor that begins to arrive. One that came before is read and dropped.
    pub(super) fn push_lands(&mut self, push: &Push<'_>, memory: &dyn ReceiveMemory) -> Result<Landing, WireError> {
        let limit = self.limits.tensor_bytes_max;
        let total = push.payload_bytes as usize;
        let (place, stream) = match self.acceptor.expect(push)? {
            None => (Place::Nowhere, Handle::NONE),
            Some((handle, _)) if push.payload_bytes > limit => {
                let reason = format!("the tensor has {total} bytes, the limit is {limit}");
                self.push_refused(handle, push, &Error::full("transport.tensor_bytes_max", reason));
                (Place::Nowhere, Handle::NONE)
            }
            Some((handle, stream)) => match memory.allocate(stream.to, total) {
                Ok(buffer) => (Place::Buffer(buffer), handle),
                Err(full) => {
                    self.push_refused(handle, push, &full);
                    (Place::Nowhere, Handle::NONE)
                }
            },
        };
        let (meta, of) = (Meta::from_slice(push.meta), LandingOf::Push { number: push.number });
        Ok(Landing::new((stream, Handle::NONE), (of, meta), place, (push.payload_bytes, push.transfer)))
    }

    fn push_refused(&mut self, stream: Handle, push: &Push<'_>, error: &Error) {
        if let Some(of) = self.acceptor.get(stream) {
            of.count(push.payload_bytes as usize);
            of.credit_again(push.payload_bytes as usize);
        }
        self.refuse_push(stream, push.number, error);
    }

    /// Hands over a push: to the sink if the owner has one, else as an event.
    #[inline]
    fn take_push(&mut self, stream: Handle, number: u64, tensor: Tensor, sink: &mut Option<&mut dyn Sink<W, D>>) {
        match sink {
            Some(sink) => {
                let bytes = tensor.len();
                match sink.pushed(stream, tensor) {
                    Ok(()) => {}
                    Err(Untaken::Refused(error)) => self.refuse_push(stream, number, &error),
                    Err(Untaken::Unaccepted) => {
                        if let Some(of) = self.acceptor.get(stream) {
                            of.shut(bytes);
                        }
                        self.acceptor.tell(stream);
                    }
                }
            }
            None => self.events.push_back(Event::Pushed { stream, number, tensor: Box::new(tensor) }),
        }
    }

    /// The payload of a push has fully arrived.
    pub(super) fn push_landed(
        &mut self,
        handle: Handle,
        number: u64,
        (meta, memory): (&[u8], Buffer),
        sink: &mut Option<&mut dyn Sink<W, D>>,
    ) {
        let Some(stream) = self.acceptor.get(handle).filter(|stream| stream.next == number) else { return };
        let bytes = memory.len();
        stream.count(bytes);
        match Tensor::from_wire(meta, memory) {
            Ok(tensor) => self.take_push(handle, number, tensor, sink),
            Err(error) => {
                stream.credit_again(bytes);
                self.refuse_push(handle, number, &error);
            }
        }
        self.acceptor.tell(handle);
    }
}

/// What a pusher is told whose pushes have to wait for the next acceptor. No other refusal has this code.
fn unaccepted() -> Error {
    Error::unavailable("the accepting task", "nobody accepts from the queue any more")
}

fn bad_meta(length: usize) -> WireError {
    WireError::BadValue { what: "metadata of a push, for a length", found: length as u64 }
}
