//! The accepting half of a session: the peer's streams into queues of this side, and the credit that each has.
//!
//! A stream is remembered over its links, so that a push which is sent again is known and dropped.

use std::collections::VecDeque;

use hashbrown::HashMap;
use sealane_runtime::Buffer;

use super::control::Control;
use super::receive::{ReceiveMemory, Sink};
use super::{Event, Session, failure_of};
use crate::arena::{Arena, Handle};
use crate::error::Error;
use crate::limits::STREAMS_MAX;
use crate::link::{Landing, LandingOf, Meta, Place};
use crate::outbox::Outbox;
use crate::tensor::{Tensor, TensorMeta};
use crate::wire::{Push, PushGrant, PushOpen, Pushes, WireError};

/// A stream that the peer has begun: give it credit with [`Session::grant`] when its queue has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The stream, by this side's handle.
    pub stream: Handle,
    /// The peer's task that pushes, by the owner's number.
    pub from: u32,
    /// The task of this side, by its place in this side's greeting.
    pub to: u16,
    /// The queue's name.
    pub queue: Box<str>,
}

/// How much a stream may bring that it has not brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credit {
    /// Tensors.
    pub messages: u64,
    /// Bytes of their payloads; the last tensor may be larger than what is left of them.
    pub bytes: u64,
}

struct Stream {
    /// The peer's handle.
    id: Handle,
    to: u16,
    /// Number of the next push.
    next: u64,
    /// Bytes of all pushes before it.
    bytes: u64,
    granted_messages: u64,
    granted_bytes: u64,
    /// Something is to be told: what was taken, or more credit.
    news: bool,
    /// Metadata of the last push, which the next most often shares.
    last_meta: Option<TensorMeta>,
}

impl Stream {
    fn credit(&self) -> Credit {
        Credit {
            messages: self.granted_messages.saturating_sub(self.next),
            bytes: self.granted_bytes.saturating_sub(self.bytes),
        }
    }

    /// A push that is expected, by its number; false for one that came before.
    fn expects(&self, number: u64) -> Result<bool, WireError> {
        if number > self.next {
            return Err(WireError::BadValue { what: "number of a push", found: number });
        }
        if number == self.next && (number >= self.granted_messages || self.bytes >= self.granted_bytes) {
            return Err(WireError::BadValue { what: "push without credit", found: number });
        }
        Ok(number == self.next)
    }

    fn count(&mut self, bytes: usize) {
        self.next += 1;
        self.bytes += bytes as u64;
    }
}

#[derive(Default)]
pub(super) struct Acceptor {
    streams: Option<Arena<Stream>>,
    ids: HashMap<Handle, Handle>,
    news: VecDeque<Handle>,
}

impl Acceptor {
    fn streams(&mut self) -> &mut Arena<Stream> {
        self.streams.get_or_insert_with(|| Arena::new(STREAMS_MAX))
    }

    fn get(&mut self, stream: Handle) -> Option<&mut Stream> {
        self.streams.as_mut()?.get_mut(stream)
    }

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

    /// Stages the next grant; false if there is none.
    pub(super) fn stage(&mut self, outbox: &mut Outbox) -> bool {
        while let Some(handle) = self.news.pop_front() {
            let Some(stream) = self.get(handle) else { continue };
            stream.news = false;
            let (messages, bytes) = (stream.granted_messages, stream.granted_bytes);
            let grant = PushGrant { stream: stream.id, taken: stream.next, messages, bytes };
            outbox.stage(|writer| writer.push_grant(&grant));
            return true;
        }
        false
    }

    /// The link is gone: the peer opens its streams anew, and hears then what was taken.
    pub(super) fn suspend(&mut self) {
        self.news.clear();
        for (_, stream) in self.streams.iter_mut().flat_map(Arena::iter_mut) {
            stream.news = false;
        }
    }

    /// The peer's streams are no more; their handles.
    pub(super) fn forget_all(&mut self) -> Vec<Handle> {
        self.ids.clear();
        self.news.clear();
        let Some(streams) = &mut self.streams else { return Vec::new() };
        let all = streams.select(|_| true);
        all.iter().for_each(|stream| drop(streams.remove(*stream)));
        all
    }

    fn forget(&mut self, id: Handle) -> Option<Handle> {
        let handle = self.ids.remove(&id)?;
        self.streams().remove(handle)?;
        Some(handle)
    }

    /// A tensor whose payload begins to arrive; `None` for one that came before.
    fn expect(&mut self, push: &Push<'_>) -> Result<Option<(Handle, &mut Stream)>, WireError> {
        let Some(&handle) = self.ids.get(&push.stream) else { return Ok(None) };
        let Some(stream) = self.get(handle) else { return Ok(None) };
        Ok(stream.expects(push.number)?.then_some((handle, stream)))
    }
}

impl<W, D: PartialEq> Session<W, D> {
    /// Lets a stream bring more: `credit` on top of what it has.
    pub fn grant(&mut self, stream: Handle, credit: Credit) {
        let Some(of) = self.acceptor.get(stream) else { return };
        of.granted_messages = of.granted_messages.max(of.next) + credit.messages;
        of.granted_bytes = of.granted_bytes.max(of.bytes) + credit.bytes;
        self.acceptor.tell(stream);
    }

    /// What a stream may bring that it has not brought; `None` if it has ended.
    pub fn credit(&self, stream: Handle) -> Option<Credit> {
        Some(self.acceptor.streams.as_ref()?.get(stream)?.credit())
    }

    /// A push that came and was not taken after all.
    pub fn refuse_push(&mut self, stream: Handle, number: u64, error: &Error) {
        let Some(of) = self.acceptor.get(stream) else { return };
        let (code, reason) = failure_of(error);
        self.control.push_answer(Control::PushFailure { stream: of.id, code, number, reason });
    }

    pub(super) fn stream_opened(&mut self, open: &PushOpen<'_>) -> Result<(), WireError> {
        let Some(from) = self.asking(open.from, open.to)? else { return Ok(()) };
        if let Some(&known) = self.acceptor.ids.get(&open.stream) {
            // On a new link: what was taken is to be told again.
            self.acceptor.tell(known);
            return Ok(());
        }
        if open.first != 0 {
            return Err(WireError::BadValue { what: "first push of a new stream", found: open.first });
        }
        let stream = Stream {
            id: open.stream,
            to: open.to,
            next: 0,
            bytes: 0,
            granted_messages: 0,
            granted_bytes: 0,
            news: false,
            last_meta: None,
        };
        let Ok(stream) = self.acceptor.streams().insert(stream) else {
            return Err(WireError::BadValue { what: "stream past the limit", found: STREAMS_MAX as u64 });
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

    /// Takes small tensors in.
    pub(super) fn pushes_came(
        &mut self,
        pushes: &Pushes<'_>,
        memory: &dyn ReceiveMemory,
        sink: &mut Option<&mut dyn Sink<W, D>>,
    ) -> Result<(), WireError> {
        let Some(&handle) = self.acceptor.ids.get(&pushes.stream) else { return Ok(()) };
        for (number, entry) in (pushes.first..).zip(pushes.iter()) {
            let (meta, payload) = entry?;
            let Some(stream) = self.acceptor.get(handle) else { return Ok(()) };
            if let Some(meta) = meta
                && stream.last_meta.as_ref().is_none_or(|last| last.as_wire() != meta)
            {
                stream.last_meta = Some(TensorMeta::from_wire(meta).map_err(|_| bad_meta(meta.len()))?);
            }
            if stream.expects(number)? {
                let meta = stream.last_meta.as_ref().expect("the first entry has metadata");
                meta.check_bytes(payload.len() as u64).map_err(|_| bad_meta(payload.len()))?;
                let (meta, to) = (meta.clone(), stream.to);
                stream.count(payload.len());
                match memory.allocate(to, payload.len()) {
                    Ok(mut buffer) => {
                        buffer.copy_from_slice(payload);
                        self.take_push(handle, number, Tensor::from_parts(meta, buffer), sink);
                    }
                    Err(full) => self.refuse_push(handle, number, &full),
                }
            }
        }
        self.acceptor.tell(handle);
        Ok(())
    }

    /// Finds the place for a tensor that begins to arrive. One that came before is read and thrown away.
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
        Ok(Landing { request: stream, token: Handle::NONE, meta, of, place, filled: 0, total })
    }

    fn push_refused(&mut self, stream: Handle, push: &Push<'_>, error: &Error) {
        if let Some(of) = self.acceptor.get(stream) {
            of.count(push.payload_bytes as usize);
        }
        self.refuse_push(stream, push.number, error);
        self.acceptor.tell(stream);
    }

    /// Hands a push over: at once where the owner wants it so, else as an event.
    #[inline]
    fn take_push(&mut self, stream: Handle, number: u64, tensor: Tensor, sink: &mut Option<&mut dyn Sink<W, D>>) {
        match sink {
            Some(sink) => {
                if let Err(error) = sink.pushed(stream, tensor) {
                    self.refuse_push(stream, number, &error);
                }
            }
            None => self.events.push_back(Event::Pushed { stream, number, tensor: Box::new(tensor) }),
        }
    }

    /// A tensor is all there.
    pub(super) fn push_landed(
        &mut self,
        handle: Handle,
        number: u64,
        (meta, memory): (&[u8], Buffer),
        sink: &mut Option<&mut dyn Sink<W, D>>,
    ) {
        let Some(stream) = self.acceptor.get(handle).filter(|stream| stream.next == number) else { return };
        stream.count(memory.len());
        match Tensor::from_wire(meta, memory) {
            Ok(tensor) => self.take_push(handle, number, tensor, sink),
            Err(error) => self.refuse_push(handle, number, &error),
        }
        self.acceptor.tell(handle);
    }
}

fn bad_meta(length: usize) -> WireError {
    WireError::BadValue { what: "metadata of a push, for a length", found: length as u64 }
}
