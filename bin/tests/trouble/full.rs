//! Full memory: the call that needs more names the limit and a remedy, and everything works again once something
//! was dropped.

use sealane::{Code, Error, Tensor};

use crate::fixture::{PS, WORKER};
use crate::hosts::{ARENA_BYTES, Hosts};
use crate::tensors::{LARGE, STEP, bytes, in_arena, meta, tensor, verify};

/// Large tensors that the receive area of these hosts holds.
const HELD: u64 = 4;

fn limit(error: &Error) -> &str {
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    match error {
        Error::ResourceExhausted { limit, .. } => limit,
        other => panic!("{other}"),
    }
}

#[test]
fn a_full_arena_is_told_and_works_again() {
    let hosts = Hosts::start(&[&[PS, WORKER]]);
    let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
    for _ in 0..3 {
        let mut under_way = Vec::new();
        let error = loop {
            let number = under_way.len() as u64;
            match producer.alloc(LARGE) {
                Ok(mut memory) => {
                    memory.copy_from_slice(&bytes(number, LARGE));
                    let tensor = Tensor::new(meta(LARGE), memory).unwrap();
                    under_way.push(producer.send(WORKER, STEP, &number.to_string(), tensor));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(limit(&error), "client arena_bytes");
        let text = error.to_string();
        assert!(text.contains("drop tensors that are done with, or attach with a larger arena"), "{text}");
        // A send that would have to copy into it fails too.
        let error = producer.send(WORKER, STEP, "copied", tensor(9, LARGE)).wait().unwrap_err();
        assert_eq!(limit(&error), "client arena_bytes");
        // A tensor that travels in the ring needs no arena.
        let small = producer.send(WORKER, STEP, "small", tensor(8, 64));
        verify(&consumer.recv(PS, STEP, "small").wait().unwrap(), 8, 64);
        small.wait().unwrap();
        for (number, sending) in (0..).zip(under_way) {
            verify(&consumer.recv(PS, STEP, &number.to_string()).wait().unwrap(), number, LARGE);
            sending.wait().unwrap();
        }
        drop(producer.alloc(ARENA_BYTES as usize).unwrap());
    }
    drop((producer, consumer));
    hosts.drain();
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
    receive_areas_are_full(Hosts::start(&[&[PS, WORKER]]));
}

#[test]
fn a_full_receive_area_leaves_the_tensor_with_its_producer_over_tcp() {
    receive_areas_are_full(Hosts::start(&[&[PS], &[WORKER]]));
}

#[test]
fn a_destination_that_is_too_small_leaves_the_tensor_with_its_producer() {
    let hosts = Hosts::start(&[&[PS, WORKER]]);
    let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
    let sending = producer.send(WORKER, STEP, "key", tensor(1, 2000));
    let unreceived = consumer.recv_into(PS, STEP, "key", consumer.alloc(1999).unwrap()).wait().unwrap_err();
    assert_eq!(unreceived.error.code(), Code::InvalidArgument);
    assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(1999));
    let tensor = consumer.recv(PS, STEP, "key").wait().unwrap();
    assert_eq!(tensor.meta(), &meta(2000));
    verify(&tensor, 1, 2000);
    sending.wait().unwrap();
    drop((producer, consumer, tensor));
    hosts.drain();
}
