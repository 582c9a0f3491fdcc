//! Flow control: keeps the shared receive queue from running empty.
//!
//! No I/O. Each side of a link has a *window* of the other's receive buffers, and reports with every message how many it
//! returns. A shard's [`Buffers`] never promises more than its shared receive queue holds: a part is reserved so that each link
//! can have [`WINDOW_MIN`], and busy links share the rest.

use super::limits::{WINDOW_MAX, WINDOW_MIN};

/// A shard's receive buffers, and how many of them are promised.
#[derive(Debug)]
pub(super) struct Buffers {
    /// For the windows of new links.
    reserve: u32,
    /// For windows that grow.
    spare: u32,
    total: u32,
}

impl Buffers {
    /// `total` buffers, a quarter of which is for windows that grow.
    pub(super) fn new(total: u32) -> Self {
        let spare = total / 4;
        Self { reserve: total - spare, spare, total }
    }

    /// True if one more link can begin.
    pub(super) fn has_room(&self) -> bool {
        self.reserve >= WINDOW_MIN
    }

    /// Number of buffers promised to peers.
    pub(super) fn promised(&self) -> u32 {
        self.total - self.reserve - self.spare
    }
}

/// One link's credit, in both directions.
#[derive(Debug, Clone)]
pub(super) struct Credits {
    /// How many messages the peer has buffers for.
    to_send: u32,
    /// How many buffers of this side the peer may fill, including those that it was not told of.
    window: u32,
    /// How many of these it has filled, got back, and was not told of yet.
    owed: u32,
}

impl Credits {
    /// The credit of a new link; `None` if every buffer is promised.
    pub(super) fn begin(buffers: &mut Buffers) -> Option<Credits> {
        buffers.reserve = buffers.reserve.checked_sub(WINDOW_MIN)?;
        Some(Credits { to_send: 0, window: WINDOW_MIN, owed: 0 })
    }

    /// Sets the peer's initial promise.
    pub(super) fn set_peer_window(&mut self, window: u32) {
        self.to_send = window;
    }

    /// The link ends: its buffers can be promised to others.
    pub(super) fn end(&self, buffers: &mut Buffers) {
        buffers.reserve += WINDOW_MIN;
        buffers.spare += self.window - WINDOW_MIN;
    }

    /// How many buffers of this side the peer may fill.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// True if a message with more than credit may be sent. The last buffer is reserved for credit: otherwise two sides that
    /// have both sent all that they may could not return credit.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.to_send >= 2
    }

    /// True if credit must be sent by itself, unless something else is sent soon.
    #[inline]
    pub(super) fn must_tell(&self) -> bool {
        // A message with only credit takes one buffer, which alone does not cause a message back: no ping-pong.
        self.owed >= (self.window / 2).max(2) && self.to_send >= 1
    }

    /// A message is sent, or a write with immediate data.
    #[inline]
    pub(super) fn sent(&mut self) {
        self.to_send -= 1;
    }

    /// Number of buffers that a message returns; they count as told.
    #[inline]
    pub(super) fn tell(&mut self) -> u16 {
        std::mem::take(&mut self.owed) as u16
    }

    /// The peer has returned buffers; false if there cannot be as many.
    #[inline]
    pub(super) fn heard(&mut self, credits: u32) -> bool {
        self.to_send = self.to_send.saturating_add(credits);
        self.to_send <= u32::from(u16::MAX)
    }

    /// True if the peer has filled more buffers than it was told of.
    #[inline]
    pub(super) fn is_overdrawn(&self) -> bool {
        self.owed > self.window
    }

    /// A buffer that the peer has filled was returned to the receive queue.
    #[inline]
    pub(super) fn refilled(&mut self, buffers: &mut Buffers) {
        self.owed += 1;
        if self.owed < (self.window / 2).max(2) {
            return;
        }
        // A peer that fills half its window before it hears of it gets a larger window, if there are spare buffers.
        if buffers.spare < buffers.total / 16 && self.window > 2 * WINDOW_MIN {
            let back = (self.window / 4).min(self.owed - 1);
            (self.window, self.owed) = (self.window - back, self.owed - back);
            buffers.spare += back;
        } else {
            let more = self.window.min(WINDOW_MAX - self.window).min(buffers.spare / 2);
            (self.window, self.owed) = (self.window + more, self.owed + more);
            buffers.spare -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sides and the messages in flight between them.
    struct Pair {
        buffers: [Buffers; 2],
        credits: [Credits; 2],
        /// Messages in flight to each side: the credit that each grants.
        under_way: [Vec<u16>; 2],
    }

    impl Pair {
        fn new(totals: [u32; 2]) -> Self {
            let mut buffers = totals.map(Buffers::new);
            let [one, other] = &mut buffers;
            let mut credits = [Credits::begin(one).unwrap(), Credits::begin(other).unwrap()];
            credits.iter_mut().for_each(|credits| credits.set_peer_window(WINDOW_MIN));
            Self { buffers, credits, under_way: [Vec::new(), Vec::new()] }
        }

        fn send(&mut self, from: usize) {
            self.credits[from].sent();
            let told = self.credits[from].tell();
            self.under_way[1 - from].push(told);
            assert!(
                self.under_way[1 - from].len() as u32 <= self.credits[1 - from].window,
                "a message without a buffer"
            );
        }

        fn receive(&mut self, at: usize) {
            let told = self.under_way[at].remove(0);
            assert!(self.credits[at].heard(told.into()));
            self.credits[at].refilled(&mut self.buffers[at]);
            assert!(!self.credits[at].is_overdrawn());
            let Buffers { reserve, spare, total } = self.buffers[at];
            assert!(reserve + spare <= total && self.buffers[at].promised() == self.credits[at].window);
        }
    }

    /// Both sides always have something to say, and are served in an order that a seed chooses: nobody is ever without
    /// a buffer, and nobody starves.
    #[test]
    fn nobody_overruns_and_nobody_starves() {
        for totals in [[4, 4], [8, 64], [1024, 5], [1024, 1024]] {
            for seed in 1..50_u64 {
                let mut pair = Pair::new(totals);
                let mut random = seed;
                let mut sent = [0_u32; 2];
                for _ in 0..5_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let side = (random >> 40) as usize & 1;
                    if random >> 50 & 1 == 0 {
                        if pair.credits[side].may_send() {
                            pair.send(side);
                            sent[side] += 1;
                        } else if pair.credits[side].must_tell() {
                            pair.send(side);
                        }
                    } else if !pair.under_way[side].is_empty() {
                        pair.receive(side);
                    }
                }
                assert!(sent.iter().all(|&count| count > 50), "totals {totals:?}, seed {seed}: {sent:?}");
            }
        }
    }

    #[test]
    fn credit_alone_is_not_answered_by_credit_alone() {
        let mut pair = Pair::new([1024, 1024]);
        for _ in 0..2 {
            pair.send(0);
            pair.receive(1);
        }
        assert!(pair.credits[1].must_tell());
        pair.send(1);
        pair.receive(0);
        assert!(!pair.credits[0].must_tell() && !pair.credits[1].must_tell());
    }

    #[test]
    fn a_busy_window_grows_and_gives_back_what_others_need() {
        let mut pair = Pair::new([1024, 1024]);
        for _ in 0..1000 {
            while pair.credits[0].may_send() {
                pair.send(0);
            }
            while !pair.under_way[1].is_empty() {
                pair.receive(1);
            }
            if pair.credits[1].must_tell() {
                pair.send(1);
                pair.receive(0);
            }
        }
        assert_eq!(pair.credits[1].window(), WINDOW_MAX);
        // Other links have taken all spare buffers.
        pair.buffers[1].spare = 0;
        pair.buffers[1].total = 1024;
        let mut credits = Credits { to_send: 3, window: WINDOW_MAX, owed: 0 };
        let mut buffers = Buffers { reserve: 0, spare: 0, total: 1024 };
        for _ in 0..WINDOW_MAX / 2 {
            credits.refilled(&mut buffers);
        }
        assert!(buffers.spare > 0 && credits.window() + buffers.spare == WINDOW_MAX);
    }
}
