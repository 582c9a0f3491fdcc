//! Rows of published tables, pulled over a link and within a node, from tables that exist and tables that are published later.

use sealane_transport::gathered_rows;
use sealane_transport::named_rows::NamedRowsBuf;

use super::*;
use crate::limits::{ROW_REQUESTS_BYTES_MAX, ROW_RETRY_EVERY, ROW_TURNS_MAX, ROW_WAITS_MAX, ROW_WAKES_PER_TURN};
use crate::metrics::{TableCounters, TableFigures};
use crate::node::PullRowsRequest;

const ROW: usize = 64;

/// Row `row` of the table with this seed.
fn row(seed: u8, row: u64) -> Vec<u8> {
    (0..ROW).map(|at| (at as u64 + row * 7) as u8 ^ seed).collect()
}

fn publish(net: &mut Net, key: &str, version: i64, rows: u64, seed: u8) {
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let bytes: Vec<u8> = (0..rows).flat_map(|at| row(seed, at)).collect();
    net.nodes[0].publish(task, key, version, Tensor::from_elements(&[rows, ROW as u64], &bytes).unwrap()).unwrap();
}

/// Asks as a worker at node 1, or as ps:2 at node 0.
fn ask(net: &mut Net, at: (usize, &str), key: &str, min_version: i64, ids: &[u64]) -> Asked {
    ask_all(net, at, min_version, &[(key, ids)])
}

/// Asks for rows of many tables by one request.
fn ask_all(net: &mut Net, at: (usize, &str), min_version: i64, tables: &[(&str, &[u64])]) -> Asked {
    let pair = net.number(at.0, at.1, "ps:1");
    let mut named = NamedRowsBuf::default();
    for (key, ids) in tables {
        assert_eq!(named.name(key, ids, |count| count as u32), Some(ids.len()));
    }
    let (sender, receiver) = oneshot::channel();
    let (deadline, waiter) = (net.now + SOON, RecvWaiter::Channel(sender));
    let rows = named.as_rows();
    let request = PullRowsRequest { pair, rows, min_version, deadline, views: false, fail_if_gone: false, waiter };
    let ticket = net.nodes[at.0].pull_rows(net.now, request);
    Asked { receiver, ticket }
}

/// The answer for each table: the number of rows that the table has, the shape of the rows that came, and their bytes.
fn answered(answer: &Tensor, tables: usize) -> Vec<(u64, Vec<u64>, Vec<u8>)> {
    let parts = gathered_rows::read(answer.bytes(), tables).expect("an answer");
    parts.into_iter().map(|part| (part.table_rows, part.meta.shape().to_vec(), part.rows.to_vec())).collect()
}

impl Asked {
    /// The rows of the only table asked for.
    fn rows(&self) -> Vec<u8> {
        answered(&self.outcome().expect("the rows are there"), 1).remove(0).2
    }
}

const BOTH: [(usize, &str); 2] = [(1, "worker:1"), (0, "ps:2")];

#[test]
fn rows_come_in_the_order_in_which_they_are_named() {
    for at in BOTH {
        let mut net = Net::pair();
        publish(&mut net, "user", 1, 500, 3);
        // Few and many rows, ascending or not, and one row twice.
        let some: [Vec<u64>; 4] =
            [vec![], vec![499, 0, 0], (0..500).collect(), (0..1500).map(|at| at * 31 % 500).collect()];
        for ids in some {
            let asked = ask(&mut net, at, "user", 1, &ids);
            net.rest();
            let answer = asked.outcome().expect("the rows are there");
            let wanted: Vec<u8> = ids.iter().flat_map(|&id| row(3, id)).collect();
            assert!(answered(&answer, 1) == [(500, vec![ids.len() as u64, ROW as u64], wanted)], "{} rows", ids.len());
        }
        net.rest();
        assert_eq!(net.nodes[0].counters().rows_served, 2003);
        assert_eq!(net.nodes[0].counters().row_bytes_served, 2003 * ROW as u64);
        let tables = net.nodes[0].metrics().table_figures();
        let [table] = &tables[..] else { panic!("{tables:?}") };
        let TableCounters { requests, rows, bytes, rows_named, gather_ns } = table.counters;
        assert_eq!((&*table.task, &*table.table, requests, rows, bytes), ("ps:1", "user", 4, 2003, 2003 * ROW as u64));
        assert!(rows_named == 2003 && gather_ns > 0, "{rows_named} in {gather_ns} ns");
        net.nothing_is_left();
    }
}

#[test]
fn a_row_that_is_not_there_takes_no_other_along() {
    for at in BOTH {
        let mut net = Net::pair();
        publish(&mut net, "user", 1, 500, 3);
        publish(&mut net, "item", 1, 4, 5);
        let asked = ask_all(&mut net, at, 1, &[("user", &[3, 500, 7, u64::MAX]), ("item", &[9, 4]), ("user", &[8])]);
        net.rest();
        let some = [row(3, 3), row(3, 7)].concat();
        let wanted = [(500, vec![2, 64], some), (4, vec![0, 64], vec![]), (500, vec![1, 64], row(3, 8))];
        assert_eq!(answered(&asked.outcome().unwrap(), 3), wanted);
        assert_eq!(net.nodes[0].counters().rows_served, 3);
        let of_table = |table: TableFigures| (table.table, table.counters.rows, table.counters.rows_named);
        let tables: Vec<_> = net.nodes[0].metrics().table_figures().into_iter().map(of_table).collect();
        assert_eq!(tables, [("item".to_owned(), 0, 2), ("user".to_owned(), 3, 5)]);
        // The requests end with their task.
        let task = net.nodes[0].local_task("ps:1").unwrap();
        net.nodes[0].forget_client(task, "it ended");
        assert!(net.nodes[0].metrics().table_figures().is_empty());
        drop(asked);
        net.rest();
        net.nothing_is_left();
    }
}

#[test]
fn what_is_no_table_is_named() {
    for at in BOTH {
        let mut net = Net::pair();
        publish(&mut net, "user", 1, 500, 3);
        let task = net.nodes[0].local_task("ps:1").unwrap();
        net.nodes[0].publish(task, "loss", 1, Tensor::from_elements(&[], &[1.0_f32]).unwrap()).unwrap();
        let asked = ask_all(&mut net, at, 1, &[("user", &[0]), ("loss", &[0])]);
        net.rest();
        let error = asked.error();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains("'loss' is no table: it has no dimensions"), "{error}");
        net.nothing_is_left();
    }
}

#[test]
fn tables_that_are_asked_for_together_come_when_all_are_there() {
    for at in BOTH {
        let mut net = Net::pair();
        let both: [(&str, &[u64]); 2] = [("user", &[2]), ("item", &[1, 0])];
        let (asked, late) = (ask_all(&mut net, at, 3, &both), ask_all(&mut net, at, 4, &both));
        publish(&mut net, "item", 3, 4, 5);
        net.rest();
        assert!(asked.waits());
        publish(&mut net, "user", 4, 10, 1);
        net.rest();
        let wanted = [(10, vec![1, 64], row(1, 2)), (4, vec![2, 64], [row(5, 1), row(5, 0)].concat())];
        assert_eq!(answered(&asked.outcome().unwrap(), 2), wanted);
        net.pass(SOON * 2);
        let error = late.error();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(error.to_string().contains("user and 1 more table") || error.to_string().contains("item"), "{error}");
        drop(asked);
        net.rest();
        net.nothing_is_left();
    }
}

#[test]
fn a_table_that_comes_later_is_waited_for_and_so_is_a_newer_version() {
    for at in BOTH {
        let mut net = Net::pair();
        let (first, newer) = (ask(&mut net, at, "user", 1, &[2]), ask(&mut net, at, "user", 5, &[2]));
        net.rest();
        assert!(first.waits() && newer.waits());
        publish(&mut net, "item", 9, 10, 0);
        publish(&mut net, "user", 4, 10, 1);
        net.rest();
        assert!(first.rows() == row(1, 2) && newer.waits());
        publish(&mut net, "user", 5, 10, 2);
        net.rest();
        assert_eq!(newer.rows(), row(2, 2));
        net.nothing_is_left();
    }
}

#[test]
fn who_waits_for_a_table_hears_of_its_deadline_its_cancel_and_its_owners_end() {
    for at in BOTH {
        let mut net = Net::pair();
        let (late, given_up) = (ask(&mut net, at, "user", 1, &[2]), ask(&mut net, at, "user", 1, &[2]));
        net.rest();
        assert!(net.nodes[at.0].cancel(given_up.ticket.unwrap()));
        net.pass(SOON * 2);
        assert_eq!(late.error().code(), Code::DeadlineExceeded);
        assert!(given_up.receiver.try_recv().is_err(), "who gives up hears nothing");
        let orphan = ask(&mut net, at, "user", 1, &[2]);
        net.rest();
        let task = net.nodes[0].local_task("ps:1").unwrap();
        net.nodes[0].forget_client(task, "it ended");
        net.rest();
        assert_eq!(orphan.error().code(), Code::Unavailable);
        net.nothing_is_left();
    }
}

#[test]
fn rows_for_which_there_is_no_memory_now_come_when_there_is() {
    let mut net = Net::pair();
    publish(&mut net, "user", 1, 4096, 3);
    // Each answer takes about a quarter of the slab, and the worker's slab is as small.
    let ids: Vec<u64> = (0..4000).collect();
    let mut asked: Vec<_> = (0..12).map(|_| ask(&mut net, (1, "worker:1"), "user", 1, &ids)).collect();
    let wanted: Vec<u8> = ids.iter().flat_map(|&id| row(3, id)).collect();
    let (mut arrived, mut refused) = (0, 0);
    for _ in 0..100 {
        for node in 0..2 {
            net.nodes[node].turn(net.now);
            while let Some(order) = net.nodes[node].poll_order() {
                net.carry_out(node, order);
            }
        }
        // Dropping what has come frees its memory for the next answer.
        asked.retain(|asked| match asked.receiver.try_recv() {
            Err(_) => true,
            Ok(Ok(tensor)) => {
                assert!(answered(&tensor, 1)[0].2 == wanted);
                arrived += 1;
                false
            }
            Ok(Err(unreceived)) => {
                assert_eq!(limit(&unreceived.error), "runtime.slab_receive_bytes");
                refused += 1;
                false
            }
        });
    }
    assert_eq!((arrived + refused, asked.len()), (12, 0));
    assert!(arrived >= 4, "{arrived} of 12");
    net.rest();
    net.nothing_is_left();
}

#[test]
fn a_row_that_is_always_being_written_ends_its_request() {
    for at in BOTH {
        let mut net = Net::pair();
        publish(&mut net, "user", 1, 500, 3);
        let task = net.nodes[0].local_task("ps:1").unwrap();
        // The lock of row 5 says that the row is being written; the other locks are free.
        let mut locks = vec![0_u32; 4096];
        locks[5] = 1;
        net.nodes[0].publish(task, "user\0locks", 1, Tensor::from_elements(&[4096], &locks).unwrap()).unwrap();
        let (free, stuck) = (ask(&mut net, at, "user", 1, &[4, 6]), ask(&mut net, at, "user", 1, &[4, 5, 6]));
        for _ in 0..5000 {
            for node in &mut net.nodes {
                node.turn(net.now);
            }
            while let Some(order) = net.nodes[at.0].poll_order() {
                net.carry_out(at.0, order);
            }
        }
        assert_eq!(free.rows(), [row(3, 4), row(3, 6)].concat());
        let error = stuck.error();
        assert_eq!(error.code(), Code::Aborted);
        assert!(error.to_string().contains("row 5 of 'user' was written at each"), "{error}");
        net.nothing_is_left();
    }
}

#[test]
fn waiting_request_keeps_its_row_numbers() {
    let mut net = Net::pair();
    publish(&mut net, "user", 1, 4096, 3);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let mut locks = vec![0_u32; 4096];
    locks[5] = 1;
    net.nodes[0].publish(task, "user\0locks", 1, Tensor::from_elements(&[4096], &locks).unwrap()).unwrap();
    let memory = net.nodes[0].send_slab().allocate(SLAB_BYTES * 9 / 10).unwrap();
    // The first request has copied row 4 when the second one decodes its own numbers and finds no memory.
    let locked = ask(&mut net, (1, "worker:1"), "user", 1, &[4, 5, 6]);
    let large = ask(&mut net, (1, "worker:1"), "user", 1, &(96..4096).collect::<Vec<_>>());
    for _ in 0..2 * ROW_TURNS_MAX {
        net.pass(ROW_RETRY_EVERY);
    }
    let error = locked.error();
    assert!(error.to_string().contains("row 5 of 'user' was written at each"), "{error}");
    drop(memory);
    for _ in 0..10 {
        net.pass(ROW_RETRY_EVERY);
    }
    assert_eq!(large.rows().len(), 4000 * ROW);
    drop((large, locked));
    net.rest();
    net.nothing_is_left();
}

#[test]
fn a_node_that_drains_refuses_what_waits_and_gives_what_is_there() {
    let mut net = Net::pair();
    publish(&mut net, "user", 1, 10, 3);
    let waits = ask(&mut net, (1, "worker:1"), "item", 1, &[2]);
    net.rest();
    net.nodes[0].drain();
    net.rest();
    assert_eq!(waits.error().code(), Code::Unavailable);
    let (there, not_there) =
        (ask(&mut net, (1, "worker:1"), "user", 1, &[2]), ask(&mut net, (1, "worker:1"), "item", 1, &[2]));
    net.rest();
    assert_eq!(there.rows(), row(3, 2));
    assert_eq!(not_there.error().code(), Code::Unavailable);
    net.nothing_is_left();
}

#[test]
fn where_a_table_lies_is_told_to_clients_alone_of_tables_of_this_engine() {
    for (at, why) in [((1, "worker:1"), "another engine"), ((0, "ps:2"), "no client's")] {
        let mut net = Net::pair();
        publish(&mut net, "user", 1, 500, 3);
        let pair = net.number(at.0, at.1, "ps:1");
        let mut named = NamedRowsBuf::default();
        named.name("user", &[], |_| 7).unwrap();
        let (sender, receiver) = oneshot::channel();
        let (rows, deadline, waiter) = (named.as_rows(), net.now + SOON, RecvWaiter::Channel(sender));
        let request =
            PullRowsRequest { pair, rows, min_version: 1, deadline, views: true, fail_if_gone: false, waiter };
        let ticket = net.nodes[at.0].pull_rows(net.now, request);
        net.rest();
        let error = Asked { receiver, ticket }.error();
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(net.nodes[0].counters().rows_served, 0);
        net.rest();
        net.nothing_is_left();
    }
}

/// Bytes of each answer to [`ask_for_a_mib`].
const MIB: usize = 1 << 20;

/// A ps at 0 and a worker at 1, with slabs of this size.
fn pair_with_slabs(bytes: usize) -> Net {
    let slab = |name| Slab::new(SlabSettings { name, bytes, populate: false }).unwrap();
    let nodes = [ps(), worker()].map(|settings| Node::new(settings, map(), slab("send"), slab("receive")).unwrap());
    Net { nodes: nodes.into(), ..Net::new([]) }
}

/// Asks for 4096 rows of 256 bytes from "wide", which has 16 rows.
fn ask_for_a_mib(net: &mut Net, at: (usize, &str)) -> Asked {
    ask(net, at, "wide", 1, &(0..4096).map(|at| at / 256).collect::<Vec<u64>>())
}

fn publish_wide(net: &mut Net) {
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let bytes: Vec<u8> = (0..16).flat_map(|row| [row; 256]).collect();
    net.nodes[0].publish(task, "wide", 1, Tensor::from_elements(&[16, 256], &bytes).unwrap()).unwrap();
}

#[test]
fn more_than_is_copied_in_a_turn_comes_in_later_turns() {
    for at in BOTH {
        let mut net = pair_with_slabs(64 * MIB);
        // Half of the requests are made before the table is published.
        let early: Vec<_> = (0..4).map(|_| ask_for_a_mib(&mut net, at)).collect();
        net.rest();
        publish_wide(&mut net);
        let asked: Vec<_> = early.into_iter().chain((0..8).map(|_| ask_for_a_mib(&mut net, at))).collect();
        net.rest();
        let wanted: Vec<u8> = (0..4096).flat_map(|at| [(at / 256) as u8; 256]).collect();
        for (number, asked) in asked.iter().enumerate() {
            assert!(asked.rows() == wanted, "request {number} at node {}", at.0);
        }
        drop(asked);
        net.rest();
        net.nothing_is_left();
    }
}

#[test]
fn a_peer_that_asks_for_much_at_once_takes_its_share_of_the_memory() {
    let mut net = pair_with_slabs(64 * MIB);
    publish_wide(&mut net);
    let mut asked: Vec<_> = (0..64).map(|_| ask_for_a_mib(&mut net, (1, "worker:1"))).collect();
    let mut most = 0;
    for _ in 0..2000 {
        while let Some(order) = net.nodes[1].poll_order() {
            net.carry_out(1, order);
        }
        for node in &mut net.nodes {
            node.turn(net.now);
            node.check_invariants();
        }
        most = most.max(net.nodes[0].counters().slab_send_bytes as usize);
        asked.retain(Asked::waits);
    }
    assert!(most > 0 && most <= 64 * MIB / 4, "{most} bytes of the slab");
    assert_eq!(asked.len(), 0, "all of them end");
    net.rest();
    net.nothing_is_left();
}

#[test]
fn a_shard_sleeps_while_rows_wait_for_memory_and_looks_again_a_millisecond_later() {
    let mut net = Net::pair();
    publish(&mut net, "user", 1, 4096, 3);
    let memory = net.nodes[0].send_slab().allocate(SLAB_BYTES * 9 / 10).unwrap();
    let ids: Vec<u64> = (0..4000).collect();
    let asked: Vec<_> = (0..40).map(|_| ask(&mut net, (1, "worker:1"), "user", 1, &ids)).collect();
    net.rest();
    assert!(asked.iter().all(Asked::waits) && !net.nodes[0].has_work());
    for _ in 0..10 {
        let due = net.nodes[0].next_timeout().expect("it looks again");
        assert!(due <= net.now + ROW_RETRY_EVERY && due > net.now, "it would never sleep, or too long");
        net.now = due;
        net.rest();
    }
    drop(memory);
    for _ in 0..10 {
        net.pass(ROW_RETRY_EVERY);
    }
    assert!(asked.iter().all(|asked| !asked.waits()), "all of them end, most for want of memory at the worker");
    drop(asked);
    net.rest();
    net.nothing_is_left();
}

#[test]
fn a_publication_wakes_as_many_as_a_turn_may_and_the_next_turns_the_others() {
    for at in BOTH {
        let mut net = Net::pair();
        let count = 10 * ROW_WAKES_PER_TURN;
        let asked: Vec<_> = (0..count).map(|_| ask(&mut net, at, "user", 2, &[2])).collect();
        let later = ask(&mut net, at, "user", 3, &[2]);
        net.rest();
        publish(&mut net, "user", 1, 10, 1);
        assert_eq!(net.nodes[0].row_requests.waiting(), count + 1, "nobody waits for this version");
        publish(&mut net, "user", 2, 10, 2);
        let mut waiting = net.nodes[0].row_requests.waiting();
        assert!(waiting > count - ROW_WAKES_PER_TURN, "{waiting} of {count} wait after the publication");
        while waiting > 1 {
            assert!(net.nodes[0].has_work(), "the shard would sleep while {waiting} wait for what is there");
            net.nodes[0].turn(net.now);
            net.nodes[0].check_invariants();
            let woken = waiting - net.nodes[0].row_requests.waiting();
            assert!(woken > 0 && woken <= ROW_WAKES_PER_TURN, "{woken} in one turn");
            waiting -= woken;
        }
        net.rest();
        assert!(asked.iter().all(|asked| asked.rows() == row(2, 2)) && later.waits());
    }
}

#[test]
fn what_is_withdrawn_before_all_have_heard_of_it_is_waited_for_again() {
    let mut net = Net::pair();
    let asked: Vec<_> = (0..2 * ROW_WAKES_PER_TURN).map(|_| ask(&mut net, (1, "worker:1"), "user", 1, &[2])).collect();
    net.rest();
    publish(&mut net, "user", 1, 10, 1);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].withdraw(task, "user");
    net.rest();
    assert!(asked.iter().all(Asked::waits) && !net.nodes[0].has_work());
    publish(&mut net, "user", 1, 10, 3);
    net.rest();
    assert!(asked.iter().all(|asked| asked.rows() == row(3, 2)));
}

#[test]
fn a_shard_sleeps_when_those_have_ended_whose_turn_was_to_come() {
    let mut net = Net::pair();
    let asked: Vec<_> = (0..2 * ROW_WAKES_PER_TURN).map(|_| ask(&mut net, (0, "ps:2"), "user", 1, &[2])).collect();
    publish(&mut net, "user", 1, 10, 1);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].forget_client(task, "it ended");
    assert!(asked.iter().all(|asked| asked.error().code() == Code::Unavailable));
    net.rest();
    assert!(!net.nodes[0].has_work());
}

#[test]
fn so_many_requests_of_a_peer_wait_for_one_table() {
    let mut net = Net::pair();
    let asked: Vec<_> = (0..ROW_WAITS_MAX + 2).map(|_| ask(&mut net, (1, "worker:1"), "user", 1, &[2])).collect();
    let (other, own) = (ask(&mut net, (1, "worker:1"), "item", 1, &[2]), ask(&mut net, (0, "ps:2"), "user", 1, &[2]));
    net.rest();
    let ended: Vec<_> = asked.iter().filter_map(|asked| asked.receiver.try_recv().ok()).collect();
    assert_eq!(ended.len(), 2);
    for outcome in ended {
        let error = outcome.unwrap_err().error;
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.to_string().contains("requests of a peer for rows of one table"), "{error}");
    }
    assert!(other.waits() && own.waits(), "another table, another asker");
    // A request that ends makes room.
    assert!(net.nodes[1].cancel(asked[0].ticket.unwrap()));
    net.rest();
    let again = ask(&mut net, (1, "worker:1"), "user", 1, &[2]);
    net.rest();
    assert!(again.waits());
}

#[test]
fn rows_that_may_never_find_memory_are_refused() {
    let mut net = Net::pair();
    publish(&mut net, "user", 1, 4096, 3);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].publish(task, "wide", 1, Tensor::from_elements(&[16, 240], &[7_u8; 16 * 240]).unwrap()).unwrap();
    let memory = net.nodes[0].send_slab().allocate(SLAB_BYTES * 9 / 10).unwrap();
    let (large, small) = (
        ask_for_a_mib(&mut net, (1, "worker:1")),
        ask(&mut net, (1, "worker:1"), "user", 1, &(0..4000).collect::<Vec<_>>()),
    );
    net.rest();
    let error = large.error();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let told = error.to_string();
    assert!(told.contains("runtime.slab_send_bytes") && told.contains("at most 262144 for one peer"), "{told}");
    assert!(small.waits());
    drop(memory);
    net.rest();
    assert_eq!(small.rows().len(), 4000 * ROW);
    drop((large, small));
    net.rest();
    net.nothing_is_left();
}

#[test]
fn what_a_peer_asks_for_and_waits_takes_a_bounded_part_of_memory() {
    let mut net = Net::pair();
    // 1500 row numbers of four bytes each, not in ascending order.
    let ids: Vec<u64> = (0..1500).rev().collect();
    let fit = ROW_REQUESTS_BYTES_MAX / (8 + 1 + 4 * ids.len() + "user".len());
    let asked: Vec<_> = (0..fit + 3).map(|_| ask(&mut net, (1, "worker:1"), "user", 1, &ids)).collect();
    net.rest();
    let ended: Vec<_> = asked.iter().filter_map(|asked| asked.receiver.try_recv().ok()).collect();
    assert_eq!(ended.len(), 3);
    for outcome in ended {
        let error = outcome.unwrap_err().error;
        assert!(error.to_string().contains("requests for rows that wait"), "{error}");
    }
    // Requests that end make room.
    net.pass(SOON * 2);
    let again = ask(&mut net, (1, "worker:1"), "user", 1, &ids);
    net.rest();
    assert!(again.waits());
}
