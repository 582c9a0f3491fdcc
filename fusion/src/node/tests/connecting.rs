//! Connections: made on demand, reduced to one when two cross, missed, lost, given up.

use super::pushing::push_to;
use super::*;
use crate::limits::{OUTAGE_TIME_MIN, REDIAL_WAIT_MAX};

const PS: (usize, &str) = (0, "ps:1");
const WORKER: (usize, &str) = (1, "worker:1");

/// A worker and a ps that wait for tensors of each other, and the calls that both want to make.
fn crossing() -> (Net, Asked, Asked, (Handle, Hello), (Handle, Hello)) {
    let mut net = Net::pair();
    let at_ps = net.recv(PS, "worker:1", "g");
    let at_worker = net.recv(WORKER, "ps:1", "w");
    let (of_ps, of_worker) = (net.dialing(0), net.dialing(1));
    (net, at_ps, at_worker, of_ps, of_worker)
}

fn both_arrive(mut net: Net, at_ps: &Asked, at_worker: &Asked) {
    net.send(PS, "worker:1", "w", &[1]);
    net.send(WORKER, "ps:1", "g", &[2]);
    net.rest();
    assert_eq!((at_ps.bytes(), at_worker.bytes()), (vec![2], vec![1]));
    assert_eq!((net.nodes[0].counters().links, net.nodes[1].counters().links), (1, 1));
    assert_eq!((net.nodes[0].counters().links_lost, net.nodes[1].counters().links_lost), (0, 0));
}

#[test]
fn of_two_calls_that_cross_the_smaller_addresss_stands() {
    let (mut net, at_ps, at_worker, of_ps, of_worker) = crossing();
    let Err((code, _)) = net.call(0, &of_worker.1) else { panic!("the ps has the smaller address") };
    assert_eq!(code, RejectCode::Crossed);
    net.fail(1, of_worker.0, DialFailureKind::Crossed, "crossed");
    let (link, welcome) = net.call(1, &of_ps.1).unwrap();
    net.nodes[0].dialed(net.now, of_ps.0, Box::new(link), &welcome);
    both_arrive(net, &at_ps, &at_worker);
}

#[test]
fn whichever_of_two_crossing_calls_comes_first() {
    let (mut net, at_ps, at_worker, of_ps, of_worker) = crossing();
    let (link, welcome) = net.call(1, &of_ps.1).unwrap();
    assert!(matches!(net.nodes[1].poll_order(), Some(ConnectOrder::HangUp(peer)) if peer == of_worker.0));
    net.nodes[0].dialed(net.now, of_ps.0, Box::new(link), &welcome);
    // The call that was hung up arrives all the same.
    let Err((code, _)) = net.call(0, &of_worker.1) else { panic!("a link stands") };
    assert_eq!(code, RejectCode::Crossed);
    // So does its failure, which no longer matters.
    net.fail(1, of_worker.0, DialFailureKind::Crossed, "crossed");
    both_arrive(net, &at_ps, &at_worker);
}

#[test]
fn an_unknown_task_is_an_error_to_the_caller_alone() {
    let mut net = Net::pair();
    let error = net.nodes[1].pair(0, "ps:9").unwrap_err();
    assert_eq!(error.to_string(), "task ps:9 is not known: the endpoint map has no line for it; add one and reload");
    let error = net.nodes[1].local_task("ps:1").unwrap_err();
    assert_eq!(error.to_string(), "task ps:1 is not known: it is not among the 1 tasks of this engine");
}

#[test]
fn requests_wait_so_long_for_a_connection() {
    let mut net = Net::new([worker()]);
    net.mute = true;
    let timeout = net.nodes[0].settings().connect_timeout;
    let pair = net.number(0, "worker:1", "ps:1");
    let (sender, receiver) = oneshot::channel();
    net.nodes[0].recv(net.now, request(pair, "w", net.now + timeout * 10, RecvWaiter::Channel(sender)));
    net.pass(timeout - Duration::from_millis(1));
    assert!(receiver.try_recv().is_err());
    net.pass(Duration::from_millis(1));
    let error = receiver.try_recv().unwrap().unwrap_err().error;
    assert!(error.to_string().contains("no connection within 20s (connect_timeout_ms)"), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(net.nodes[0].poll_order().is_none(), "nobody waits, so nobody calls");
}

#[test]
fn who_waits_for_a_peer_that_is_not_there_hears_what_its_calls_came_to() {
    let mut net = Net::new([worker()]);
    let asked = net.recv((0, "worker:1"), "nowhere:1", "w");
    let step = Duration::from_millis(100);
    (0..SOON.as_millis() / step.as_millis()).for_each(|_| net.pass(step));
    let told = asked.error().to_string();
    let rest =
        told.strip_prefix("recv of step 1 key 'w' waited 5s and its deadline passed: nowhere:1 at 10.0.0.9:7000: ");
    let tries = rest.and_then(|rest| rest.strip_prefix("nobody is there, ")?.strip_suffix(" tries in 5.0s"));
    assert!(tries.is_some_and(|tries| tries.parse::<u32>().unwrap() > 5), "{told}");
}

#[test]
fn who_waits_for_a_host_name_hears_so_until_its_address_is_found() {
    let told = |is_found: bool| {
        let mut net = Net::new([worker()]);
        net.mute = true;
        let asked = net.recv((0, "worker:1"), "ps:1", "w");
        let (peer, _) = net.dialing(0);
        net.nodes[0].set_resolving(peer, true);
        net.nodes[0].set_resolving(peer, !is_found);
        net.pass(SOON);
        asked.error().to_string()
    };
    assert!(told(false).ends_with("ps:1 at 10.0.0.1:7000: its host name is being looked up, for 5.0s by now"));
    assert!(told(true).ends_with("ps:1 at 10.0.0.1:7000: no answer to the call for 5.0s"));
}

#[test]
fn a_request_is_not_charged_for_the_wait_of_one_that_was_given_up() {
    let mut net = Net::new([worker()]);
    let timeout = net.nodes[0].settings().connect_timeout;
    let first = net.recv((0, "worker:1"), "ps:1", "w");
    net.rest();
    net.nodes[0].cancel(first.ticket.unwrap());
    net.pass(timeout - SOON / 2);
    let second = net.recv((0, "worker:1"), "ps:1", "w");
    net.pass(SOON / 2 + Duration::from_secs(1));
    assert!(second.waits());
}

#[test]
fn a_peer_that_cannot_be_spoken_with_ends_the_requests_at_once() {
    let mut net = Net::new([worker()]);
    net.failure = DialFailureKind::Final;
    let asked = net.recv((0, "worker:1"), "ps:1", "w");
    net.rest();
    assert_eq!(asked.error().to_string(), "10.0.0.1:7000 is unavailable: nobody is there");
}

#[test]
fn calls_are_repeated_ever_less_often() {
    let mut net = Net::new([worker()]);
    let _waits = net.recv((0, "worker:1"), "ps:1", "w");
    net.rest();
    let (mut pauses, start) = (Vec::new(), net.now);
    while net.now < start + Duration::from_secs(4) {
        let due = net.nodes[0].next_timeout().unwrap();
        pauses.push(due - net.now);
        net.pass(due - net.now);
    }
    assert!(pauses[0] <= Duration::from_millis(10) && pauses.len() < 25, "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| (200..=400).contains(&pause.as_millis())), "{pauses:?}");
}

#[test]
fn a_peer_that_was_connected_and_refuses_calls_is_gone() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    net.nodes.remove(0);
    net.failure = DialFailureKind::Refused;
    net.rest();
    let error = asked.error();
    assert!(error.to_string().contains("it was connected, and the link was lost"), "{error}");
}

/// Returns a network of a worker whose ps has ended, after they were connected: the ps's address refuses connections. `announced` tells
/// whether the ps said goodbye.
fn left_alone(announced: bool) -> Net {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    if announced {
        net.nodes[0].shut_down(net.now, "it drains");
    }
    net.nodes.remove(0);
    net.failure = DialFailureKind::Refused;
    net.rest();
    assert_eq!(asked.error().code(), Code::Unavailable);
    net
}

/// Passes time in small steps, so that dials are made when they become due.
fn pass_slowly(net: &mut Net, time: Duration) {
    let step = Duration::from_millis(10);
    (0..time.as_millis() / step.as_millis()).for_each(|_| net.pass(step));
}

#[test]
fn later_calls_to_a_dead_peer_end_within_a_second() {
    let mut net = left_alone(false);
    let (worker, soon) = ((0, "worker:1"), OUTAGE_TIME_MIN + REDIAL_WAIT_MAX);
    let first = net.recv(worker, "ps:1", "v");
    pass_slowly(&mut net, OUTAGE_TIME_MIN / 2);
    assert!(first.waits(), "its successor may come");
    pass_slowly(&mut net, soon / 2);
    let error = first.error();
    assert!(error.to_string().contains("it was connected, and refuses connections now: nobody is there"), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
    // However much later: it is dialed once more.
    net.pass(SOON * 10);
    let second = net.recv(worker, "ps:1", "u");
    net.rest();
    assert_eq!(second.error().code(), Code::Unavailable);
    // Calls that are repeated at once do not have it dialed more often.
    let third = net.recv(worker, "ps:1", "t");
    net.rest();
    assert!(third.waits() && net.nodes[0].next_timeout().is_some());
    pass_slowly(&mut net, REDIAL_WAIT_MAX);
    assert_eq!(third.error().code(), Code::Unavailable);
    net.pass(SOON);
    net.pass(SOON);
    assert_eq!(net.nodes[0].next_timeout(), None, "no call waits, so the peer is not dialed");
}

#[test]
fn calls_to_a_dead_peer_reach_its_successor() {
    let mut net = left_alone(false);
    let asked = net.recv((0, "worker:1"), "ps:1", "v");
    pass_slowly(&mut net, OUTAGE_TIME_MIN / 2);
    net.nodes.insert(0, node(NodeSettings { incarnation: 2000, ..ps() }));
    net.send(PS, "worker:1", "v", &[3]);
    pass_slowly(&mut net, REDIAL_WAIT_MAX);
    assert_eq!(asked.bytes(), [3]);
}

#[test]
fn peer_that_announced_its_stop_is_waited_for() {
    let mut net = left_alone(true);
    let asked = net.recv((0, "worker:1"), "ps:1", "v");
    pass_slowly(&mut net, OUTAGE_TIME_MIN * 4);
    assert!(asked.waits());
    net.nodes.insert(0, node(NodeSettings { incarnation: 2000, ..ps() }));
    net.send(PS, "worker:1", "v", &[3]);
    pass_slowly(&mut net, REDIAL_WAIT_MAX);
    assert_eq!(asked.bytes(), [3]);
}

#[test]
fn peer_that_never_came_is_waited_for_if_it_refuses() {
    let mut net = Net::new([worker()]);
    net.failure = DialFailureKind::Refused;
    let asked = net.recv((0, "worker:1"), "ps:1", "w");
    pass_slowly(&mut net, OUTAGE_TIME_MIN * 4);
    assert!(asked.waits());
}

#[test]
fn what_was_lent_to_a_consumer_that_died_waits_for_the_next() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let sent = net.send(PS, "worker:1", "w", &[5; 20_000]);
    net.nodes[0].turn(net.now);
    net.nodes[1] = node(NodeSettings { incarnation: 2000, ..worker() });
    assert!(matches!(asked.receiver.try_recv(), Err(oneshot::TryRecvError::Disconnected)));
    net.rest();
    assert!(sent.waits());
    let again = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!((again.bytes(), sent.outcome()), (vec![5; 20_000], Ok(())));
}

#[test]
fn a_lease_ends_what_a_dead_consumer_never_releases() {
    let mut net = Net::pair();
    let _asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let sent = net.send(PS, "worker:1", "w", &[5; 20_000]);
    net.nodes[0].turn(net.now);
    net.nodes.pop();
    net.rest();
    net.pass(SOON);
    assert!(matches!(sent.error(), Error::DeadlineExceeded(late) if late.delivery_unknown));
    assert_eq!(net.nodes[0].counters().pending_sends, 1);
    net.pass(net.nodes[0].settings().lease);
    assert_eq!(net.nodes[0].counters().sessions_reset, 1);
    net.nothing_is_left();
}

#[test]
fn a_consumer_stops_calling_a_peer_that_it_owes_releases_alone() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.send(PS, "worker:1", "w", &[5]);
    net.rest();
    assert_eq!(asked.bytes(), [5]);
    net.nodes.remove(0);
    net.rest();
    let lease = net.nodes[0].settings().lease;
    net.pass(lease);
    net.pass(lease);
    assert_eq!(net.nodes[0].next_timeout(), None);
}

#[test]
fn a_call_that_greets_with_the_former_incarnation_is_dropped_when_the_session_is_given_up() {
    let mut net = Net::pair();
    let _asked = net.recv(WORKER, "ps:1", "w");
    net.send(PS, "worker:1", "w", &[5]);
    net.rest();
    let before = net.nodes[1].settings().incarnation;
    let ps = net.nodes.remove(0);
    drop(ps);
    net.mute = true;
    net.nodes[0].turn(net.now);
    let (peer, hello) = net.dialing(0);
    assert_eq!(hello.incarnation, before);
    let lease = net.nodes[0].settings().lease;
    net.now += lease;
    net.nodes[0].turn(net.now);
    assert!(matches!(net.nodes[0].poll_order(), Some(ConnectOrder::HangUp(dropped)) if dropped == peer));
    let _again = net.recv((0, "worker:1"), "ps:1", "v");
    assert_ne!(net.dialing(0).1.incarnation, before);
}

#[test]
fn a_greeting_that_was_overtaken_is_rejected() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    let (peer, former) = net.dialing(1);
    let (link, welcome) = net.call(0, &former).unwrap();
    net.nodes[1].dialed(net.now, peer, Box::new(link), &welcome);
    net.rest();
    assert!(asked.waits());
    // The ps goes away and comes back: the worker gives up the session and begins another.
    net.nodes[0] = node(NodeSettings { incarnation: 2000, ..ps() });
    net.failure = DialFailureKind::Refused;
    let away = net.nodes.remove(0);
    net.rest();
    assert_eq!(asked.error().code(), Code::Unavailable);
    net.nodes.insert(0, away);
    let again = net.recv(WORKER, "ps:1", "w");
    net.pass(Duration::from_secs(2));
    assert!(again.waits());
    let Err((code, reason)) = net.call(0, &former) else { panic!("a greeting of a former life") };
    assert_eq!((code, &*reason), (RejectCode::Crossed, "a later handshake overtook this one"));
    net.send(PS, "worker:1", "w", &[1]);
    net.rest();
    assert_eq!(again.bytes(), [1]);
}

#[test]
fn a_first_welcome_that_is_lost_costs_nothing() {
    let mut net = Net::pair();
    let at_worker = net.recv(WORKER, "ps:1", "w");
    let (peer, hello) = net.dialing(1);
    let (link, _) = net.call(0, &hello).unwrap();
    // The ps takes the link as established, and asks on it.
    let at_ps = net.recv(PS, "worker:1", "g");
    net.nodes[0].turn(net.now);
    drop(link);
    net.fail(1, peer, DialFailureKind::Transient, "the welcome was lost");
    net.rest();
    net.pass(Duration::from_secs(1));
    net.send(PS, "worker:1", "w", &[1]);
    net.send(WORKER, "ps:1", "g", &[2]);
    net.rest();
    assert_eq!((at_worker.bytes(), at_ps.bytes()), (vec![1], vec![2]));
}

#[test]
fn a_welcome_that_answers_a_former_greeting_is_not_taken() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    let (peer, hello) = net.dialing(1);
    let (link, welcome) = net.call(0, &hello).unwrap();
    let former = Hello { remembers: hello.incarnation + 5, ..welcome };
    net.nodes[1].dialed(net.now, peer, Box::new(link), &former);
    assert_eq!(net.nodes[1].counters().links, 0);
    net.pass(Duration::from_secs(1));
    net.send(PS, "worker:1", "w", &[1]);
    net.rest();
    assert_eq!(asked.bytes(), [1]);
}

#[test]
fn a_farewell_ends_what_was_asked_and_the_next_process_is_asked_anew() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let (own, sent) = (net.recv(PS, "worker:1", "g"), net.send(PS, "worker:1", "v", &[1]));
    net.nodes[0].shut_down(net.now, "the job is over");
    assert_eq!(own.error().to_string(), "10.0.0.2:7000 is unavailable: this engine stops: the job is over");
    assert_eq!(sent.error(), Error::Aborted { step: 1, reason: "the job is over".into() });
    net.nodes[1].turn(net.now);
    assert_eq!(asked.error().to_string(), "10.0.0.1:7000 is unavailable: it went away: the job is over");
    net.nodes[0] = node(NodeSettings { incarnation: 2000, ..ps() });
    let again = net.recv(WORKER, "ps:1", "w");
    net.send(PS, "worker:1", "w", &[2]);
    net.rest();
    assert_eq!(again.bytes(), [2]);
}

#[test]
fn a_farewell_counts_where_a_write_finds_the_link_broken_first() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    net.nodes[0].shut_down(net.now, "the job is over");
    net.nodes[0] = node(NodeSettings { incarnation: 2000, ..ps() });
    // A large recv, which asks at once.
    let _late = net.recv_into(WORKER, "ps:1", "v", Some(Buffer::from_vec(vec![0; 9000])));
    net.nodes[1].turn(net.now);
    assert_eq!(asked.error().to_string(), "10.0.0.1:7000 is unavailable: it went away: the job is over");
}

#[test]
fn an_engine_that_talks_to_itself_stops_without_a_word() {
    let mut net = Net::new([ps()]);
    let asked = net.recv((0, "ps:1"), "ps:2", "w");
    net.rest();
    net.nodes[0].shut_down(net.now, "the job is over");
    net.rest();
    assert_eq!(asked.error().code(), Code::Unavailable);
    assert_eq!(net.nodes[0].counters().links, 0);
}

#[test]
fn callers_over_the_limit_are_told_to_come_back() {
    let mut net = Net::new([NodeSettings { links_max: 0, ..ps() }, worker()]);
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let [(RejectCode::Full, reason)] = &net.rejections[..] else { panic!("{:?}", net.rejections) };
    assert!(reason.contains("transport.links_max"), "{reason}");
    assert!(asked.waits());
    let mut narrow = Net::new([NodeSettings { links_max: 0, ..ps() }]);
    let asked = narrow.recv((0, "ps:1"), "worker:1", "w");
    assert_eq!(limit(&asked.error()), "transport.links_max");
}

#[test]
fn what_was_asked_of_a_host_that_is_gone_from_the_map_ends_with_its_link() {
    let mut net = Net::pair();
    let pushed = |net: &mut Net| push_to(net, WORKER, "q", [1], 100);
    let (asked, followed) = (net.recv(WORKER, "ps:1", "w"), pushed(&mut net));
    net.rest();
    // The tasks move, and move again before any host is reached.
    for to in ["=10.0.0.7:7000", "=10.0.0.8:7000"] {
        let moved = MAP.replace("=10.0.0.1:7000", to);
        net.nodes[1].set_map(Arc::new(EndpointMap::parse(&moved, "moved").unwrap()), Vec::new()).unwrap();
        net.rest();
        net.failure = DialFailureKind::Transient;
        net.lose(1);
        net.rest();
    }
    let error = asked.error();
    assert!(error.code() == Code::Unavailable && error.to_string().contains("no task any more"), "{error}");
    assert!(followed.waits(), "it was never sent");
    let none = EndpointMap::parse("worker:1=10.0.0.2:7000\n", "without").unwrap();
    net.nodes[1].set_map(Arc::new(none), Vec::new()).unwrap();
    net.rest();
    assert_eq!(followed.error().code(), Code::Unavailable);
}

#[test]
fn a_new_map_sends_later_requests_elsewhere() {
    let mut net = Net::pair();
    let moved = MAP.replace("nowhere:1=10.0.0.9", "nowhere:1=10.0.0.2");
    net.failure = DialFailureKind::Transient;
    let left_behind = net.recv(PS, "nowhere:1", "w");
    net.rest();
    assert!(left_behind.waits());
    net.nodes[0].set_map(Arc::new(EndpointMap::parse(&moved, "moved").unwrap()), Vec::new()).unwrap();
    let asked = net.recv(PS, "nowhere:1", "v");
    net.rest();
    assert!(asked.error().to_string().contains("10.0.0.2:7000 answers but does not serve that task"));
    // It had not reached any host, and has followed the task.
    assert!(left_behind.error().to_string().contains("10.0.0.2:7000 answers but does not serve that task"));
}

#[test]
fn a_call_that_is_on_its_way_is_made_anew_when_there_are_more_tasks_here() {
    let mut net = Net::pair();
    let at_worker = net.recv(WORKER, "ps:1", "w");
    let (peer, former) = net.dialing(1);
    let map = Arc::new(EndpointMap::parse(&format!("{MAP}worker:2=10.0.0.2:7000\n"), "grown").unwrap());
    net.nodes[0].set_map(map.clone(), Vec::new()).unwrap();
    let more = vec![("worker:2".parse().unwrap(), 0)];
    net.nodes[1].set_map(map, more).unwrap();
    // The earlier call arrives all the same.
    let (link, welcome) = net.call(0, &former).unwrap();
    match net.nodes[1].poll_order() {
        Some(ConnectOrder::HangUp(dropped)) if dropped == peer => drop(link),
        _ => net.nodes[1].dialed(net.now, peer, Box::new(link), &welcome),
    }
    net.rest();
    net.pass(Duration::from_secs(1));
    let at_ps = net.recv(PS, "worker:2", "g");
    net.send((1, "worker:2"), "ps:1", "g", &[2]);
    net.send(PS, "worker:1", "w", &[1]);
    net.rest();
    assert_eq!((at_worker.bytes(), at_ps.bytes()), (vec![1], vec![2]));
}
