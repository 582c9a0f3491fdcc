//! One end of a stream by itself, for the fuzz target in `tests/`.
#![doc(hidden)]
#![allow(missing_docs, reason = "it is no part of the crate's interface")]

use sealane_runtime::Buffer;

use super::{
    connection::{Connection, Lent},
    frame::Frame,
};

pub struct FarEnd(Connection);

impl FarEnd {
    pub fn new(window: u64) -> Self {
        Self(Connection::new(window, Lent::new(256 << 10)))
    }

    /// Takes in what a peer has pushed, as a task does; returns how many bytes of the stream that was, `None` if it is no frame.
    pub fn take(&mut self, pushed: &[u8]) -> Option<Result<usize, &'static str>> {
        let (frame, rest) = Frame::parse(pushed)?;
        assert_eq!(frame.to_bytes(), pushed[..Frame::BYTES], "a frame is written in one way");
        let before = self.0.incoming.came();
        let taken = self.0.take_in(frame.kind, Buffer::from_vec(pushed.to_vec()));
        let came = (self.0.incoming.came() - before) as usize;
        assert!(came == 0 || came == rest.len());
        Some(taken.map(|()| came))
    }

    pub fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.0.incoming.read(into).expect("it has no socket");
        self.0.incoming.news();
        count
    }

    /// Bytes that wait to be read, and bytes that may be written now.
    pub fn counts(&self) -> (u64, usize) {
        (self.0.incoming.unread(), self.0.outgoing.room())
    }
}

/// A frame of that kind, with its contents.
pub fn frame(kind: u8, is_from_dialer: bool, stream: u64, value: u64, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, is_from_dialer.into(), 0, 0, 0, 0, 0, 0];
    bytes.extend(stream.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes.extend(rest);
    bytes
}
