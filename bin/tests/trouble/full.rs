//! Full memory: the call that needs more names the limit and a remedy, and everything works again once something
//! was dropped.

use sealane::{Code, Error, Tensor};

use crate::fixture::{PS, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
use crate::tensors::{LARGE, STEP, in_arena, tensor, verify};

/// Large tensors that the receive area of these hosts holds.
const HELD: u64 = 4;

fn limit(error: &Error) -> &str {
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    match error {
        Error::ResourceExhausted { limit, .. } => limit,
        other => panic!("{other}"),
    }
}

fn receive_areas_are_full(hosts: Hosts) {
    let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
    let recv = |number: u64| consumer.recv(PS, STEP, &number.to_string());
    for _ in 0..3 {
        let send = |number: u64| producer.send(WORKER, STEP, &number.to_string(), in_arena(&producer, number, LARGE));
        let mut sendings: Vec<_> = (0..HELD + 2).map(send).collect();
        let mut held: Vec<Tensor> = (0..HELD).map(|number| recv(number).wait().unwrap()).collect();
        for _ in 0..2 {
            let error = recv(HELD).wait().unwrap_err().error;
            assert_eq!(limit(&error), "daemon.area_bytes");
            let text = error.to_string();
            assert!(text.contains("drop tensors that are done with, give the recv a destination"), "{text}");
        }
        for last in sendings.iter_mut().skip(HELD as usize) {
            assert!(last.try_outcome().is_none(), "the tensor is still its producer's");
        }
        let small = producer.send(WORKER, STEP, "small", tensor(8, 64));
        verify(&consumer.recv(PS, STEP, "small").wait().unwrap(), 8, 64);
        small.wait().unwrap();
        // It can be received at once with a destination, and without one as soon as another tensor is dropped.
        let destination = consumer.alloc(LARGE).unwrap();
        let landed = consumer.recv_into(PS, STEP, &HELD.to_string(), destination).wait().unwrap();
        verify(&landed, HELD, LARGE);
        for (number, tensor) in (0..).zip(&held) {
            verify(tensor, number, LARGE);
        }
        held.pop();
        held.push(recv(HELD + 1).wait().unwrap());
        verify(held.last().unwrap(), HELD + 1, LARGE);
        sendings.into_iter().for_each(|sending| sending.wait().unwrap());
    }
    drop((producer, consumer));
    hosts.drain();
}

#[test]
fn a_full_receive_area_leaves_the_tensor_with_its_producer() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(receive_areas_are_full);
}
