//! Readers and writers of any pace, both ways at once.

use std::{
    future::poll_fn,
    io::{Read, Write},
    task::{Context, Poll},
    thread,
};

use sealane::{Polling, Stream};

use super::{Neighbours, Random};
use crate::fixture::{block_on, bytes};

const LEN: usize = 1_500_000;
/// The most bytes of one read and of one write: either side may be the slower one.
const PACES: [(usize, usize); 3] = [(100, 4000), (4000, 100), (100_000, 70_000)];

/// What one end has read and written, in pieces of random sizes up to its pace.
struct Half<'a> {
    stream: &'a Stream,
    written: usize,
    came: Vec<u8>,
    random: Random,
    pace: (usize, usize),
}

impl Half<'_> {
    fn new(stream: &Stream, seed: u64, pace: (usize, usize)) -> Half<'_> {
        Half { stream, written: 0, came: Vec::new(), random: Random(seed), pace }
    }

    fn next_write<'b>(&mut self, sent: &'b [u8]) -> &'b [u8] {
        let count = (1 + self.random.below(self.pace.1)).min(sent.len() - self.written);
        &sent[self.written..self.written + count]
    }

    /// Ready once everything has been read, and everything written was delivered.
    fn poll(&mut self, sent: &[u8], context: &mut Context<'_>) -> Poll<()> {
        let wrote = loop {
            if self.written == sent.len() {
                break self.stream.poll_finish(context).map(Result::unwrap);
            }
            let piece = self.next_write(sent);
            match self.stream.poll_write(piece, context) {
                Poll::Ready(count) => self.written += count.unwrap(),
                Poll::Pending => break Poll::Pending,
            }
        };
        let mut into = vec![0; self.pace.0];
        loop {
            let room = 1 + self.random.below(self.pace.0);
            match self.stream.poll_read(&mut into[..room], context).map(Result::unwrap) {
                Poll::Ready(0) => return wrote,
                Poll::Ready(count) => self.came.extend_from_slice(&into[..count]),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[test]
fn threads_of_any_pace_have_all_bytes_both_ways_whether_they_sleep_or_spin() {
    for polling in [Polling::Park, Polling::Spin, Polling::default()] {
        let neighbours = Neighbours::attached_with(|attach| attach.polling(polling));
        for (round, pace) in (0..).zip(PACES) {
            let ends = neighbours.direct_stream();
            let sent = [bytes(LEN, round), bytes(LEN / 2, !round)];
            thread::scope(|scope| {
                for (mut end, sent) in ends.iter().zip(&sent) {
                    scope.spawn(move || {
                        let mut half = Half::new(end, round, pace);
                        while half.written < sent.len() {
                            half.written += end.write(half.next_write(sent)).unwrap();
                        }
                        end.finish().wait().unwrap();
                    });
                }
                for (mut end, sent) in ends.iter().rev().zip(&sent) {
                    scope.spawn(move || {
                        let (mut random, mut came) = (Random(round + 100), Vec::new());
                        let mut into = vec![0; pace.0];
                        loop {
                            match end.read(&mut into[..1 + random.below(pace.0)]).unwrap() {
                                0 => break,
                                count => came.extend_from_slice(&into[..count]),
                            }
                        }
                        assert!(came == *sent, "{} bytes came with {polling:?} and {pace:?}", came.len());
                    });
                }
            });
        }
    }
}

#[test]
fn futures_that_no_thread_attends_have_all_bytes_both_ways() {
    for polling in [Polling::Park, Polling::default()] {
        let neighbours = Neighbours::attached_with(|attach| attach.polling(polling));
        for (round, pace) in (0..).zip(PACES) {
            let ends = neighbours.direct_stream();
            let sent = [bytes(LEN, round), bytes(LEN / 2, !round)];
            let run = |mut half: Half<'_>, sent: &[u8], expected: &[u8]| {
                block_on(poll_fn(|context| half.poll(sent, context)));
                assert!(half.came == expected, "{} bytes came with {polling:?} and {pace:?}", half.came.len());
            };
            // One thread per end, with one waker for both of its directions.
            thread::scope(|scope| {
                scope.spawn(|| run(Half::new(&ends[0], round, pace), &sent[0], &sent[1]));
                scope.spawn(|| run(Half::new(&ends[1], round + 50, pace), &sent[1], &sent[0]));
            });
            // One waker for everything.
            let ends = neighbours.direct_stream();
            let (mut one, mut other) = (Half::new(&ends[0], round, pace), Half::new(&ends[1], round, pace));
            block_on(poll_fn(|context| {
                let polled = (one.poll(&sent[0], context), other.poll(&sent[1], context));
                if polled.0.is_ready() && polled.1.is_ready() { Poll::Ready(()) } else { Poll::Pending }
            }));
            assert!(one.came == sent[1] && other.came == sent[0]);
        }
    }
}
