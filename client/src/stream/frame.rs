//! What two ends of a stream push to each other: 24 bytes, little-endian, and what follows them. A tensor of bytes each.
//!
//! kind `u8`, from `u8` (1 if its sender has dialed the stream), zeros (6), the stream's number `u64`, which its dialer chose, and a
//! value `u64`.

/// What a frame is about, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The sender dials the listener whose name follows; the other end may send so many bytes.
    Open(u64),
    /// The stream is open; the dialer may send so many bytes.
    Accept(u64),
    /// Bytes follow, so many after the stream's first.
    Data(u64),
    /// The other end may send so many bytes, since the stream began.
    Window(u64),
    /// No bytes follow the first so many.
    Finish(u64),
    /// The stream has ended for the reason that follows, which is of this [`Code`](sealane_transport::Code), or [`CLOSED`].
    Reset(u64),
}

/// In place of a code: its owner has finished, and let go of it; what the other end writes is read by nobody.
pub(super) const CLOSED: u64 = 0;

/// The first bytes of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) is_from_dialer: bool,
    pub(super) stream: u64,
}

impl Frame {
    pub(super) const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Frame::BYTES] {
        let (kind, value) = match self.kind {
            Kind::Open(value) => (0, value),
            Kind::Accept(value) => (1, value),
            Kind::Data(value) => (2, value),
            Kind::Window(value) => (3, value),
            Kind::Finish(value) => (4, value),
            Kind::Reset(value) => (5, value),
        };
        let mut bytes = [0; Frame::BYTES];
        (bytes[0], bytes[1]) = (kind, self.is_from_dialer.into());
        bytes[8..16].copy_from_slice(&self.stream.to_le_bytes());
        bytes[16..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// A frame, and what follows it; `None` if it is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let (head, rest) = bytes.split_at_checked(Frame::BYTES)?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let value = number(16)?;
        let kind = match head[0] {
            0 => Kind::Open(value),
            1 => Kind::Accept(value),
            2 => Kind::Data(value),
            3 => Kind::Window(value),
            4 => Kind::Finish(value),
            5 => Kind::Reset(value),
            _ => return None,
        };
        let is_from_dialer = match head[1] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let is_zero = head[2..8].iter().all(|byte| *byte == 0);
        is_zero.then_some((Frame { kind, is_from_dialer, stream: number(8)? }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_nothing_else_is_one() {
        let kinds = [Kind::Open, Kind::Accept, Kind::Data, Kind::Window, Kind::Finish, Kind::Reset];
        for (kind, is_from_dialer) in kinds.into_iter().flat_map(|kind| [(kind(u64::MAX - 1), true), (kind(7), false)])
        {
            let frame = Frame { kind, is_from_dialer, stream: 1 << 63 };
            let mut bytes = frame.to_bytes().to_vec();
            bytes.extend(b"rest");
            assert_eq!(Frame::parse(&bytes), Some((frame, &b"rest"[..])));
            assert_eq!(Frame::parse(&bytes[..Frame::BYTES - 1]), None);
            for (at, byte) in [(0, 6), (1, 2), (2, 1), (7, 255)] {
                let before = std::mem::replace(&mut bytes[at], byte);
                assert_eq!(Frame::parse(&bytes), None);
                bytes[at] = before;
            }
        }
    }
}
