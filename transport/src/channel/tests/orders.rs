//! All orders of few events, over rings of 32 words, in which one tensor of a short key takes 8.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    SendOther,
    Post,
    /// The producer or the consumer takes in what has arrived.
    Acknowledged,
    Arrives,
    Cancel,
    Revoke,
    /// The producer or the consumer ends the step.
    EndAtProducer,
    EndAtConsumer,
    ConsumerGoes,
    /// The splice from the producer, or the one from the consumer, takes a turn.
    Sends,
    Answers,
}

use Event::*;

const KEY: &str = "w";

struct World {
    halves: [Side<32>; 2],
    between: Between<32>,
    sends: Vec<(u64, u64)>,
    recvs: Vec<u32>,
    received: Vec<u64>,
    next: u64,
    has_ended: bool,
    is_gone: bool,
    reclaimed: Vec<u64>,
}

impl World {
    fn new(is_spliced: bool) -> World {
        let (halves, between) = pair_with(is_spliced);
        World {
            halves,
            between,
            sends: Vec::new(),
            recvs: Vec::new(),
            received: Vec::new(),
            next: 1,
            has_ended: false,
            is_gone: false,
            reclaimed: Vec::new(),
        }
    }

    fn go(&mut self, event: Event) {
        let [producer, consumer] = &mut self.halves;
        match event {
            Send | SendOther => {
                let key = if event == Send { KEY } else { "v" };
                let id = self.next;
                self.next += 1;
                match send_until(producer, (1, key), id, 8, 10 * id) {
                    Ok(handle) => self.sends.push((handle, id)),
                    Err(refusal) => assert!(matches!(refusal, Refusal::Switch | Refusal::Fails(Why::Duplicate))),
                }
            }
            Post if consumer.takes_recvs(1) => self.recvs.push(post(consumer, 1, KEY)),
            Acknowledged => drain(producer),
            Arrives if !self.is_gone => drain(consumer),
            Cancel => {
                if let Some(recv) = self.recvs.pop() {
                    consumer.cancel(recv);
                }
            }
            Revoke => {
                producer.sweep(self.next * 10);
            }
            EndAtProducer => {
                producer.end_step(1, "over", true);
                self.has_ended = true;
            }
            EndAtConsumer if !self.is_gone => {
                consumer.end_step(1, "over", true);
                self.has_ended = true;
            }
            ConsumerGoes if !self.is_gone => {
                consumer.close(Why::Closed);
                self.is_gone = true;
                // What it has told is passed on before its end.
                for _ in 0..4 {
                    self.between.turn(1);
                    self.between.turn(0);
                    drain(producer);
                }
                producer.close(Why::Gone);
                self.reclaimed.extend(producer.reclaim().iter().map(|tensor| id_of(&tensor.payload)));
            }
            Sends => _ = self.between.turn(0),
            Answers => _ = self.between.turn(1),
            _ => {}
        }
        self.halves.iter().for_each(Half::check_invariants);
        let [_, consumer] = &mut self.halves;
        let received = &mut self.received;
        self.recvs.retain(|recv| match take(consumer, *recv) {
            Some(id) => {
                received.push(id);
                false
            }
            None => true,
        });
    }

    /// Each side hears what the other has to say.
    fn exchange(&mut self) {
        [Sends, Arrives, Answers, Acknowledged].into_iter().for_each(|event| self.go(event));
        self.between.turn_both();
    }

    /// Every tensor has one fate, and both sides agree about it.
    fn check(mut self) {
        for _ in 0..4 {
            self.exchange();
        }
        // What a cancelled recv had taken is the next one's.
        for key in [KEY, KEY, KEY, "v", "v"] {
            let consumer = &mut self.halves[1];
            if consumer.takes_recvs(1) {
                let recv = post(consumer, 1, key);
                self.recvs.push(recv);
            }
            self.exchange();
            self.exchange();
        }
        let unique = |ids: &[u64]| {
            let mut sorted = ids.to_vec();
            sorted.sort_unstable();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        };
        assert!(unique(&self.received), "received twice: {:?}", self.received);
        for (handle, id) in &self.sends {
            let (sent, is_received) = (self.halves[0].sent(*handle), self.received.contains(id));
            match sent {
                Sent::Taken if self.has_ended || self.is_gone => {}
                Sent::Taken => assert!(is_received, "tensor {id} was taken"),
                Sent::Returned(Why::Aborted) => {}
                Sent::Returned(why) => assert!(!is_received, "tensor {id} was returned: {why:?}"),
                Sent::Open => {
                    assert!(self.is_gone, "tensor {id} has no fate");
                    assert!(self.reclaimed.contains(id) && !is_received, "tensor {id} is lost");
                }
            }
        }
    }
}

fn id_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(*payload.first_chunk().unwrap())
}

/// Calls `each` with every order of the events, equal ones only once.
fn permute(events: &mut Vec<Event>, order: &mut Vec<Event>, each: &mut impl FnMut(&[Event])) {
    if events.is_empty() {
        return each(order);
    }
    for at in 0..events.len() {
        if at > 0 && events[at] == events[at - 1] {
            continue;
        }
        let event = events.remove(at);
        order.push(event);
        permute(events, order, each);
        order.pop();
        events.insert(at, event);
    }
}

fn all_orders(events: &[Event]) {
    all_orders_with(events, false);
}

fn all_orders_with(events: &[Event], is_spliced: bool) {
    let mut events = events.to_vec();
    events.sort_unstable();
    permute(&mut events, &mut Vec::new(), &mut |order| {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(is_spliced);
            order.iter().for_each(|event| world.go(*event));
            world.check();
        });
        assert!(outcome.is_ok(), "after {order:?}");
    });
}

#[test]
fn two_tensors_of_one_key_have_one_fate_each() {
    all_orders(&[Send, Send, Post, Post, Arrives, Arrives, Acknowledged]);
}

#[test]
fn cancelled_recv_leaves_its_tensor_in_all_orders() {
    all_orders(&[Send, Send, Post, Post, Cancel, Arrives, Arrives]);
}

#[test]
fn revoked_tensor_is_received_or_returned_in_all_orders() {
    all_orders(&[Send, SendOther, Post, Revoke, Revoke, Arrives, Arrives, Acknowledged]);
}

#[test]
fn ended_step_settles_all_tensors_in_all_orders() {
    all_orders(&[Send, Send, Post, EndAtProducer, Arrives, Arrives, Acknowledged]);
    all_orders(&[Send, Send, Post, EndAtConsumer, Arrives, Arrives, Acknowledged]);
}

#[test]
fn consumer_that_goes_has_taken_or_leaves_each_tensor() {
    all_orders(&[Send, Send, Post, ConsumerGoes, Arrives, Arrives, Acknowledged]);
}

/// The ring has room for three tensors, and credit for as many.
#[test]
fn full_ring_holds_tensors_in_all_orders() {
    all_orders(&[Send, SendOther, SendOther, Send, SendOther, Post, Arrives, Arrives]);
}

#[test]
fn splices_take_their_turns_in_all_orders() {
    let orders: [&[Event]; 6] = [
        &[Send, Send, Post, Post, Arrives, Sends, Answers, Acknowledged],
        &[Send, Send, Post, Cancel, Arrives, Sends, Arrives],
        &[Send, Post, Revoke, Revoke, Arrives, Sends, Answers, Acknowledged],
        &[Send, Send, Post, EndAtProducer, Arrives, Sends, Answers],
        &[Send, Send, Post, EndAtConsumer, Arrives, Sends, Answers],
        &[Send, Send, Post, ConsumerGoes, Arrives, Sends, Answers, Acknowledged],
    ];
    orders.into_iter().for_each(|events| all_orders_with(events, true));
}

#[test]
fn full_rings_hold_tensors_behind_splices_in_all_orders() {
    all_orders_with(&[Send, SendOther, SendOther, SendOther, Post, Sends, Sends, Arrives], true);
}
