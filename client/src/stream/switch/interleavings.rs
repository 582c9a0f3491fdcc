//! Everything that two ends of a stream can go through with their connections: every order in which pushes are taken, refused and
//! repeated, bytes come by connections, these break, and each end notices.

use std::collections::{HashSet, VecDeque};

use super::{Coming, Switch};

/// Bytes that each end writes.
const BYTES: [u64; 2] = [2, 1];
/// Number of connections, of breaks, and of refused pushes in all.
const CONNECTIONS: u64 = 2;
const BREAKS: u32 = 2;
const REFUSALS: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Push {
    Data(u64),
    Offer(u64),
    Have(u64),
    Socket { from: u64, number: u64, serial: u64 },
    Broken(u64),
    Lost { has: u64, number: u64 },
}

impl Push {
    /// It is repeated if one before it was refused.
    fn carries(self) -> bool {
        matches!(self, Push::Data(_) | Push::Socket { .. } | Push::Broken(_))
    }
}

/// One end, and its pushes to the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct End {
    switch: Switch,
    /// Its daemon has been asked for that connection, or for a new one.
    asks: Option<Option<u64>>,
    /// Bytes that the owner has written, and that were sent by pushes or come behind them.
    written: u64,
    sent: u64,
    /// It has said that the connection is broken.
    is_told: bool,
    /// Bytes received, except those of the connection being read.
    came: u64,
    pushes: VecDeque<Push>,
    /// Number of refused pushes: nothing else that carries bytes is sent.
    holds: usize,
    /// Bytes in flight on the connection being written, and in the other end's kernel.
    flying: u64,
    arrived: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Both {
    ends: [End; 2],
    made: u64,
    broken: Vec<u64>,
    refused: u32,
}

impl End {
    fn may_push(&self) -> bool {
        self.holds == 0
    }

    fn is_next(&self) -> bool {
        self.may_push() && self.sent == self.written
    }

    /// What does not carry bytes does not wait for refused pushes.
    fn push_now(&mut self, push: Push) {
        match self.holds {
            0 => self.pushes.push_back(push),
            _ => self.pushes.push_front(push),
        }
    }

    fn take_up(&mut self) {
        if self.is_next()
            && let Some((number, serial)) = self.switch.take_up()
        {
            assert!(serial <= CONNECTIONS, "one that broke is taken up again: {self:?}");
            (self.is_told, self.flying, self.arrived) = (false, 0, 0);
            self.pushes.push_back(Push::Socket { from: self.sent, number, serial });
        }
    }
}

impl Both {
    fn is_broken(&self, number: u64) -> bool {
        self.broken.contains(&number)
    }

    /// An end gives up the connection that it reads.
    fn give_up(&mut self, at: usize) {
        let arrived = self.ends[1 - at].arrived;
        let end = &mut self.ends[at];
        let Some(number) = end.switch.give_up() else { return };
        end.came += arrived;
        end.push_now(Push::Lost { has: end.came, number });
    }

    /// An end takes in what the other has pushed.
    fn take(&mut self, at: usize, push: Push) {
        let end = &mut self.ends[at];
        match push {
            Push::Data(from) if from == end.came => {
                assert_eq!(end.switch.reads(), None, "it is pushed in the middle of a connection");
                end.came += 1;
            }
            // It came before, or will be repeated.
            Push::Data(_) => {}
            Push::Offer(number) => {
                if end.switch.ask() {
                    end.asks = Some(Some(number));
                }
            }
            Push::Have(number) => {
                end.switch.is_taken(number);
                end.take_up();
            }
            Push::Socket { from, number, serial } => {
                if from > end.came {
                    return;
                }
                match end.switch.comes_by(number, serial, true) {
                    Coming::Begins => assert_eq!(from, end.came),
                    Coming::Again => {}
                    Coming::Wrong => panic!("connection {number} is not known, or another is read: {end:?}"),
                }
            }
            Push::Broken(number) => {
                if end.switch.is_broken_there(number) {
                    self.give_up(at);
                }
            }
            Push::Lost { has, number } => {
                if end.switch.is_given_up(number) {
                    // Bytes that the other kernel has acknowledged are not kept here.
                    assert_eq!(has, end.sent + end.arrived, "bytes are lost: {end:?}");
                    end.sent = has;
                }
            }
        }
    }

    /// Every possible next state.
    fn next(&self) -> Vec<Both> {
        let mut all = Vec::new();
        let mut may = |f: &dyn Fn(&mut Both)| {
            let mut next = self.clone();
            f(&mut next);
            all.push(next);
        };
        for at in [0, 1] {
            let end = &self.ends[at];
            // The daemons answer.
            if at == 0 && end.switch.wants() && self.made < CONNECTIONS {
                may(&|both| {
                    both.ends[0].switch.ask();
                    both.ends[0].asks = Some(None);
                });
            }
            match end.asks {
                Some(None) => {
                    may(&|both| {
                        both.made += 1;
                        let (number, end) = (both.made, &mut both.ends[at]);
                        end.asks = None;
                        end.switch.offers(number);
                        end.push_now(Push::Offer(number));
                    });
                }
                Some(Some(number)) => {
                    may(&|both| {
                        let end = &mut both.ends[at];
                        end.asks = None;
                        if end.switch.has(number) {
                            end.push_now(Push::Have(number));
                            end.take_up();
                        } else {
                            end.push_now(Push::Broken(number));
                        }
                    });
                    may(&|both| {
                        let end = &mut both.ends[at];
                        end.asks = None;
                        end.switch.is_refused();
                        end.push_now(Push::Broken(number));
                    });
                }
                None => {}
            }
            // The owner writes, or waiting bytes are sent.
            let by = end.switch.writes;
            match by {
                None if end.may_push() && end.sent < end.written => may(&|both| {
                    let end = &mut both.ends[at];
                    end.pushes.push_back(Push::Data(end.sent));
                    end.sent += 1;
                    end.take_up();
                }),
                None if end.is_next() && end.written < BYTES[at] => may(&|both| {
                    let end = &mut both.ends[at];
                    end.pushes.push_back(Push::Data(end.sent));
                    (end.sent, end.written) = (end.sent + 1, end.written + 1);
                }),
                Some(number) if end.written < BYTES[at] && !end.is_told && !self.is_broken(number) => may(&|both| {
                    let end = &mut both.ends[at];
                    (end.written, end.flying) = (end.written + 1, end.flying + 1);
                }),
                _ => {}
            }
            if let Some(number) = by {
                if end.flying > 0 && !self.is_broken(number) {
                    may(&|both| {
                        let end = &mut both.ends[at];
                        (end.flying, end.arrived) = (end.flying - 1, end.arrived + 1);
                    });
                }
                // The writer notices the break, sooner or later.
                if self.is_broken(number) && !end.is_told {
                    may(&|both| {
                        let end = &mut both.ends[at];
                        end.is_told = true;
                        end.pushes.push_back(Push::Broken(number));
                    });
                }
            }
            // The reader notices it.
            if end.switch.reads().is_some_and(|number| self.is_broken(number)) {
                may(&|both| both.give_up(at));
            }
            // A push is taken, or refused and repeated, with those behind it.
            if !end.pushes.is_empty() {
                may(&|both| {
                    let end = &mut both.ends[at];
                    let push = end.pushes.pop_front().unwrap();
                    // Pushes made meanwhile are not among them.
                    end.holds = end.holds.min(end.pushes.len());
                    if end.holds == 0 {
                        end.take_up();
                    }
                    both.take(1 - at, push);
                });
                if self.refused < REFUSALS && end.holds == 0 {
                    may(&|both| {
                        both.refused += 1;
                        let end = &mut both.ends[at];
                        let first = end.pushes.pop_front().unwrap();
                        let again: Vec<Push> = end.pushes.iter().copied().filter(|push| push.carries()).collect();
                        end.pushes.push_back(first);
                        end.pushes.extend(again);
                        end.holds = end.pushes.len();
                    });
                }
            }
        }
        for number in 1..=self.made {
            if !self.is_broken(number) && (self.broken.len() as u32) < BREAKS {
                may(&|both| {
                    both.broken.push(number);
                    both.broken.sort_unstable();
                });
            }
        }
        all
    }

    /// What the reader of a direction has, or can read.
    fn has(&self, writer: usize) -> u64 {
        let reader = &self.ends[1 - writer];
        reader.came + reader.switch.reads().map_or(0, |_| self.ends[writer].arrived)
    }
}

#[test]
fn whatever_happens_all_bytes_come_in_order_and_once() {
    let (mut seen, mut open) = (HashSet::new(), vec![Both::default()]);
    let mut by_socket = 0;
    while let Some(both) = open.pop() {
        for writer in [0, 1] {
            assert!(both.has(writer) <= both.ends[writer].written, "more has come than was written: {both:?}");
        }
        let next = both.next();
        if next.is_empty() {
            let has = [both.has(0), both.has(1)];
            assert_eq!(has, BYTES, "it has come to a standstill: {both:#?}");
            by_socket += usize::from(both.ends.iter().any(|end| end.arrived > 0));
        }
        open.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
    }
    assert!(by_socket > 0, "none came by a connection");
}
