use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
};

use sealane_transport::{Code, Payload};

use super::{answers::NOT_UNDER_WAY, *};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn error() -> Error {
    Error::invalid("test")
}

fn meta(len: u64) -> Vec<u8> {
    use sealane_transport::tensor::{DType, TensorMeta};
    TensorMeta::new(DType::U8, &[len]).unwrap().as_wire().to_vec()
}

fn buffer(len: usize) -> Buffer {
    Buffer::from_vec(vec![7; len])
}

struct Table {
    calls: Calls,
    after: Aftermath,
}

impl Table {
    fn new() -> Self {
        Self { calls: Calls::default(), after: Aftermath::default() }
    }

    fn open(&mut self, direction: Direction, memory: Memory) -> u32 {
        self.calls.open(direction, 3, Tick::NEVER, memory).unwrap()
    }

    fn receive(&mut self, call: u32, arrived: Arrived<'_>) -> Result<(), Fault> {
        self.calls.received(3, call, &meta(5), arrived, &mut self.after)
    }

    /// Checks that all slots are free.
    fn assert_free(&self) {
        assert_eq!(self.calls.vacant.len(), self.calls.slots.len());
        assert_eq!((self.calls.watched(), self.calls.watched_releases()), (0, 0));
        for slot in &self.calls.slots {
            assert!(slot.waker.is_none() && slot.tensor.is_none() && slot.failure.is_none());
            assert!(matches!(slot.memory, Memory::Nothing));
        }
    }
}

#[test]
fn numbers_are_used_again_and_old_ones_are_recognised() {
    let mut table = Table::new();
    let first = table.open(Direction::Send, Memory::Nothing);
    table.calls.sent(3, first, &mut table.after).unwrap();
    assert_eq!(table.calls.sent(3, first, &mut table.after), Err(NOT_UNDER_WAY));
    assert_eq!(table.calls.take_sent(first), Some(Ok(())));
    assert_eq!(table.calls.take_sent(first), None, "it is told once");
    let second = table.open(Direction::Send, Memory::Nothing);
    assert_eq!((first & INDEX_MASK, first != second), (second & INDEX_MASK, true));
    assert_eq!(table.calls.sent(3, first, &mut table.after), Err(NOT_UNDER_WAY));
    assert_eq!(table.calls.sent(2, second, &mut table.after), Err(NOT_UNDER_WAY), "another segment's call");
    assert!(table.calls.retract(first, &mut table.after).lent().is_none());
    assert!(table.calls.forsake(first, true, &mut table.after).is_none());
    assert!(!table.calls.is_owed(first) && !table.calls.is_owed(u32::MAX));
    table.calls.sent(3, second, &mut table.after).unwrap();
    assert!(table.calls.take_sent(second).is_some());
    table.assert_free();
}

#[test]
fn a_source_is_kept_until_the_send_has_ended_whoever_cares() {
    for forsaken in [false, true] {
        let mut table = Table::new();
        let call = table.open(Direction::Send, Memory::Source(Payload::from(buffer(9))));
        if forsaken {
            assert_eq!(table.calls.forsake(call, true, &mut table.after), Some(3));
        }
        assert!(table.after.spent.is_empty());
        table.calls.sent(3, call, &mut table.after).unwrap();
        assert_eq!(table.after.spent.len(), 1);
        assert_eq!(table.calls.take_sent(call).is_some(), !forsaken);
        table.assert_free();
    }
}

#[test]
fn a_tensor_lands_where_it_was_wanted() {
    let mut table = Table::new();
    let inline = table.open(Direction::Recv, Memory::Nothing);
    table.receive(inline, Arrived::Inline(&[1; 5])).unwrap();
    let area = table.open(Direction::Recv, Memory::Nothing);
    table.receive(area, Arrived::Area(buffer(5))).unwrap();
    let destination = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.receive(destination, Arrived::Destination(5)).unwrap();
    let (landing, target) = (buffer(9), Buffer::from_vec(vec![0; 9]));
    let place = target.as_ptr();
    let substitute = Memory::Substitute(Box::new(Substitute { landing, destination: target.into() }));
    let substitute = table.open(Direction::Recv, substitute);
    table.receive(substitute, Arrived::Destination(5)).unwrap();

    // The bytes came in the ring although there is a destination.
    let ring = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.receive(ring, Arrived::Inline(&[1; 5])).unwrap();
    let memory = Memory::Substitute(Box::new(Substitute { landing: buffer(9), destination: buffer(9).into() }));
    let both = table.open(Direction::Recv, memory);
    table.receive(both, Arrived::Inline(&[1; 5])).unwrap();

    let mut take = |call| table.calls.take_received(call).unwrap().finish().unwrap();
    assert_eq!(take(inline).bytes(), [1; 5]);
    assert_eq!(take(area).bytes(), [7; 5]);
    assert_eq!(take(destination).bytes(), [7; 5]);
    assert_eq!(take(ring).bytes(), [1; 5]);
    assert_eq!(take(both).bytes(), [1; 5]);
    let copied = take(substitute);
    assert_eq!((copied.bytes(), copied.bytes().as_ptr()), (&[7; 5][..], place));
    table.assert_free();
}

#[test]
fn a_tensor_that_nobody_wants_any_more_is_dropped_later() {
    let mut table = Table::new();
    let memories = [
        (Memory::Nothing, Arrived::Area(buffer(5))),
        (Memory::Nothing, Arrived::Inline(&[1; 5])),
        (Memory::Destination(buffer(9).into()), Arrived::Destination(5)),
        (
            Memory::Substitute(Box::new(Substitute { landing: buffer(9), destination: buffer(9).into() })),
            Arrived::Destination(5),
        ),
    ];
    for (memory, arrived) in memories {
        let call = table.open(Direction::Recv, memory);
        table.calls.forsake(call, true, &mut table.after);
        table.receive(call, arrived).unwrap();
        assert!(!table.after.spent.is_empty());
        table.after.carry_out();
        table.assert_free();
    }
    // The tensor may also have arrived before.
    let call = table.open(Direction::Recv, Memory::Nothing);
    table.receive(call, Arrived::Area(buffer(5))).unwrap();
    assert_eq!(table.calls.forsake(call, true, &mut table.after), None);
    assert_eq!(table.after.unwanted.len(), 1);
    table.assert_free();
}

#[test]
fn memory_that_the_daemon_holds_is_kept_until_it_returns_it() {
    let mut table = Table::new();
    let (landing, destination) = (buffer(9), buffer(8).into());
    let call = table.open(Direction::Recv, Memory::Substitute(Box::new(Substitute { landing, destination })));
    assert_eq!(table.calls.returned(3, call, &mut table.after), Err(NOT_UNDER_WAY), "it has not failed yet");
    table.calls.failed(3, call, false, error(), &mut table.after).unwrap();
    let unreceived = table.calls.take_received(call).unwrap().finish().unwrap_err();
    assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(8));
    assert_eq!(table.calls.sent(3, call, &mut table.after), Err(NOT_UNDER_WAY));
    assert!(table.after.spent.is_empty());
    table.calls.returned(3, call, &mut table.after).unwrap();
    assert_eq!(table.after.spent.len(), 1);
    table.assert_free();
}

#[test]
fn calls_that_answers_do_not_end_are_counted_while_futures_wait_for_them() {
    let mut table = Table::new();
    let waker = Arc::new(Woken::default()).into();
    let directions = [Direction::Send, Direction::Push, Direction::Recv, Direction::Pull, Direction::Publish];
    let calls = directions.map(|direction| table.open(direction, Memory::Nothing));
    for (call, released) in calls.into_iter().zip([1, 2, 2, 2, 3]) {
        table.calls.wake_at_end(call, &waker, true, &mut table.after);
        table.calls.wake_at_end(call, &waker, true, &mut table.after);
        assert_eq!(table.calls.watched_releases(), released);
    }
    assert_eq!(calls.map(|call| table.calls.is_answered(call)), [false, false, true, true, false]);
    table.calls.sent(3, calls[0], &mut table.after).unwrap();
    assert_eq!(table.calls.watched_releases(), 2);
    table.calls.forsake(calls[1], false, &mut table.after);
    table.calls.wake_at_end(calls[4], &waker, false, &mut table.after);
    assert_eq!((table.calls.watched_releases(), table.calls.watched()), (0, 2));
}

#[test]
fn an_overdue_call_ends_for_its_caller_alone() {
    let mut table = Table::new();
    let waker = Arc::new(Woken::default());
    let call = table.calls.open(Direction::Recv, 3, Tick::now(), Memory::Destination(buffer(9).into())).unwrap();
    let other = table.open(Direction::Recv, Memory::Nothing);
    table.calls.wake_at_end(call, &waker.clone().into(), true, &mut table.after);
    table.calls.wake_at_end(other, &waker.clone().into(), true, &mut table.after);
    table.calls.sweep(Tick::now().before(std::time::Duration::from_secs(9)), error, &mut table.after);
    assert_eq!(table.calls.watched(), 2, "none is over yet");
    table.calls.sweep(Tick::now().after(std::time::Duration::from_secs(9)), error, &mut table.after);
    table.after.carry_out();
    assert_eq!((waker.0.load(Ordering::Relaxed), table.calls.watched()), (1, 1));
    let unreceived = table.calls.take_received(call).unwrap().finish().unwrap_err();
    assert!(unreceived.destination.is_none());
    assert!(table.after.spent.is_empty(), "the daemon may still write it");
    table.receive(call, Arrived::Destination(5)).unwrap();
    assert_eq!(table.after.spent.len(), 1);
    table.calls.forsake(other, true, &mut table.after);
    table.receive(other, Arrived::Inline(&[1; 5])).unwrap();
    table.assert_free();
}

#[test]
fn what_comes_late_for_an_overdue_recv_that_lent_nothing_is_no_fault() {
    let mut table = Table::new();
    let arrivals: [fn() -> Arrived<'static>; 2] = [|| Arrived::Inline(&[1; 5]), || Arrived::Area(buffer(5))];
    for arrived in arrivals {
        let call = table.open(Direction::Recv, Substitute::of_a_tensor(buffer(9).into()));
        table.calls.overdue(call, error(), &mut table.after);
        let unreceived = table.calls.take_received(call).unwrap().finish().unwrap_err();
        assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(9));
        table.receive(call, arrived()).unwrap();
    }
    table.assert_free();
}

#[test]
fn the_end_of_the_daemon_ends_all_and_gives_all_back() {
    let mut table = Table::new();
    let send = table.open(Direction::Send, Memory::Source(Payload::from(buffer(9))));
    let recv = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    let forsaken = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.calls.forsake(forsaken, true, &mut table.after);
    let held = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.calls.failed(3, held, false, error(), &mut table.after).unwrap();
    let ended = table.open(Direction::Recv, Memory::Nothing);
    table.receive(ended, Arrived::Inline(&[1; 5])).unwrap();
    table.calls.end_all(true, || Error::unavailable("daemon", "gone"), &mut table.after);
    assert_eq!(table.after.spent.len(), 3, "of the send, of the one that nobody wants, of the one that was held");
    assert_eq!(table.calls.take_sent(send).unwrap().unwrap_err().code(), Code::Unavailable);
    let unreceived = table.calls.take_received(recv).unwrap().finish().unwrap_err();
    assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(9));
    assert_eq!(table.calls.take_received(held).unwrap().finish().unwrap_err().error, error());
    assert_eq!(table.calls.take_received(ended).unwrap().finish().unwrap().bytes(), [1; 5]);
    table.assert_free();
}

#[test]
fn a_daemon_that_lives_keeps_what_it_was_lent_when_the_task_is_closed() {
    let mut table = Table::new();
    let send = table.open(Direction::Send, Memory::Source(Payload::from(buffer(9))));
    let recv = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    let substitute = Memory::Substitute(Box::new(Substitute { landing: buffer(9), destination: buffer(8).into() }));
    let other = table.open(Direction::Recv, substitute);
    let bare = table.open(Direction::Recv, Memory::Nothing);
    let ended = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.receive(ended, Arrived::Destination(5)).unwrap();
    table.calls.end_all(false, || Error::unavailable("attachment", "closed"), &mut table.after);
    assert!(table.after.spent.is_empty());
    assert!(table.calls.take_sent(send).unwrap().is_err());
    let mut destination = |call| table.calls.take_received(call).unwrap().finish().unwrap_err().destination;
    assert!(destination(recv).is_none(), "the daemon may write there");
    assert_eq!(destination(other).map(|own| own.len()), Some(8), "the daemon cannot reach it");
    assert!(destination(bare).is_none());
    assert_eq!(table.calls.take_received(ended).unwrap().finish().unwrap().bytes(), [7; 5]);
}

#[test]
fn what_no_correct_daemon_says_is_a_fault_and_leaves_the_call_to_be_ended() {
    let mut table = Table::new();
    let send = table.open(Direction::Send, Memory::Nothing);
    let recv = table.open(Direction::Recv, Memory::Destination(buffer(4).into()));
    let bare = table.open(Direction::Recv, Memory::Nothing);
    assert!(table.receive(send, Arrived::Inline(&[1; 5])).is_err());
    assert!(table.calls.sent(3, recv, &mut table.after).is_err());
    assert!(table.receive(recv, Arrived::Destination(5)).is_err());
    assert!(table.receive(bare, Arrived::Destination(5)).is_err());
    let short = table.open(Direction::Recv, Memory::Destination(buffer(4).into()));
    assert!(table.receive(short, Arrived::Inline(&[1; 5])).is_err());
    let apart = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    assert!(table.receive(apart, Arrived::Area(buffer(5))).is_err());
    table.calls.end_all(true, error, &mut table.after);
    assert!(table.calls.take_sent(send).unwrap().is_err());
    assert!(table.calls.take_received(recv).unwrap().finish().is_err());
    assert!(table.calls.take_received(short).unwrap().finish().is_err());
    assert!(table.calls.take_received(apart).unwrap().finish().is_err());
    assert!(table.calls.take_received(bare).unwrap().finish().is_err());
    table.assert_free();
}

#[test]
fn what_is_published_is_lent_until_it_comes_back() {
    let mut table = Table::new();
    let call = table.open(Direction::Publish, Memory::Source(Payload::from(vec![1; 600])));
    table.calls.published(3, call, &mut table.after).unwrap();
    assert_eq!(table.calls.take_sent(call), Some(Ok(())));
    assert!(table.after.spent.is_empty());
    assert!(table.calls.published(3, call, &mut table.after).is_err(), "twice");
    table.calls.returned(3, call, &mut table.after).unwrap();
    assert_eq!(table.after.spent.len(), 1);
    // One that travelled in the ring, and one that nobody waits for.
    let call = table.open(Direction::Publish, Memory::Nothing);
    table.calls.sent(3, call, &mut table.after).unwrap();
    assert_eq!(table.calls.take_sent(call), Some(Ok(())));
    let call = table.open(Direction::Publish, Memory::Source(Payload::from(vec![1; 600])));
    table.calls.forsake(call, true, &mut table.after);
    table.calls.published(3, call, &mut table.after).unwrap();
    table.calls.returned(3, call, &mut table.after).unwrap();
    table.assert_free();
}

#[test]
fn a_pull_ends_as_a_pull() {
    let mut table = Table::new();
    let pull = table.open(Direction::Pull, Memory::Nothing);
    assert_eq!(table.calls.at_work_on(pull), Some(3));
    assert!(table.calls.sent(3, pull, &mut table.after).is_err());
    assert!(table.calls.published(3, pull, &mut table.after).is_err());
    table.calls.pulled(3, pull, &mut table.after).unwrap();
    assert_eq!((table.calls.at_work_on(pull), table.calls.take_sent(pull)), (None, Some(Ok(()))));
    let send = table.open(Direction::Send, Memory::Nothing);
    assert!(table.calls.pulled(3, send, &mut table.after).is_err());
    table.calls.sent(3, send, &mut table.after).unwrap();
    table.calls.take_sent(send).unwrap().unwrap();
    table.assert_free();
}

const WANTED: (&str, i64, &str) = ("ps", 1, "w");

impl Table {
    fn ask(&mut self, memory: Memory) -> u32 {
        let call = self.open(Direction::Recv, memory);
        self.calls.asked(call, WANTED, false, &mut self.after);
        call
    }
}

#[test]
fn what_came_for_a_recv_of_a_step_that_is_over_is_for_nobody_else() {
    let mut table = Table::new();
    let (left, taken) = (table.ask(Memory::Nothing), table.ask(Memory::Nothing));
    for call in [left, taken] {
        table.receive(call, Arrived::Inline(&[1; 5])).unwrap();
    }
    table.calls.forget_step(1, &mut table.after);
    table.calls.forsake(left, true, &mut table.after);
    assert!(table.calls.unclaimed().is_empty(), "the step's number may be used again");
    assert_eq!(table.calls.take_received(taken).unwrap().finish().unwrap().bytes(), [1; 5]);
    table.assert_free();
}

#[test]
fn a_recv_for_which_a_tensor_was_set_aside_has_it_though_its_step_is_over() {
    let mut table = Table::new();
    let (first, second) = (table.ask(Memory::Nothing), table.ask(Memory::Nothing));
    table.receive(first, Arrived::Inline(&[1; 5])).unwrap();
    table.calls.forsake(first, true, &mut table.after);
    assert_eq!(table.calls.take_to_cancel(), Some((3, second)));
    table.calls.forget_step(1, &mut table.after);
    table.calls.failed(3, second, true, error(), &mut table.after).unwrap();
    assert_eq!(table.calls.take_received(second).unwrap().finish().unwrap().bytes(), [1; 5]);
    table.assert_free();
}

#[test]
fn a_recv_for_which_a_tensor_was_set_aside_ends_with_it_when_its_memory_is_back() {
    for late in [false, true] {
        let mut table = Table::new();
        let (first, second) = (table.ask(Memory::Nothing), table.ask(Memory::Destination(buffer(9).into())));
        table.receive(first, Arrived::Inline(&[1; 5])).unwrap();
        table.calls.forsake(first, true, &mut table.after);
        assert_eq!(table.calls.take_to_cancel(), Some((3, second)));
        table.calls.failed(3, second, !late, error(), &mut table.after).unwrap();
        assert_eq!(table.calls.is_owed(second), !late);
        if late {
            table.calls.returned(3, second, &mut table.after).unwrap();
        }
        assert_eq!(table.calls.take_received(second).unwrap().finish().unwrap().bytes(), [1; 5]);
        assert!(table.calls.unclaimed().is_empty());
        table.assert_free();
    }
}

#[test]
fn a_recv_has_what_came_for_another_while_it_was_entered() {
    let mut table = Table::new();
    let first = table.ask(Memory::Nothing);
    table.receive(first, Arrived::Inline(&[1; 5])).unwrap();
    // The second call is in the table, but its key is not known yet: it waits for room in the ring.
    let second = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
    table.calls.forsake(first, true, &mut table.after);
    assert!(!table.calls.unclaimed().is_empty());
    table.calls.asked(second, WANTED, false, &mut table.after);
    assert_eq!(table.calls.take_to_cancel(), Some((3, second)));
    table.calls.failed(3, second, true, error(), &mut table.after).unwrap();
    assert_eq!(table.calls.take_received(second).unwrap().finish().unwrap().bytes(), [1; 5]);
    table.assert_free();
}

#[test]
fn a_recv_has_what_was_set_aside_and_the_next_what_the_daemon_brings_after_all() {
    let substitute = || Memory::Substitute(Box::new(Substitute { landing: buffer(9), destination: buffer(9).into() }));
    let ways = [
        (Memory::Nothing, Some(Arrived::Inline(&[7; 5]))),
        (Memory::Nothing, Some(Arrived::Area(buffer(5)))),
        (Memory::Destination(buffer(9).into()), Some(Arrived::Destination(5))),
        (substitute(), Some(Arrived::Destination(5))),
        (Substitute::of_a_tensor(buffer(9).into()), Some(Arrived::Area(buffer(5)))),
        (substitute(), None),
    ];
    for (memory, arrived) in ways {
        let mut table = Table::new();
        let (first, second) = (table.ask(Memory::Nothing), table.ask(memory));
        table.receive(first, Arrived::Inline(&[1; 5])).unwrap();
        table.calls.forsake(first, true, &mut table.after);
        let Some(arrived) = arrived else {
            // The daemon was given no such place for it.
            assert!(table.receive(second, Arrived::Area(buffer(5))).is_err());
            assert!(table.receive(second, Arrived::Destination(10)).is_err());
            continue;
        };
        table.receive(second, arrived).unwrap();
        assert_eq!(table.calls.take_received(second).unwrap().finish().unwrap().bytes(), [1; 5]);
        assert_eq!(table.calls.unclaimed().take(WANTED, None).unwrap().unwrap().bytes(), [7; 5]);
        table.assert_free();
    }
}

#[test]
fn a_recv_given_up_before_its_memory_is_back_leaves_what_was_set_aside_to_the_next() {
    let mut table = Table::new();
    let (first, second) = (table.ask(Memory::Nothing), table.ask(Memory::Destination(buffer(9).into())));
    table.receive(first, Arrived::Inline(&[1; 5])).unwrap();
    table.calls.forsake(first, true, &mut table.after);
    table.calls.failed(3, second, false, error(), &mut table.after).unwrap();
    assert_eq!(table.calls.forsake(second, true, &mut table.after), Some(3), "its memory may still be written");
    table.calls.returned(3, second, &mut table.after).unwrap();
    assert_eq!(table.calls.unclaimed().take(WANTED, None).unwrap().unwrap().bytes(), [1; 5]);
    table.assert_free();
    // The slot's next call sees nothing of it.
    let sending = table.open(Direction::Send, Memory::Nothing);
    table.calls.failed(3, sending, true, error(), &mut table.after).unwrap();
    assert!(table.calls.take_sent(sending).unwrap().is_err());
}

#[test]
fn a_recv_that_was_not_submitted_gives_its_destination_back_however_the_link_ended_meanwhile() {
    for gone in [true, false] {
        for in_arena in [true, false] {
            let mut table = Table::new();
            let destination = buffer(9);
            let place = destination.as_ptr();
            let memory = match in_arena {
                true => Memory::Destination(destination.into()),
                false => {
                    Memory::Substitute(Box::new(Substitute { landing: buffer(9), destination: destination.into() }))
                }
            };
            let call = table.open(Direction::Recv, memory);
            table.calls.end_all(gone, error, &mut table.after);
            let memory = table.calls.retract(call, &mut table.after);
            assert_eq!(memory.into_destination().0.map(|destination| destination.as_ptr()), Some(place));
            assert_eq!(table.after.spent.len(), usize::from(!in_arena), "the block in its place");
            table.assert_free();
        }
    }
}

#[test]
fn a_call_whose_record_waits_keeps_its_number_however_it_ends() {
    type End = fn(&mut Table, u32);
    let ends: [End; 5] = [
        |table, call| assert_eq!(table.calls.forsake(call, true, &mut table.after), None),
        |table, call| {
            table.calls.end_untold(call, error(), &mut table.after);
            assert!(table.calls.take_received(call).unwrap().finish().is_err());
        },
        // Over a channel, or as a tensor that was kept; and then looked at, or not.
        |table, call| {
            assert!(table.calls.serve(call, &meta(5), &[1; 5], &mut table.after));
            assert_eq!(table.calls.take_received(call).unwrap().finish().unwrap().bytes(), [1; 5]);
        },
        |table, call| {
            let tensor = Tensor::from_wire(&meta(5), buffer(5)).unwrap();
            table.calls.give(call, tensor, &mut table.after);
            assert_eq!(table.calls.take_received(call).unwrap().finish().unwrap().bytes(), [7; 5]);
        },
        |table, call| {
            let tensor = Tensor::from_wire(&meta(5), buffer(5)).unwrap();
            table.calls.give(call, tensor, &mut table.after);
            assert_eq!(table.calls.forsake(call, true, &mut table.after), None);
        },
    ];
    for (end, is_lost) in ends.iter().flat_map(|end| [(end, false), (end, true)]) {
        let mut table = Table::new();
        let call = table.open(Direction::Recv, Memory::Destination(buffer(9).into()));
        table.calls.asked(call, ("peer", 1, "key"), false, &mut table.after);
        table.calls.waits(call);
        end(&mut table, call);
        assert_eq!((table.calls.queued(call), table.calls.held()), (None, 1), "the next call would have its number");
        if is_lost {
            table.calls.end_all(true, error, &mut table.after);
        } else {
            table.calls.not_queued(call);
            table.calls.not_queued(call);
        }
        table.assert_free();
    }
}
