//! Whatever happens to calls of a batch, each ends as it would by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
};

use proptest::prelude::*;
use sealane_runtime::Buffer;
use sealane_transport::{
    Error, Tensor,
    shm::SmallCall,
    tensor::{DType, TensorMeta},
};

use super::*;
use crate::limits::CALLS_MAX;

const PEER: &str = "ps";
const SEGMENT: u16 = 3;
/// Two batches, and calls behind them that are too few to be one.
const CALLS: usize = 2 * BATCH_CALLS + BATCH_CALLS_MIN - 1;

/// What happens; calls are named by their place.
#[derive(Debug, Clone)]
enum Deed {
    /// Some calls end well, as the daemon says in one record.
    Ends {
        segment: u16,
        first: usize,
        count: usize,
        is_backwards: bool,
    },
    /// One ends with a tensor in the receive area.
    EndsInArea(usize),
    EndsAlone(usize),
    Fails {
        call: usize,
        memory_back: bool,
    },
    Returns(usize),
    /// The caller learns how one ended, or some.
    Takes(usize),
    TakesSome {
        first: usize,
        count: usize,
    },
    GivesUp {
        call: usize,
        cancel: bool,
    },
    Sleeps {
        call: usize,
        watched: bool,
    },
    Wakes(usize),
    IsOverdue(usize),
    /// Another recv of the same key, by itself.
    AsksAgain(usize),
    /// Such a recv is given up after its tensor has come.
    LeavesAnother(usize),
    StepIsOver(i64),
    DeadlinesPass,
    LaneOpens(&'static str),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let call = || 0..CALLS;
    let some = || (call(), 1..CALLS);
    let segment = prop_oneof![20 => Just(SEGMENT), 1 => Just(SEGMENT + 1)];
    let deed = prop_oneof![
        8 => (segment, some(), any::<bool>())
            .prop_map(|(segment, (first, count), is_backwards)| Deed::Ends { segment, first, count, is_backwards }),
        1 => call().prop_map(Deed::EndsInArea),
        3 => call().prop_map(Deed::EndsAlone),
        1 => (call(), any::<bool>()).prop_map(|(call, memory_back)| Deed::Fails { call, memory_back }),
        1 => call().prop_map(Deed::Returns),
        4 => call().prop_map(Deed::Takes),
        8 => some().prop_map(|(first, count)| Deed::TakesSome { first, count }),
        3 => (call(), any::<bool>()).prop_map(|(call, cancel)| Deed::GivesUp { call, cancel }),
        4 => (call(), any::<bool>()).prop_map(|(call, watched)| Deed::Sleeps { call, watched }),
        2 => call().prop_map(Deed::Wakes),
        1 => call().prop_map(Deed::IsOverdue),
        1 => call().prop_map(Deed::AsksAgain),
        1 => call().prop_map(Deed::LeavesAnother),
        2 => (1..3_i64).prop_map(Deed::StepIsOver),
        1 => Just(Deed::DeadlinesPass),
        1 => prop_oneof![Just(PEER), Just("other")].prop_map(Deed::LaneOpens),
    ];
    prop::collection::vec(deed, 0..30)
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn meta() -> TensorMeta {
    TensorMeta::new(DType::U8, &[5]).unwrap()
}

/// Calls of one direction in one table.
struct Table {
    calls: Calls,
    after: Aftermath,
    direction: Direction,
    numbers: Vec<u32>,
    /// One for each call.
    wakers: Vec<Arc<Woken>>,
}

impl Table {
    fn new(direction: Direction, as_batch: bool) -> Table {
        let (mut calls, mut after, mut list) = (Calls::default(), Aftermath::default(), CallListBuf::default());
        let keys: Vec<String> = (0..CALLS).map(|call| format!("w{call}")).collect();
        assert!(keys.iter().all(|key| list.push(SmallCall { call: 0, key, meta: &[], bytes: &[] })));
        match as_batch {
            true => calls.open_all(&mut list, direction, SEGMENT, Tick::now()),
            false => list.number(|| calls.open(direction, SEGMENT, Tick::now(), Memory::Nothing).ok().unwrap()),
        }
        match (direction, as_batch) {
            (Direction::Recv, true) => calls.all_asked(list.as_list(), (PEER, 1), &mut after),
            (Direction::Recv, false) => {
                list.as_list().iter().for_each(|recv| calls.asked(recv.call, (PEER, 1, recv.key), false, &mut after));
            }
            _ => {}
        }
        let numbers: Vec<u32> = list.as_list().numbers().collect();
        assert_eq!((calls.held(), calls.batches.under_way()), (CALLS, if as_batch { 2 * BATCH_CALLS } else { 0 }));
        let wakers = numbers.iter().map(|_| Arc::default()).collect();
        Table { calls, after, direction, numbers, wakers }
    }

    fn end(&mut self, segment: u16, ended: &[usize]) -> Result<(), Fault> {
        let Table { calls, after, direction, numbers, .. } = self;
        if *direction == Direction::Send {
            let sent: Vec<u32> = ended.iter().map(|call| numbers[*call]).collect();
            return calls.all_sent(segment, &sent, after);
        }
        let (mut list, meta) = (CallListBuf::default(), meta());
        for call in ended {
            let arrived = SmallCall { call: numbers[*call], key: "", meta: meta.as_wire(), bytes: &[*call as u8; 5] };
            assert!(list.push(arrived));
        }
        calls.all_received(segment, list.as_list(), after)
    }

    /// What the callers see of some calls that have ended, one behind the other.
    fn take_some(&mut self, first: usize, count: usize) -> String {
        let numbers = self.numbers[first..self.numbers.len().min(first + count)].to_vec();
        let (mut seen, mut rest) = (String::new(), &numbers[..]);
        while rest.first().is_some_and(|call| self.calls.is_owed(*call)) {
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            let taken = match self.direction {
                Direction::Send => self.calls.take_all_sent(rest, &mut sent),
                _ => self.calls.take_all_received(rest, &mut received),
            };
            sent.into_iter().for_each(|outcome| seen += &format!("{:?}", Some(outcome)));
            let received = received.into_iter().map(|outcome| outcome.map(|tensor| tensor.bytes().to_vec()));
            received.for_each(|outcome| seen += &format!("{:?}", Some(outcome)));
            if taken == 0 {
                seen += &self.take(first + numbers.len() - rest.len());
            }
            rest = &rest[taken.max(1)..];
        }
        seen
    }

    fn take(&mut self, call: usize) -> String {
        let number = self.numbers[call];
        if self.direction == Direction::Send {
            return format!("{:?}", self.calls.take_sent(number));
        }
        let received = self.calls.take_received(number).map(Received::finish);
        format!("{:?}", received.map(|outcome| outcome.map(|tensor| tensor.bytes().to_vec())))
    }

    /// Another recv of the same key.
    fn ask_again(&mut self, call: usize) -> u32 {
        let again = self.calls.open(Direction::Recv, SEGMENT, Tick::now(), Memory::Nothing).ok().unwrap();
        self.calls.asked(again, (PEER, 1, &format!("w{call}")), false, &mut self.after);
        again
    }

    /// True if the daemon has not ended a call.
    fn is_under_way(&mut self, call: usize) -> bool {
        let Table { calls, numbers, .. } = self;
        match calls.batches.get(numbers[call]) {
            Some((batch, at)) => batch.ended & 1 << at == 0,
            None => calls.own_slot(numbers[call]).is_some_and(|slot| slot.daemon == Daemon::Working),
        }
    }

    /// True if the daemon has ended it, and still has its memory.
    fn is_held(&mut self, call: usize) -> bool {
        self.calls.own_slot(self.numbers[call]).is_some_and(|slot| slot.daemon == Daemon::Holding)
    }

    /// Does it, and says what can be seen of it.
    fn carry_out(&mut self, deed: &Deed) -> Result<String, Fault> {
        let mut seen = String::new();
        match *deed {
            Deed::Ends { segment, first, count, is_backwards } => {
                let mut ended: Vec<usize> = (first..CALLS.min(first + count)).collect();
                // Most records say something true.
                if segment == SEGMENT {
                    ended.retain(|call| self.is_under_way(*call));
                }
                if is_backwards {
                    ended.reverse();
                }
                self.end(segment, &ended)?;
            }
            Deed::EndsInArea(call) | Deed::EndsAlone(call) | Deed::Fails { call, .. } if !self.is_under_way(call) => {}
            Deed::EndsAlone(call) => {
                let (bytes, meta) = ([call as u8; 5], meta());
                let arrived = Arrived::Inline(&bytes);
                self.calls.received(SEGMENT, self.numbers[call], meta.as_wire(), arrived, &mut self.after)?;
            }
            Deed::EndsInArea(call) => {
                let (call, meta, area) = (self.numbers[call], meta(), Arrived::Area(Buffer::from_vec(vec![9; 5])));
                self.calls.received(SEGMENT, call, meta.as_wire(), area, &mut self.after)?;
            }
            Deed::Fails { call, memory_back } => {
                let error = Error::invalid("test");
                self.calls.failed(SEGMENT, self.numbers[call], memory_back, error, &mut self.after)?;
            }
            Deed::Returns(call) if !self.is_held(call) => {}
            Deed::Returns(call) => self.calls.returned(SEGMENT, self.numbers[call], &mut self.after)?,
            Deed::Takes(call) => seen += &self.take(call),
            Deed::TakesSome { first, count } => seen += &self.take_some(first, count),
            Deed::GivesUp { call, cancel } => {
                seen += &format!("{:?}", self.calls.forsake(self.numbers[call], cancel, &mut self.after));
            }
            Deed::Sleeps { call, watched } => {
                let waker = self.wakers[call].clone().into();
                self.calls.wake_at_end(self.numbers[call], &waker, watched, &mut self.after);
            }
            Deed::Wakes(call) => {
                let waker = self.wakers[call].clone().into();
                self.calls.wake_at_end(self.numbers[call], &waker, false, &mut self.after);
                self.calls.wake_nobody(self.numbers[call]);
            }
            Deed::IsOverdue(call) => {
                self.calls.overdue(self.numbers[call], Error::invalid("overdue"), &mut self.after);
            }
            Deed::AsksAgain(call) => {
                // It has its own place behind the calls.
                let again = self.ask_again(call);
                self.numbers.push(again);
                self.wakers.push(Arc::default());
            }
            Deed::LeavesAnother(call) => {
                let (another, meta) = (self.ask_again(call), meta());
                let Table { calls, after, .. } = self;
                calls.received(SEGMENT, another, meta.as_wire(), Arrived::Inline(&[8; 5]), after)?;
                calls.forsake(another, true, after);
            }
            Deed::StepIsOver(step) => self.calls.forget_step(step, &mut self.after),
            Deed::DeadlinesPass => self.calls.sweep(Tick::NEVER, || Error::invalid("overdue"), &mut self.after),
            Deed::LaneOpens(peer) => {
                let mut recvs: Vec<_> = self.calls.recvs_from(peer).into_iter().map(|recv| (recv.1, recv.2)).collect();
                recvs.sort();
                seen += &format!("{recvs:?}");
            }
        }
        self.after.carry_out();
        while let Some((segment, call)) = self.calls.take_to_cancel() {
            seen += &format!("{segment} {:?}", self.numbers.iter().position(|number| *number == call));
        }
        let Table { calls, numbers, wakers, .. } = self;
        for (number, woken) in numbers.iter().zip(wakers) {
            let (is_owed, woken) = (calls.is_owed(*number), woken.0.load(Ordering::Relaxed));
            seen += &format!(" {is_owed} {woken}");
        }
        let unclaimed = calls.unclaimed().is_empty();
        Ok(seen + &format!("{unclaimed} {} {} {}", calls.held(), calls.watched(), calls.watched_releases()))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_to_calls_of_a_batch_happens_to_each_as_it_would_alone(
        (are_sends, deeds, gone) in (any::<bool>(), deeds(), any::<bool>()),
    ) {
        let direction = if are_sends { Direction::Send } else { Direction::Recv };
        let mut tables = [true, false].map(|as_batch| Table::new(direction, as_batch));
        for deed in &deeds {
            let is_of_recvs = matches!(deed, Deed::EndsInArea(_) | Deed::EndsAlone(_) | Deed::AsksAgain(_) | Deed::LeavesAnother(_));
            if is_of_recvs && are_sends {
                continue;
            }
            let [batch, alone] = tables.each_mut().map(|table| table.carry_out(deed));
            prop_assert_eq!(batch.is_err(), alone.is_err(), "{:?}", deed);
            if batch.is_err() {
                break;
            }
            prop_assert_eq!(batch, alone, "{:?}", deed);
        }
        let [batch, alone] = tables.each_mut().map(|table| {
            table.calls.end_all(gone, || Error::invalid("gone"), &mut table.after);
            let taken: Vec<_> = (0..table.numbers.len()).map(|call| table.take(call)).collect();
            table.after.carry_out();
            (taken, table.calls.held())
        });
        prop_assert_eq!((batch.1, alone.1), (0, 0));
        prop_assert_eq!(batch.0, alone.0);
        let Batches { idle, batches, .. } = &tables[0].calls.batches;
        prop_assert_eq!(idle.len(), batches.len());
    }
}

#[test]
fn a_full_table_has_room_for_as_many_calls_as_ever() {
    let mut calls = Calls::default();
    let full = || {
        let mut list = CallListBuf::default();
        (0..BATCH_CALLS).for_each(|_| assert!(list.push(SmallCall { call: 0, key: "", meta: &[], bytes: &[] })));
        list
    };
    let (mut list, mut after) = (full(), Aftermath::default());
    calls.open_all(&mut list, Direction::Send, SEGMENT, Tick::now());
    let sent: Vec<u32> = list.as_list().numbers().collect();
    // One single call, so that the next batch begins behind unused slots.
    let mut open = vec![calls.open(Direction::Send, SEGMENT, Tick::now(), Memory::Nothing).ok().unwrap()];
    calls.open_all(&mut list, Direction::Send, SEGMENT, Tick::now());
    open.extend(list.as_list().numbers());
    calls.all_sent(SEGMENT, &sent, &mut after).unwrap();
    assert_eq!(calls.take_all_sent(&sent, &mut Vec::new()), BATCH_CALLS);
    // Those of the batch that has ended as well.
    while calls.have_room_for(1) {
        open.push(calls.open(Direction::Send, SEGMENT, Tick::now(), Memory::Nothing).ok().unwrap());
    }
    assert_eq!((open.len(), calls.held()), (CALLS_MAX, CALLS_MAX));
    assert!(calls.open(Direction::Send, SEGMENT, Tick::now(), Memory::Nothing).is_err());
    calls.all_sent(SEGMENT, &open, &mut after).unwrap();
    let mut taken = 0;
    while taken < open.len() {
        taken += calls.take_all_sent(&open[taken..], &mut Vec::new());
    }
    assert_eq!(calls.held(), 0);
}

#[test]
fn a_recv_of_a_list_has_what_came_for_another_while_it_was_entered() {
    let (mut calls, mut after, mut list) = (Calls::default(), Aftermath::default(), CallListBuf::default());
    let keys: Vec<String> = (0..BATCH_CALLS_MIN).map(|call| format!("w{call}")).collect();
    assert!(keys.iter().all(|key| list.push(SmallCall { call: 0, key, meta: &[], bytes: &[] })));
    calls.open_all(&mut list, Direction::Recv, SEGMENT, Tick::now());
    let mut place = super::super::Place::default();
    place.set(PEER, 1, "w5");
    calls.unclaimed().keep(place, Tensor::from_parts(meta(), Buffer::from_vec(vec![8; 5])));
    calls.all_asked(list.as_list(), (PEER, 1), &mut after);
    let meant = list.as_list().numbers().nth(5).unwrap();
    assert_eq!(calls.take_to_cancel(), Some((SEGMENT, meant)));
    calls.failed(SEGMENT, meant, true, Error::invalid("cancelled"), &mut after).unwrap();
    assert_eq!(calls.take_received(meant).unwrap().finish().unwrap().bytes(), [8; 5]);
}

#[test]
fn a_list_that_found_no_room_leaves_nothing_and_its_numbers_are_used_again() {
    for direction in [Direction::Send, Direction::Recv] {
        let (mut calls, mut after, mut list) = (Calls::default(), Aftermath::default(), CallListBuf::default());
        assert!((0..CALLS).all(|_| list.push(SmallCall { call: 0, key: "w", meta: &[], bytes: &[] })));
        for _ in 0..2 {
            calls.open_all(&mut list, direction, SEGMENT, Tick::now());
            assert_eq!(calls.held(), CALLS);
            calls.retract_all(list.as_list(), &mut after);
            assert_eq!((calls.held(), calls.batches.idle.len()), (0, 2));
        }
        assert!(list.as_list().numbers().all(|call| !calls.is_owed(call)));
    }
}

#[test]
fn one_call_of_every_list_leaves_half_of_all_numbers_to_single_calls() {
    let (mut calls, mut list) = (Calls::default(), CallListBuf::default());
    assert!((0..BATCH_CALLS_MIN).all(|_| list.push(SmallCall { call: 0, key: "", meta: &[], bytes: &[] })));
    for _ in 0..CALLS_MAX / BATCH_CALLS {
        assert!(calls.have_room_for(BATCH_CALLS_MIN));
        calls.open_all(&mut list, Direction::Send, SEGMENT, Tick::now());
    }
    assert!(calls.have_room_for(CALLS_MAX / 4));
}
