//! Which connection each direction of a stream goes by, as one of its two ends knows it. A state machine without I/O and without the bytes.
//!
//! Each end hears of the other by pushes, of which some may be made again and be overtaken meanwhile, and of a connection that breaks by
//! itself, sooner or later than the other. So four rules hold. A connection carries nothing before both ends have it. A direction is
//! taken up by its writer and given up by its reader, who says how far it came; a writer that finds it broken asks for that. A connection
//! that is broken one way is not taken up the other. The words that begin a direction are numbered: one that comes again is known.

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Switch {
    /// The daemon is asked for a connection.
    is_asking: bool,
    /// It was offered to the other end, which is not known to have it.
    offered: Option<u64>,
    /// The last one that both ends have, and whether what is written may go by it.
    shared: Option<u64>,
    may_write: bool,
    /// What is written goes by, and what is read comes by.
    writes: Option<u64>,
    reads: Option<u64>,
    /// How many were written and read, one after the other.
    written: u64,
    read: u64,
}

/// What to make of the word that bytes come by a connection from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coming {
    /// They do.
    Begins,
    /// It came before.
    Again,
    /// This end has no such connection, or reads another.
    Wrong,
}

impl Switch {
    /// A connection may be asked for: there is none that is used or could be.
    pub(super) fn wants(&self) -> bool {
        !self.is_asking && self.offered.is_none() && !self.may_write && self.writes.is_none() && self.reads.is_none()
    }

    /// The daemon is asked. False if it is already.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asking, true)
    }

    /// It gives none.
    pub(super) fn is_refused(&mut self) {
        self.is_asking = false;
    }

    /// It has made one, which is offered to the other end.
    pub(super) fn offers(&mut self, number: u64) {
        (self.is_asking, self.offered) = (false, Some(number));
    }

    /// It has given the one that the other end has offered: both have it. False if that is of no use: this end has not yet heard how the
    /// last one ended.
    pub(super) fn has(&mut self, number: u64) -> bool {
        self.is_asking = false;
        let is_free = self.writes.is_none() && self.reads.is_none();
        if is_free {
            (self.shared, self.may_write) = (Some(number), true);
        }
        is_free
    }

    /// The one of that number is used, or may be.
    pub(super) fn uses(&self, number: u64) -> bool {
        [self.offered, self.shared, self.writes, self.reads].contains(&Some(number))
    }

    /// The other end has the one that was offered to it.
    pub(super) fn is_taken(&mut self, number: u64) {
        if self.offered.take_if(|offered| *offered == number).is_some() {
            (self.shared, self.may_write) = (Some(number), true);
        }
    }

    /// What is written goes by the shared one from now on, if it may: its number, and how many that makes.
    pub(super) fn take_up(&mut self) -> Option<(u64, u64)> {
        let number = self.shared.filter(|_| self.may_write && self.writes.is_none())?;
        self.writes = Some(number);
        self.written += 1;
        Some((number, self.written))
    }

    /// The other end has taken one up. `is_read`: its bytes are wanted.
    pub(super) fn comes_by(&mut self, number: u64, serial: u64, is_read: bool) -> Coming {
        if serial <= self.read {
            return Coming::Again;
        }
        // The word that it has what was offered may have been refused.
        self.is_taken(number);
        if self.shared != Some(number) || self.reads.is_some() {
            return Coming::Wrong;
        }
        self.read = serial;
        self.reads = Some(number).filter(|_| is_read);
        Coming::Begins
    }

    /// What is read comes by.
    pub(super) fn reads(&self) -> Option<u64> {
        self.reads
    }

    /// The other end cannot have the one of that number, or can write no more to it. True if it is read.
    pub(super) fn is_broken_there(&mut self, number: u64) -> bool {
        self.offered.take_if(|offered| *offered == number);
        self.is_broken(number);
        self.reads == Some(number)
    }

    /// The one that is read is given up; its number.
    pub(super) fn give_up(&mut self) -> Option<u64> {
        let number = self.reads.take()?;
        self.is_broken(number);
        Some(number)
    }

    /// The other end has given up the one of that number. True if it was written: what did not come goes another way.
    pub(super) fn is_given_up(&mut self, number: u64) -> bool {
        self.is_broken(number);
        self.writes.take_if(|writes| *writes == number).is_some()
    }

    fn is_broken(&mut self, number: u64) {
        self.may_write &= self.shared != Some(number);
    }
}

#[cfg(test)]
mod interleavings;
