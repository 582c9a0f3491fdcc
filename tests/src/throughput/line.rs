//! A virtual line between two nodes: what a write costs, and when its bytes arrive. No clock, no faults.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use sealane_runtime::VolatileSlice;
use sealane_transport::error::LinkError;
use sealane_transport::link::{Landing, Receiver};
use sealane_transport::outbox::Outbox;
use sealane_transport::{Link, LinkKind};

/// From the end of a write until its bytes are at the other side: half a round trip within a rack.
pub(super) const LATENCY: Duration = Duration::from_micros(10);
/// Fixed cost of a write: a system call, and the packets of a small message.
pub(super) const WRITE: Duration = Duration::from_micros(2);
/// Fixed cost of a message: a core writes it and a core reads it.
pub(super) const MESSAGE: Duration = Duration::from_nanos(150);
/// Nanoseconds per 1,000 bytes: 25 Gb/s.
pub(super) const KILOBYTE_NS: u64 = 320;
/// Most bytes in flight in one direction, as limited by socket buffers.
const LINE_BYTES: usize = 4 << 20;

/// What both directions of a line have carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) writes: u64,
    pub(super) bytes: u64,
}

/// State shared by all lines of a run.
#[derive(Default)]
pub(super) struct Air {
    pub(super) now: Cell<Duration>,
    pub(super) carried: Cell<Carried>,
    directions: RefCell<Vec<Rc<RefCell<Direction>>>>,
}

impl Air {
    /// When the next bytes in flight arrive.
    pub(super) fn next_arrival(&self) -> Option<Duration> {
        let directions = self.directions.borrow();
        let next = |direction: &Rc<RefCell<Direction>>| {
            let direction = direction.borrow();
            direction.arrivals.iter().map(|(at, _)| *at).find(|at| *at > self.now.get())
        };
        directions.iter().filter_map(next).min()
    }
}

#[derive(Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// Writes in flight: when each arrives, and its bytes not read yet.
    arrivals: VecDeque<(Duration, usize)>,
    busy_until: Duration,
}

impl Direction {
    fn visible(&self, now: Duration) -> usize {
        self.arrivals.iter().take_while(|(at, _)| *at <= now).map(|(_, bytes)| bytes).sum()
    }

    fn take(&mut self, mut count: usize) {
        self.bytes.drain(..count);
        while count > 0 {
            let (_, bytes) = self.arrivals.front_mut().expect("bytes belong to a write");
            let step = count.min(*bytes);
            *bytes -= step;
            count -= step;
            if *bytes == 0 {
                self.arrivals.pop_front();
            }
        }
    }
}

pub(super) struct Line {
    air: Rc<Air>,
    outgoing: Rc<RefCell<Direction>>,
    incoming: Rc<RefCell<Direction>>,
    landing: Option<Landing>,
    /// Messages that the outbox had counted before this write.
    messages: u64,
}

/// Two ends of a new line.
pub(super) fn line(air: &Rc<Air>) -> (Line, Line) {
    let (one, other) = (Rc::<RefCell<Direction>>::default(), Rc::<RefCell<Direction>>::default());
    air.directions.borrow_mut().extend([one.clone(), other.clone()]);
    let end = |outgoing: &Rc<_>, incoming: &Rc<_>| Line {
        air: air.clone(),
        outgoing: Rc::clone(outgoing),
        incoming: Rc::clone(incoming),
        landing: None,
        messages: 0,
    };
    (end(&one, &other), end(&other, &one))
}

impl Link for Line {
    fn kind(&self) -> LinkKind {
        LinkKind::TCP
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, _more_follows: bool) -> Result<usize, LinkError> {
        let mut direction = self.outgoing.borrow_mut();
        let room = budget.min(LINE_BYTES - direction.bytes.len());
        let mut total = 0;
        while !outbox.is_empty() && total < room {
            let mut slices = [VolatileSlice::empty()];
            outbox.gather_within(&mut slices, room - total);
            let count = slices[0].len();
            direction.bytes.extend(slices[0].to_vec());
            outbox.advance(count);
            total += count;
        }
        if total > 0 {
            let messages = outbox.frames() - self.messages;
            self.messages = outbox.frames();
            let bytes_take = Duration::from_nanos(total as u64 * KILOBYTE_NS / 1000);
            let takes = WRITE + MESSAGE * messages as u32 + bytes_take;
            direction.busy_until = direction.busy_until.max(self.air.now.get()) + takes;
            let arrival = direction.busy_until + LATENCY;
            direction.arrivals.push_back((arrival, total));
            let Carried { writes, bytes } = self.air.carried.get();
            self.air.carried.set(Carried { writes: writes + 1, bytes: bytes + total as u64 });
        }
        Ok(total)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        let mut direction = self.incoming.borrow_mut();
        let mut visible = direction.visible(self.air.now.get());
        let mut total = 0;
        while visible > 0 && total < budget {
            let count = match &mut self.landing {
                Some(landing) => {
                    let ready = direction.bytes.as_slices().0;
                    landing.take(&ready[..ready.len().min(visible)])
                }
                None => {
                    let ready = &direction.bytes.make_contiguous()[..visible];
                    let frames = receiver.frames(ready)?;
                    self.landing = frames.landing;
                    frames.consumed
                }
            };
            if count == 0 {
                break;
            }
            direction.take(count);
            (visible, total) = (visible - count, total + count);
            if self.landing.as_ref().is_some_and(Landing::is_complete) {
                receiver.landed(self.landing.take().expect("just looked at"));
            }
        }
        Ok(total)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, _outbox: &mut Outbox) -> Vec<Landing> {
        self.landing.take().into_iter().collect()
    }
}
