//! The attach conversation: a client's request and a daemon's answer, both as JSON.

use sealane_transport::shm::attach::{AttachError, HAND_OVER_VERSION, VERSION, fuzzing};
use sealane_transport::shm::segment_bytes;

use super::assert_says;

/// Reads the message as a request and as an answer; each is written again and must read the same.
pub(super) fn run(input: &[u8]) {
    match fuzzing::request(input) {
        Err(error) => assert_says(&error),
        Ok(written) => assert_eq!(fuzzing::request(&written).expect("its own request"), written),
    }
    match fuzzing::answer(input) {
        Err(error) => {
            assert_says(&error);
            if let AttachError::Refused(error) = error {
                assert!(!format!("{error:?} {:?}", error.code()).is_empty());
            }
        }
        Ok(written) => assert_eq!(fuzzing::answer(&written).expect("its own answer"), written),
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let (version, hand_over) = (VERSION, HAND_OVER_VERSION);
    let area_bytes = 1 << 20;
    let segment_bytes = segment_bytes(area_bytes);
    let texts = [
        format!(
            r#"{{"request":"attach","version":{version},"task":"worker0:2222","arena_bytes":65536,"or_less":true,"job":"any","replace":false}}"#
        ),
        format!(
            r#"{{"request":"attach","version":{version},"task":"w:1","arena_bytes":0,"or_less":false,"job":{{"named":"train-7"}},"replace":true}}"#
        ),
        format!(r#"{{"request":"drain","version":{version}}}"#),
        format!(r#"{{"request":"take_over","version":{hand_over},"job":"train-7"}}"#),
        format!(r#"{{"request":"hand_over","version":{hand_over}}}"#),
        format!(
            concat!(
                r#"{{"answer":"welcome","version":{},"shards":1,"arena_bytes":4096,"segment_bytes":{},"area_bytes":{},"#,
                r#""request_timeout_ms":1,"tensor_bytes_max":9,"daemon_pid":3,"job":"train-7","neighbours":["ps0:2222"]}}"#
            ),
            version, segment_bytes, area_bytes
        ),
        r#"{"answer":"shard","index":0}"#.to_owned(),
        concat!(
            r#"{"answer":"refused","code":5,"subject":"worker0:2222","reason":"full","step":-1,"operation":1,"#,
            r#""waited_s":1,"waited_ns":5}"#
        )
        .to_owned(),
        r#"{"answer":"other_job","job":"train-7"}"#.to_owned(),
        r#"{"answer":"draining"}"#.to_owned(),
        r#"{"answer":"listener","address":"127.0.0.1:7000"}"#.to_owned(),
        r#"{"answer":"cpu","cpu":3}"#.to_owned(),
        r#"{"answer":"client_socket"}"#.to_owned(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_messages_of_this_version() {
        for seed in seeds() {
            let is_answer = matches!(fuzzing::answer(&seed), Ok(_) | Err(AttachError::Refused(_)));
            assert!(is_answer || fuzzing::request(&seed).is_ok(), "{}", String::from_utf8_lossy(&seed));
        }
    }
}
