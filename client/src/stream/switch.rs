//! Which connection each direction of a stream uses, as one of its two ends knows it. A state machine without I/O and without the bytes.
//!
//! Each end hears of the other by pushes, some of which may be repeated and overtaken meanwhile, and notices a broken connection by
//! itself, sooner or later than the other. So there are four rules. A connection carries nothing before both ends have it. A direction is
//! begun by its writer and given up by its reader, who says how far it came; a writer that finds it broken asks for that. A connection
//! that is broken one way is not used for the other. The frames that begin a direction are numbered: a repeated one is recognized.

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Switch {
    /// The daemon has been asked for a connection.
    is_asking: bool,
    /// Offered to the other end, which is not known to have it.
    offered: Option<u64>,
    /// The last connection that both ends have, and whether it may be used for writing.
    shared: Option<u64>,
    may_write: bool,
    /// The connections used for writing and for reading.
    writes: Option<u64>,
    reads: Option<u64>,
    /// How many connections were used for writing and for reading so far.
    written: u64,
    read: u64,
}

/// What a frame means that says that bytes come by a connection from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coming {
    /// A new direction begins.
    Begins,
    /// A repeated frame.
    Again,
    /// This end has no such connection, or reads another.
    Wrong,
}

impl Switch {
    /// A connection may be asked for: none is in use or could be.
    pub(super) fn wants(&self) -> bool {
        !self.is_asking && self.offered.is_none() && !self.may_write && self.writes.is_none() && self.reads.is_none()
    }

    /// Notes that the daemon is asked. False if it is already.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asking, true)
    }

    /// The daemon gives none.
    pub(super) fn is_refused(&mut self) {
        self.is_asking = false;
    }

    /// The daemon has made a connection, which is offered to the other end.
    pub(super) fn offers(&mut self, number: u64) {
        (self.is_asking, self.offered) = (false, Some(number));
    }

    /// The daemon has given the connection that the other end has offered: both have it. False if that is of no use, because this end has
    /// not heard yet how the last one ended.
    pub(super) fn has(&mut self, number: u64) -> bool {
        self.is_asking = false;
        let is_free = self.writes.is_none() && self.reads.is_none();
        if is_free {
            (self.shared, self.may_write) = (Some(number), true);
        }
        is_free
    }

    /// The connection of that number is in use, or may be.
    pub(super) fn uses(&self, number: u64) -> bool {
        [self.offered, self.shared, self.writes, self.reads].contains(&Some(number))
    }

    /// The other end has the connection that was offered to it.
    pub(super) fn is_taken(&mut self, number: u64) {
        if self.offered.take_if(|offered| *offered == number).is_some() {
            (self.shared, self.may_write) = (Some(number), true);
        }
    }

    /// Begins writing to the shared connection, if allowed: its number, and how many have been used for writing, including it.
    pub(super) fn take_up(&mut self) -> Option<(u64, u64)> {
        let number = self.shared.filter(|_| self.may_write && self.writes.is_none())?;
        self.writes = Some(number);
        self.written += 1;
        Some((number, self.written))
    }

    /// The other end begins to write to a connection. `is_read`: its bytes are wanted.
    pub(super) fn comes_by(&mut self, number: u64, serial: u64, is_read: bool) -> Coming {
        if serial <= self.read {
            return Coming::Again;
        }
        // The frame that says that it has what was offered may have been refused.
        self.is_taken(number);
        if self.shared != Some(number) || self.reads.is_some() {
            return Coming::Wrong;
        }
        self.read = serial;
        self.reads = Some(number).filter(|_| is_read);
        Coming::Begins
    }

    /// The connection being read.
    pub(super) fn reads(&self) -> Option<u64> {
        self.reads
    }

    /// The other end cannot have that connection, or cannot write to it any more. True if it is being read here.
    pub(super) fn is_broken_there(&mut self, number: u64) -> bool {
        self.offered.take_if(|offered| *offered == number);
        self.is_broken(number);
        self.reads == Some(number)
    }

    /// Gives up the connection being read; returns its number.
    pub(super) fn give_up(&mut self) -> Option<u64> {
        let number = self.reads.take()?;
        self.is_broken(number);
        Some(number)
    }

    /// The other end has given up that connection. True if it was being written: what did not arrive goes another way.
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
