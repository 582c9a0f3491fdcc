//! A station: what works one message after the other, in the order in which they come. Pure; two numbers each.

use super::clock::Tick;

/// A shard, or one direction of a NIC.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Station {
    /// When it has done all that it was given.
    free: Tick,
    /// What it was given since counting began.
    worked: Tick,
}

impl Station {
    /// It gets work at `from`. When that is done.
    pub(super) fn work(&mut self, from: Tick, work: Tick) -> Tick {
        self.free = self.free.max(from) + work;
        self.worked += work;
        self.free
    }

    /// Counts only what is left to do, and what comes.
    pub(super) fn count_from(&mut self, now: Tick) {
        self.worked = self.free.saturating_sub(now);
    }

    /// What it has done since counting began.
    pub(super) fn worked_by(&self, now: Tick) -> Tick {
        self.worked.saturating_sub(self.free.saturating_sub(now))
    }
}

/// A NIC, which sends and receives at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nic {
    sending: Station,
    receiving: Station,
    /// When the last byte of the message before was taken in.
    received: Tick,
}

impl Nic {
    /// It gets a message at `from` that takes so long. When its first byte leaves.
    pub(super) fn send(&mut self, from: Tick, work: Tick) -> Tick {
        self.sending.work(from, work) - work
    }

    /// The first byte of a message reaches it at `from`; by itself the message takes `work`, but its sender needs `sending` for
    /// it. When its last byte is taken in: bytes are as they come, so an idle NIC adds nothing to what the sender needs.
    pub(super) fn receive(&mut self, from: Tick, work: Tick, sending: Tick) -> Tick {
        let taken_in = self.receiving.work(from, work).max(from + sending);
        // In order, however slow the sender of the one before is.
        self.received = self.received.max(taken_in);
        self.received
    }

    /// Counts only what is left to do, and what comes.
    pub(super) fn count_from(&mut self, now: Tick) {
        self.sending.count_from(now);
        self.receiving.count_from(now);
    }

    /// What the busier direction has done since counting began.
    pub(super) fn worked_by(&self, now: Tick) -> Tick {
        self.sending.worked_by(now).max(self.receiving.worked_by(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_work() {
        let mut station = Station::default();
        assert_eq!(station.work(10, 5), 15);
        assert_eq!(station.work(12, 5), 20);
        assert_eq!(station.work(30, 5), 35);
        assert_eq!((station.worked_by(35), station.worked_by(32)), (15, 12));
        station.count_from(33);
        assert_eq!((station.worked_by(33), station.worked_by(40)), (0, 2));
    }

    #[test]
    fn bytes_are_taken_in_as_they_come() {
        let mut nic = Nic::default();
        assert_eq!(nic.send(10, 4), 10);
        assert_eq!(nic.send(11, 4), 14);
        // Alone: when the last byte comes. Two at once: one after the other.
        assert_eq!(nic.receive(100, 4, 4), 104);
        assert_eq!(nic.receive(100, 4, 4), 108);
        // From a slower sender, and then from a faster one, which does not overtake.
        assert_eq!(nic.receive(200, 4, 16), 216);
        assert_eq!(nic.receive(201, 4, 4), 216);
    }
}
