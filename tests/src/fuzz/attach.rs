//! The attach conversation: a client's request and a daemon's answer, both as JSON.

use sealane_transport::shm::attach::{AttachError, fuzzing};
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
    let area_bytes = 1 << 20;
    let segment_bytes = segment_bytes(area_bytes);
    let welcome = format!(
        concat!(
            r#"{{"answer":"welcome","version":3,"shards":1,"arena_bytes":4096,"segment_bytes":{},"#,
            r#""area_bytes":{},"request_timeout_ms":1,"tensor_bytes_max":9,"daemon_pid":3}}"#
        ),
        segment_bytes, area_bytes
    );
    let texts = [
        r#"{"request":"attach","version":3,"task":"worker0:2222","arena_bytes":65536}"#,
        r#"{"request":"drain","version":3}"#,
        r#"{"request":"attach","version":3,"task":"worker0:2222"}"#,
        &welcome,
        r#"{"answer":"shard","index":0}"#,
        concat!(
            r#"{"answer":"refused","code":4,"subject":"worker0:2222","reason":"full","step":-1,"operation":1,"#,
            r#""waited_s":1,"waited_ns":5}"#
        ),
        r#"{"answer":"draining"}"#,
        r#"{"request":"take_over","version":1}"#,
        r#"{"request":"hand_over","version":2}"#,
        r#"{"answer":"listener","address":"127.0.0.1:7000"}"#,
        r#"{"answer":"cpu","cpu":3}"#,
        r#"{"answer":"client_socket"}"#,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
