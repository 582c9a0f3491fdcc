//! Fuzz targets: everything that reads bytes from outside, each as a function of one input that panics if a promise is broken.
//!
//! The same functions run in three ways: over the corpora and random inputs in the test suite (`tests/tests/fuzz.rs`), guided by coverage
//! (`cargo xtask fuzz`), and on one input to examine it (`cargo xtask fuzz TARGET --input FILE`).

mod attach;
mod channel;
mod client;
pub mod corpus;
mod door;
mod endpoint_map;
mod files;
mod forge;
mod frames;
mod greeting;
mod node;
mod records;
mod rings;
mod rows;
mod script;
mod session;
mod settings;
mod stream;
mod tensor;
mod verbs;

use std::fmt::Display;

/// The environment variable with the name of the target that a process of `tests/fuzz` runs.
pub const TARGET_VARIABLE: &str = "SEALANE_FUZZ_TARGET";

/// Something that reads bytes from outside.
pub struct Target {
    /// Its name, which is also that of its corpus.
    pub name: &'static str,
    /// What it reads, and where that comes from.
    pub reads: &'static str,
    /// Reads one input. Panics if that breaks a promise.
    pub run: fn(&[u8]),
    /// Valid or nearly valid inputs that the search starts from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Longest input worth trying, in bytes.
    pub input_bytes_max: usize,
    /// Byte strings that are unlikely to be found by chance.
    pub words: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "attach",
        reads: "messages of the attaching conversation, from clients and from the daemon",
        run: attach::run,
        seeds: attach::seeds,
        input_bytes_max: 512,
        words: &[
            b"\"request\"",
            b"\"answer\"",
            b"\"attach\"",
            b"\"welcome\"",
            b"\"refused\"",
            b"\"version\":6",
            b"\"code\":",
        ],
    },
    Target {
        name: "client",
        reads: "what a client asks of a whole shard, from clients",
        run: client::run,
        seeds: client::seeds,
        input_bytes_max: 1024,
        words: script::LIMITS,
    },
    Target {
        name: "completions",
        reads: "records of a completion ring, from the daemon",
        run: records::run_completion,
        seeds: records::completion_seeds,
        input_bytes_max: 2048,
        words: &[],
    },
    Target {
        name: "door",
        reads: "what comes before a greeting where something must be shown, from anyone",
        run: door::run,
        seeds: door::seeds,
        input_bytes_max: 1024,
        words: &[b"SEALANE\n", b"\x16\x03\x01", b"\x15\x03\x03\x00\x02", b"\x14\x03\x03\x00\x01\x01"],
    },
    Target {
        name: "endpoint_map",
        reads: "endpoint maps, from users",
        run: endpoint_map::run,
        seeds: endpoint_map::seeds,
        input_bytes_max: 512,
        words: &[b"[::1]:7", b"127.0.0.1:7000", b"\xef\xbb\xbf", b"\n", b"=", b"#"],
    },
    Target {
        name: "frames",
        reads: "frames of the wire, from peers",
        run: frames::run,
        seeds: forge::seeds,
        input_bytes_max: 2048,
        words: script::LIMITS,
    },
    Target {
        name: "greeting",
        reads: "the first words of a connection, from anyone",
        run: greeting::run,
        seeds: greeting::seeds,
        input_bytes_max: 512,
        words: &[b"SEALANE\n"],
    },
    Target {
        name: "channel",
        reads: "the rings of a channel, from another client",
        run: channel::run,
        seeds: channel::seeds,
        input_bytes_max: 1024,
        words: script::LIMITS,
    },
    Target {
        name: "node",
        reads: "greetings and conversations with a whole shard, from peers",
        run: node::run,
        seeds: node::seeds,
        input_bytes_max: 1024,
        words: script::LIMITS,
    },
    Target {
        name: "npy",
        reads: ".npy files, from users",
        run: files::run_npy,
        seeds: files::npy_seeds,
        input_bytes_max: 512,
        words: &[
            b"\x93NUMPY\x01\x00",
            b"'descr'",
            b"'fortran_order'",
            b"'shape'",
            b"True",
            b"False",
            b"'<f4'",
            b"'|b1'",
        ],
    },
    Target {
        name: "rings",
        reads: "rings in shared memory, from clients and from the daemon",
        run: rings::run,
        seeds: rings::seeds,
        input_bytes_max: 2048,
        words: script::LIMITS,
    },
    Target {
        name: "rows",
        reads: "numbers of rows and rows that were pushed, from peers and from clients",
        run: rows::run,
        seeds: rows::seeds,
        input_bytes_max: 512,
        words: &[b"SL-rows3"],
    },
    Target {
        name: "safetensors",
        reads: ".safetensors files, from users",
        run: files::run_safetensors,
        seeds: files::safetensors_seeds,
        input_bytes_max: 512,
        words: &[
            b"\"dtype\":",
            b"\"shape\":[",
            b"\"data_offsets\":[0,",
            b"\"F32\"",
            b"\"U8\"",
            b"\"F4\"",
            b"__metadata__",
        ],
    },
    Target {
        name: "session",
        reads: "a whole conversation, bent on its way, from peers",
        run: session::run,
        seeds: session::seeds,
        input_bytes_max: 1024,
        words: script::LIMITS,
    },
    Target {
        name: "settings",
        reads: "sealane.toml, from users",
        run: settings::run,
        seeds: settings::seeds,
        input_bytes_max: 512,
        words: &[
            b"[runtime]",
            b"[transport]",
            b"[transport.tcp]",
            b"[fusion]",
            b"[daemon]",
            b"[verbs]",
            b"shards",
            b"MiB",
            b"0x",
        ],
    },
    Target {
        name: "stream",
        reads: "frames of a stream, from peers",
        run: stream::run,
        seeds: stream::seeds,
        input_bytes_max: 1024,
        words: &[],
    },
    Target {
        name: "submissions",
        reads: "records of a submission ring, from clients",
        run: records::run_submission,
        seeds: records::submission_seeds,
        input_bytes_max: 2048,
        words: &[],
    },
    Target {
        name: "tensor",
        reads: "a tensor's metadata and bytes, from peers and from clients",
        run: tensor::run,
        seeds: tensor::seeds,
        input_bytes_max: 512,
        words: &[],
    },
    Target {
        name: "verbs_message",
        reads: "messages over a queue pair, from peers",
        run: verbs::run_message,
        seeds: verbs::message_seeds,
        input_bytes_max: 1024,
        words: &[],
    },
    Target {
        name: "verbs_settling",
        reads: "the words that settle upon verbs or TCP, from peers",
        run: verbs::run_settling,
        seeds: verbs::settling_seeds,
        input_bytes_max: 512,
        words: &[],
    },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Checks that an error has a text.
fn assert_says(error: &(impl Display + ?Sized)) {
    assert!(!error.to_string().is_empty());
}
