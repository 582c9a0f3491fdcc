//! What one end of a stream knows of the two, and what it owes the other. A state machine without I/O and without the bytes.
//!
//! The two ends hear of each other by pushes, which may fail: then nobody knows whether they have come or will. Each end can also
//! fail by itself, when it hears that its peer is gone, while the other hears nothing. So two rules hold. What is written has
//! arrived when the other end says that it has taken all of it, and not when it was pushed. And an end that fails, or whose owner
//! leaves it early, owes the other a last word (`untold.rs`), which is pushed until a push of it was taken; whoever sends
//! something of a stream that is not known here gets one as well. A stream's number is used once, so that such a word hits no
//! other stream.

use super::frame::Kind;

/// How far the bytes are that are written at this end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Writing {
    /// There may be more of them.
    #[default]
    Open,
    /// Its owner writes no more.
    Finished,
    /// And the other end is told how many there are.
    Told,
    /// The other end has taken in all.
    Delivered,
}

/// What is left to do for a stream that its owner has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing: both ends know all.
    Nothing,
    /// To wait until the other end has taken in all, or has failed.
    Delivery,
    /// To tell the other end that nobody reads what it writes.
    Close,
    /// To tell the other end that the stream has ended in the middle.
    Reset,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct End {
    /// The other end knows of it.
    is_open: bool,
    writing: Writing,
    /// The other end was told before how many bytes there are, some of which are on their way once more.
    was_told: bool,
    /// The other end writes no more, and all that it wrote has come.
    has_all: bool,
    /// It has ended, here or there, before both ends had finished.
    is_failed: bool,
    /// The other end has let go of it, with all that was written here.
    is_closed_with_all: bool,
    /// The other end has written all, some of which came when nobody read it any more.
    is_unread: bool,
    /// Its owner has let go of it.
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

    /// Nothing more is written; the other end need not have taken it.
    pub(super) fn is_finished(&self) -> bool {
        self.writing >= Writing::Finished
    }

    /// The other end is yet to be told that nothing more is written.
    pub(super) fn is_to_tell(&self) -> bool {
        self.writing == Writing::Finished && !self.is_failed
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.writing == Writing::Delivered
    }

    /// Each end has all that the other wrote.
    fn is_complete(&self) -> bool {
        self.has_all && self.is_delivered()
    }

    /// The other end has it.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Its owner writes no more.
    pub(super) fn finish(&mut self) {
        let writing = if self.is_closed_with_all { Writing::Delivered } else { Writing::Finished };
        self.writing = self.writing.max(writing);
    }

    /// How many bytes there are is on its way to the other end.
    pub(super) fn told(&mut self) {
        self.writing = self.writing.max(Writing::Told);
    }

    /// Some of the bytes are on their way once more: how many there are is to be told behind them.
    pub(super) fn untold(&mut self) {
        if self.writing == Writing::Told {
            (self.writing, self.was_told) = (Writing::Finished, true);
        }
    }

    /// The other end writes no more, and all has come.
    pub(super) fn came_whole(&mut self) {
        self.has_all = true;
    }

    /// The other end writes no more, and not all has come. Where nobody reads it any more, it will not.
    pub(super) fn came_in_part(&mut self) {
        self.is_unread |= self.is_left;
    }

    /// The other end has taken in so many bytes, and says that these are all, of `sent` that were written.
    ///
    /// # Errors
    /// They are not.
    pub(super) fn taken(&mut self, bytes: u64, sent: u64) -> Result<(), &'static str> {
        // Some may be on their way once more that have come.
        if self.writing < Writing::Finished || bytes != sent {
            return Err("it has acknowledged an end that there was not");
        }
        self.writing = Writing::Delivered;
        Ok(())
    }

    /// The other end has ended it: `with_all`, if it has let go of it in good order and has taken in all that was written. False
    /// if that is no news.
    pub(super) fn reset_there(&mut self, with_all: bool) -> bool {
        let is_news = self.fail();
        self.is_closed_with_all |= is_news && with_all;
        if self.is_closed_with_all && self.is_finished() {
            self.writing = Writing::Delivered;
        }
        is_news
    }

    /// It fails at this end. True if the other is to be told.
    pub(super) fn fail(&mut self) -> bool {
        let is_news = !self.is_failed && !self.is_complete();
        self.is_failed |= is_news;
        is_news
    }

    /// Its owner lets go of it.
    pub(super) fn leave(&mut self) {
        self.is_left = true;
    }

    /// What is left to do, once its owner has left it.
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

/// Whether who sends this of a stream that has ended here, or never was, is to be told so: it takes the stream for open.
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
