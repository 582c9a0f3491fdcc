//! Clients that view what others have published, and clients that break the rules for views.

use sealane_transport::Code;
use sealane_transport::shm::Span;

use super::*;

/// The whole arena of a process, which is as large as the smallest tensor that is viewed.
const WHOLE: Span = Span { offset: 0, len: 1 << 16 };

/// Attaches a client that runs as this user.
fn attach(engine: &Engine, task: &str, uid: Option<u32>) -> (ClientId, Process) {
    let (mut ends, process) = Process::ends(task, 7);
    let descriptor = || UnixStream::pair().unwrap().0.into();
    ends.shared = uid.map(|uid| SharedArena { uid, descriptor: descriptor() });
    (engine.admit(ends).unwrap(), process)
}

/// A publisher of user 1 whose whole arena is published, and a consumer.
fn two(consumer: Option<u32>) -> (Engine, [ClientId; 2], Process, Process) {
    let engine = engine();
    let (publishing, mut publisher) = attach(&engine, "ps:1", Some(1));
    let (consuming, consumer) = attach(&engine, "worker:1", consumer);
    let meta = TensorMeta::new(DType::U8, &[WHOLE.len]).unwrap();
    let (key, payload) = ("w", PayloadAt::Arena(WHOLE));
    publisher.submit(&[Submission::Publish { call: 1, version: 1, key, meta: meta.as_wire(), payload, more: false }]);
    assert_eq!(publisher.next().unwrap(), "Published { calls: [1] }");
    (engine, [publishing, consuming], publisher, consumer)
}

/// Pulls the tensor by a new plan; what the completion says about it.
fn pull(consumer: &mut Process, plan: u32) -> String {
    let mut packed = Vec::new();
    let keys = KeyList::pack(["w"].into_iter(), &mut packed).unwrap();
    consumer.submit(&[
        Submission::OpenPlan { plan, peer: 0, keys: 1 },
        Submission::PlanKeys { plan, keys },
        Submission::Pull { call: plan, plan, min_version: 1, timeout_ms: NO_TIMEOUT, views: true, fail_if_gone: false },
    ]);
    let [board, tensor, pulled] = [(); 3].map(|()| consumer.next().unwrap());
    assert!(board.starts_with("Board "), "{board}");
    assert_eq!(pulled, format!("Pulled {{ call: {plan} }}"));
    tensor
}

fn number(text: &str, field: &str) -> u64 {
    let (_, after) = text.split_once(field).unwrap();
    after[..after.find(|digit: char| !digit.is_ascii_digit()).unwrap()].parse().unwrap()
}

#[test]
fn a_view_is_given_back_once_and_by_nobody_else() {
    let (engine, _, mut publisher, mut consumer) = two(Some(1));
    let meta = &TensorMeta::new(DType::U8, &[8]).unwrap();
    let [first, second] = [1, 2].map(|plan| pull(&mut consumer, plan));
    assert!(first.starts_with("Viewed { plan: 1, index: 0, "), "{first}");
    assert!(first.contains("span: Span { offset: 0, len: 65536 }"), "{first}");
    let [first, second] = [first, second].map(|viewed| number(&viewed, "token: "));
    assert_ne!(first, second);
    publisher.submit(&[Submission::Withdraw { key: "w" }]);
    let mut free = |tokens: &[u64]| {
        consumer.submit(&[Submission::Free { tokens }]);
        assert!(is_served(&mut consumer, 1, meta));
    };
    // The same token twice, and tokens that were never given out.
    free(&[first, first, 0, u64::MAX, second ^ 1 << 32, second ^ 1 << 20]);
    assert!(is_served(&mut publisher, 0, meta), "it does not have its memory back");
    publisher.submit(&[Submission::Free { tokens: &[second] }]);
    assert!(is_served(&mut publisher, 0, meta), "the view is not its own");
    free(&[second]);
    assert_eq!(publisher.next().unwrap(), "Returned { calls: [1] }");
    free(&[first, second]);
    engine.stop().unwrap();
}

#[test]
fn views_end_with_the_client_that_has_them() {
    let (engine, [_, consuming], mut publisher, mut consumer) = two(Some(1));
    assert!(pull(&mut consumer, 1).starts_with("Viewed "));
    publisher.submit(&[Submission::Withdraw { key: "w" }]);
    engine.dismiss(consuming, "it was killed");
    assert_eq!(publisher.next().unwrap(), "Returned { calls: [1] }");
    engine.stop().unwrap();
}

#[test]
fn who_views_hears_that_the_publisher_has_gone() {
    let (engine, [publishing, _], publisher, mut consumer) = two(Some(1));
    let viewed = pull(&mut consumer, 1);
    let arena = number(&viewed, "arena: ");
    assert_eq!(engine.shared_arena(arena, 1).unwrap().1, WHOLE.len);
    assert_eq!(engine.shared_arena(arena, 2).unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(engine.shared_arena(arena ^ 1, 1).unwrap_err().code(), Code::NotFound);
    engine.dismiss(publishing, "it was killed");
    assert_eq!(consumer.next().unwrap(), format!("ArenaGone {{ arena: {arena} }}"));
    assert_eq!(engine.shared_arena(arena, 1).unwrap_err().code(), Code::NotFound);
    // Nothing waits for the view: the dead client's socket is closed, and the next client may attach.
    let mut publisher = publisher;
    assert_eq!(publisher.next(), None);
    let (_, _next) = attach(&engine, "ps:1", Some(1));
    consumer.submit(&[Submission::Free { tokens: &[number(&viewed, "token: ")] }]);
    assert!(is_served(&mut consumer, 1, &TensorMeta::new(DType::U8, &[8]).unwrap()));
    engine.stop().unwrap();
}

#[test]
fn another_users_client_is_given_a_copy() {
    for consumer in [Some(2), None] {
        let (engine, _, mut publisher, mut consumer) = two(consumer);
        let copied = pull(&mut consumer, 1);
        assert!(copied.starts_with("Placed "), "{copied}");
        publisher.submit(&[Submission::Withdraw { key: "w" }]);
        assert_eq!(publisher.next().unwrap(), "Returned { calls: [1] }");
        engine.stop().unwrap();
    }
}
