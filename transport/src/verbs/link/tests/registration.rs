//! Memory of clients: its registration begins with its first use, outside the turn; until it is done, tensors are copied.

use std::time::Duration;

use super::harness::{Fate, Into, LARGE, Manner, NAMES, Pair};
use crate::link::Spot;
use crate::shm::SharedMemory;
use crate::verbs::device::MemoryKind;
use crate::verbs::regions::Lending;

/// Size of a client's arena whose pages are never touched.
const ARENA: u64 = 4 << 30;

fn arena() -> SharedMemory {
    SharedMemory::create("arena", ARENA).expect("address space").0
}

/// Ports for which registering takes 0.1 ms for each MiB: 0.4 s for the arena.
fn slow() -> Manner {
    let mut manner = Manner::default();
    manner.device.register_time_per_mib = Duration::from_micros(100);
    manner
}

/// Uses part of a client's memory; true if it is registered.
fn use_some(pair: &Pair, memory: &SharedMemory) -> bool {
    let state = &mut *pair.sides[0].port.state();
    let (access, registration) = (state.access(), state.settings.registration);
    let address = memory.base().as_ptr() as u64 + 4096;
    let spot = Spot { address, bytes: LARGE, memory: MemoryKind::Foreign, direct: None };
    let how = Lending { access, registration };
    // SAFETY: the memory stays mapped until the end of the test, and the use is released at once.
    #[allow(unsafe_code)]
    let used = unsafe { state.regions.lend(&mut *state.device, &spot, how) };
    let is_registered = used.is_ok();
    if let Ok(used) = used {
        state.regions.release(&mut *state.device, used);
    }
    is_registered
}

fn until_registered(pair: &mut Pair) {
    while pair.sides[0].port.state().regions.awaits() {
        assert!(pair.sides[0].port.next_timeout().is_some(), "a shard that sleeps is to look");
        pair.sides[0].poll();
    }
}

#[test]
fn a_clients_arena_is_registered_and_given_up_while_neighbours_go_on() {
    let mut pair = Pair::new(&slow());
    // What was registered at the start: the message buffers and the slab.
    let at_start = pair.counters(0).register_call_bytes_max;
    let memory = arena();
    let port = pair.sides[0].port.clone();
    port.add_shared(&memory, true);
    assert_eq!((pair.counters(0).regions, port.pinned_bytes(&memory)), (2, 0), "nothing is pinned before it is used");
    for ends in [false, true] {
        if ends {
            port.remove_shared(&memory);
        } else {
            assert!(!use_some(&pair, &memory));
        }
        let mut exchanges = 0;
        while port.state().regions.awaits() {
            let number = u32::from(ends) * 1_000_000 + exchanges;
            pair.sides[1].ask(pair.now, number, 100, Into::Anywhere);
            pair.settle();
            exchanges += 1;
        }
        assert!(exchanges > 0, "{exchanges} exchanges while the arena was registered or given up");
        assert_eq!(port.pinned_bytes(&memory), if ends { 0 } else { ARENA });
        assert_eq!(use_some(&pair, &memory), !ends, "what a client that is gone has lent goes by copy");
    }
    // No call has registered it or given it up.
    assert_eq!((pair.counters(0).register_call_bytes_max, pair.counters(0).regions), (at_start, 2));
    pair.check();
}

#[test]
fn a_client_that_leaves_while_its_memory_is_registered_leaves_nothing_behind() {
    for frees in [false, true] {
        let mut pair = Pair::new(&slow());
        let memory = arena();
        let port = pair.sides[0].port.clone();
        port.add_shared(&memory, true);
        assert!(!use_some(&pair, &memory));
        port.remove_shared(&memory);
        if frees {
            // The device is closed while the registration runs.
            drop((port, pair));
            continue;
        }
        until_registered(&mut pair);
        assert_eq!((pair.counters(0).regions, port.pinned_bytes(&memory)), (2, 0));
        pair.check();
    }
}

#[test]
fn memory_that_may_not_be_pinned_travels_by_copy_and_is_not_registered_for_each_transfer() {
    let pair = Pair::new(&Manner::default());
    let memory = arena();
    let port = pair.sides[0].port.clone();
    port.add_shared(&memory, false);
    for _ in 0..3 {
        assert!(!use_some(&pair, &memory));
    }
    assert!(!port.state().regions.awaits());
    assert_eq!((port.counters().registrations, port.pinned_bytes(&memory), pair.counters(0).regions), (0, 0, 2));
    pair.check();
}

/// Tensors whose memory is not registered yet, or cannot be, are copied; once it is registered, they are sent from where they are.
#[test]
fn tensors_travel_by_copy_until_their_memory_is_registered() {
    for can_be in [true, false] {
        let mut pair = Pair::new(&Manner::default());
        let slab = pair.sides[0].slab.clone();
        let port = pair.sides[0].port.clone();
        {
            let state = &mut *port.state();
            state.regions.remove(&mut *state.device, slab.region().0 as u64);
            let (start, bytes) = slab.region();
            state.regions.add_later((start as u64, bytes), true, Box::new(slab.clone()));
        }
        if !can_be {
            pair.fail(0, crate::verbs::fake::Verb::Register, 0);
        }
        pair.sides[0].sends_from_slab = true;
        for number in 0..3 {
            pair.sides[1].ask(pair.now, number, LARGE, Into::Anywhere);
            pair.settle();
            until_registered(&mut pair);
            assert!(matches!(pair.fate(1, number), Fate::Arrived { bytes: LARGE, .. }));
        }
        let counters = port.counters();
        let (streamed, placed) = if can_be { (1, 2 * LARGE as u64) } else { (3, 0) };
        assert_eq!((counters.payloads_streamed, counters.bytes_placed, counters.registrations), (streamed, placed, 0));
        assert_eq!(pair.fabric.violations(), Vec::<String>::new(), "{}", NAMES[0]);
        pair.check();
    }
}
