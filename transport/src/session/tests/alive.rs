//! Pings, and what silence means.

use std::time::Duration;

use super::*;
use crate::error::LinkError;

#[test]
fn an_idle_peer_is_pinged_and_its_pong_is_enough() {
    let mut pair = Pair::new();
    pair.talk();
    let heartbeat = pair.asking.limits.heartbeat;
    for _ in 0..5 {
        let due = pair.asking.session.next_timeout().unwrap();
        assert_eq!(due, pair.asking.now + heartbeat);
        pair.asking.now = due;
        pair.asking.session.handle_timeout(due).unwrap();
        let ping = pair.asking.speak();
        assert_eq!(words(&ping), ["ping"]);
        pair.asking.session.handle_timeout(due).unwrap();
        assert!(!pair.asking.session.has_output(), "one ping is enough");
        pair.answering.hear(&ping).unwrap();
        let pong = pair.answering.speak();
        assert_eq!(words(&pong), ["pong"]);
        pair.asking.hear(&pong).unwrap();
    }
}

#[test]
fn a_silent_peer_has_lost_the_link() {
    let mut asking = End::new();
    let begun = asking.now;
    let (heartbeat, peer_timeout) = (asking.limits.heartbeat, asking.limits.peer_timeout);
    asking.session.handle_timeout(begun + heartbeat).unwrap();
    assert_eq!(asking.session.next_timeout(), Some(begun + peer_timeout));
    asking.session.handle_timeout(begun + peer_timeout - Duration::from_millis(1)).unwrap();
    let lost = asking.session.handle_timeout(begun + peer_timeout);
    assert_eq!(lost, Err(LinkError::Silent(peer_timeout)));
    asking.lose_link();
    assert_eq!(asking.session.next_timeout(), None, "without link or request nothing is due");
    assert_eq!(asking.session.handle_timeout(begun + 2 * peer_timeout), Ok(()));
}

#[test]
fn a_peer_timeout_shorter_than_the_heartbeat_still_pings_first() {
    let heartbeat = Duration::from_secs(10);
    let peer_timeout = Duration::from_secs(1);
    let mut asking = End::with(SessionLimits { heartbeat, peer_timeout, ..SessionLimits::default() });
    let begun = asking.now;
    assert_eq!(asking.session.handle_timeout(begun + peer_timeout), Ok(()));
    assert_eq!(asking.session.handle_timeout(begun + heartbeat), Ok(()));
    assert_eq!(words(&asking.speak()), ["ping", "resumed"]);
    let due = asking.session.next_timeout().unwrap();
    assert!(due > begun + heartbeat);
    assert!(matches!(asking.session.handle_timeout(due), Err(LinkError::Silent(_))));
}

#[test]
fn any_byte_from_the_peer_puts_the_ping_off() {
    let mut asking = End::new();
    let heartbeat = asking.limits.heartbeat;
    asking.now += heartbeat - Duration::from_millis(1);
    asking.hear(&frames(|w| w.parked(Handle::from_bits(5), 0))).unwrap();
    asking.session.handle_timeout(asking.now + Duration::from_millis(1)).unwrap();
    assert_eq!(words(&asking.speak()), ["resumed"]);
    assert_eq!(asking.session.next_timeout(), Some(asking.now + heartbeat));
}

#[test]
fn the_next_timeout_is_the_earliest_deadline() {
    let mut asking = End::new();
    for (key, seconds) in [("late", 30), ("soon", 2), ("later", 40)] {
        let params = RequestParams { deadline: asking.now + Duration::from_secs(seconds), ..asking.wanting(key, 1) };
        asking.session.request(asking.now, params).unwrap();
    }
    let begun = asking.now;
    assert_eq!(asking.session.next_timeout(), Some(begun + Duration::from_secs(2)));
    asking.lose_link();
    assert_eq!(asking.session.handle_timeout(begun + Duration::from_secs(2)), Ok(()));
    assert_eq!((asking.answers().len(), asking.session.requests()), (1, 2), "deadlines run without a link too");
    assert_eq!(asking.session.next_timeout(), Some(begun + Duration::from_secs(30)));
}
