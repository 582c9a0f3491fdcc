//! What one end of a stream knows of both ends, and what it owes the other. A state machine without I/O and without the bytes.
//!
//! The two ends hear of each other by pushes, which may fail: then nobody knows whether they arrived or will. Each end can also
//! fail by itself, when it hears that its peer is gone, while the other hears nothing. So there are two rules. Bytes have
//! arrived when the other end says that it has taken all of them, not when they were pushed. And an end that fails, or whose owner
//! leaves it early, owes the other a last word (`untold.rs`), which is pushed until a push of it was taken; a peer that sends
//! something of a stream that is unknown here gets one as well. A stream's number is used only once, so that such a word hits no
//! other stream.

use super::frame::Kind;

/// How far this end's bytes have got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Writing {
    /// More may be written.
    #[default]
    Open,
    /// The owner writes no more.
    Finished,
    /// The other end was told how many bytes there are.
    Told,
    /// The other end has taken in all of them.
    Delivered,
}

/// What is left to do for a stream after its owner has left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: both ends know everything.
    Nothing,
    /// Wait until the other end has taken in everything, or has failed.
    Delivery,
    /// Tell the other end that nobody reads what it writes.
    Close,
    /// Tell the other end that the stream has ended in the middle.
    Reset,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct End {
    /// The other end knows of the stream.
    is_open: bool,
    writing: Writing,
    /// The other end was told the number of bytes before, some of which are now being sent again.
    was_told: bool,
    /// The other end writes no more, and everything it wrote has come.
    has_all: bool,
    /// The stream ended, here or there, before both ends had finished.
    is_failed: bool,
    /// The other end has closed the stream, after taking in everything written here.
    is_closed_with_all: bool,
    /// The other end has written everything, but some of it came when nobody read any more.
    is_unread: bool,
    /// The owner has left the stream.
    is_left: bool,
}

impl End {
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn is_failed(&self) -> bool {
        self.is_failed
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left
    }

    pub(super) fn has_all(&self) -> bool {
        self.has_all
    }

    /// Nothing more is written; the other end may not have taken it in yet.
    pub(super) fn is_finished(&self) -> bool {
        self.writing >= Writing::Finished
    }

    /// The other end has not been told yet that nothing more is written.
    pub(super) fn is_to_tell(&self) -> bool {
        self.writing == Writing::Finished && !self.is_failed
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.writing == Writing::Delivered
    }

    /// Each end has everything that the other wrote.
    fn is_complete(&self) -> bool {
        self.has_all && self.is_delivered()
    }

    /// The other end has the stream.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// The owner writes no more.
    pub(super) fn finish(&mut self) {
        let writing = if self.is_closed_with_all { Writing::Delivered } else { Writing::Finished };
        self.writing = self.writing.max(writing);
    }

    /// The number of bytes is on its way to the other end.
    pub(super) fn told(&mut self) {
        self.writing = self.writing.max(Writing::Told);
    }

    /// Some bytes are being sent again: their number must be told again behind them.
    pub(super) fn untold(&mut self) {
        if self.writing == Writing::Told {
            (self.writing, self.was_told) = (Writing::Finished, true);
        }
    }

    /// The other end writes no more, and everything has come.
    pub(super) fn came_whole(&mut self) {
        self.has_all = true;
    }

    /// The other end writes no more, but not everything has come. If nobody reads any more, it will not.
    pub(super) fn came_in_part(&mut self) {
        self.is_unread |= self.is_left;
    }

    /// The other end says that it has taken in so many bytes and that these are all; `sent` were written.
    ///
    /// # Errors
    /// They are not all.
    pub(super) fn taken(&mut self, bytes: u64, sent: u64) -> Result<(), &'static str> {
        // Bytes that have come may also be on their way again.
        if self.writing < Writing::Finished || bytes != sent {
            return Err("it has acknowledged an end that there was not");
        }
        self.writing = Writing::Delivered;
        Ok(())
    }

    /// The other end has ended the stream: `with_all` if it has closed it after taking in everything that was written here. False if that
    /// was known.
    pub(super) fn reset_there(&mut self, with_all: bool) -> bool {
        let is_news = self.fail();
        self.is_closed_with_all |= is_news && with_all;
        if self.is_closed_with_all && self.is_finished() {
            self.writing = Writing::Delivered;
        }
        is_news
    }

    /// This end fails. True if the other is to be told.
    pub(super) fn fail(&mut self) -> bool {
        let is_news = !self.is_failed && !self.is_complete();
        self.is_failed |= is_news;
        is_news
    }

    /// The owner leaves the stream.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
    }

    /// What is left to do after the owner has left.
    pub(super) fn rest(&self) -> Rest {
        match self.writing {
            _ if self.is_failed => Rest::Nothing,
            Writing::Finished if self.was_told => {
                if self.is_unread {
                    Rest::Close
                } else {
                    Rest::Delivery
                }
            }
            Writing::Open | Writing::Finished => Rest::Reset,
            // Neither end waits for the other to take in what nobody reads. What was written here comes before that word.
            Writing::Told if self.is_unread => Rest::Close,
            Writing::Told => Rest::Delivery,
            Writing::Delivered if self.has_all => Rest::Nothing,
            Writing::Delivered => Rest::Close,
        }
    }
}

/// True if the sender of this frame, about a stream that has ended here or never was, must be told so: it takes the stream for open.
/// Words about an end are not answered, lest two ends answer each other.
pub(super) fn is_answered(kind: Kind) -> bool {
    match kind {
        Kind::Accept(_) | Kind::Data(_) | Kind::Window(_) | Kind::Finish(_) | Kind::Ring(_) => true,
        Kind::Socket(_) | Kind::Broken(_) | Kind::Lost(_) | Kind::Offer(_) | Kind::Have(_) => true,
        Kind::Open(_) | Kind::Taken(_) | Kind::Reset(_) => false,
    }
}

#[cfg(test)]
mod interleavings;
