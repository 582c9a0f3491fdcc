//! The data path in one thread, in identical steps, for `cargo xtask instructions` to count instructions of. No shard, no clock and no
//! polling, so that a count depends on the code and the compiler alone.
//!
//! Tensors are 64 B. What a drive does itself (a buffer to receive into, a shared reference to what is sent) is counted, too.

mod client;
mod node;
mod wires;

use wires::{Loop, Rdma, Tcp};

use crate::client_simulation::LaneKind;

/// One path through the code.
pub struct Drive {
    /// Its name in the table of counts.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Tensors of each step.
    pub tensors: usize,
    /// Takes `steps` steps.
    steps: fn(tensors: usize, steps: i64) -> Result<(), String>,
}

/// All drives.
pub const DRIVES: &[Drive] = &[
    Drive {
        name: "recv",
        about: "a send and its recv between two nodes over memory, one at a time",
        tensors: 1,
        steps: |tensors, steps| node::recvs(Loop, tensors, steps),
    },
    Drive {
        name: "recv-window",
        about: "the same, 256 at a time",
        tensors: 256,
        steps: |tensors, steps| node::recvs(Loop, tensors, steps),
    },
    Drive {
        name: "recv-tcp",
        about: "a send and its recv between two nodes over a TCP connection, one at a time",
        tensors: 1,
        steps: |tensors, steps| node::recvs(Tcp, tensors, steps),
    },
    Drive {
        name: "recv-tcp-window",
        about: "the same, 256 at a time",
        tensors: 256,
        steps: |tensors, steps| node::recvs(Tcp, tensors, steps),
    },
    Drive {
        name: "recv-batch",
        about: "a send and its recv between two nodes over memory, by one call for 256 sends and one for 256 recvs",
        tensors: 256,
        steps: |tensors, steps| node::batches(Loop, tensors, steps),
    },
    Drive {
        name: "recv-tcp-batch",
        about: "the same over a TCP connection",
        tensors: 256,
        steps: |tensors, steps| node::batches(Tcp, tensors, steps),
    },
    Drive {
        name: "recv-views",
        about: "the same over memory, read where they lie",
        tensors: 256,
        steps: |tensors, steps| node::views(Loop, tensors, steps),
    },
    Drive {
        name: "recv-tcp-views",
        about: "the same over a TCP connection",
        tensors: 256,
        steps: |tensors, steps| node::views(Tcp, tensors, steps),
    },
    Drive {
        name: "recv-verbs",
        about: "a send and its recv between two nodes over RDMA devices in memory, theirs included, one at a time",
        tensors: 1,
        steps: |tensors, steps| node::recvs(Rdma::new(), tensors, steps),
    },
    Drive {
        name: "recv-verbs-window",
        about: "the same, 256 at a time",
        tensors: 256,
        steps: |tensors, steps| node::recvs(Rdma::new(), tensors, steps),
    },
    Drive {
        name: "plan",
        about: "a published tensor, pulled by a plan of 1,000 between two nodes over memory",
        tensors: 1000,
        steps: |tensors, steps| node::pulls(Loop, tensors, steps),
    },
    Drive {
        name: "plan-tcp",
        about: "the same over a TCP connection",
        tensors: 1000,
        steps: |tensors, steps| node::pulls(Tcp, tensors, steps),
    },
    Drive {
        name: "push",
        about: "a tensor pushed and accepted between two nodes over memory, 256 a push, by reference and as they came together",
        tensors: 256,
        steps: |tensors, steps| node::pushes(Loop, tensors, steps),
    },
    Drive {
        name: "push-single",
        about: "the same, given away and accepted one by one",
        tensors: 256,
        steps: |tensors, steps| node::single_pushes(Loop, tensors, steps),
    },
    Drive {
        name: "client",
        about: "a send and its recv of a client's through its rings and a shard, one at a time",
        tensors: 1,
        steps: |tensors, steps| client::exchanges(tensors, steps, false),
    },
    Drive {
        name: "client-window",
        about: "a send and its recv of a client's through its rings and a shard, 64 at a time",
        tensors: 64,
        steps: |tensors, steps| client::exchanges(tensors, steps, false),
    },
    Drive {
        name: "client-batch",
        about: "the same, 64 in one record each way",
        tensors: 64,
        steps: |tensors, steps| client::exchanges(tensors, steps, true),
    },
    Drive {
        name: "client-library",
        about: "a send and its recv between two clients by the switch of their shard, by the calls of their libraries, one at a time",
        tensors: 1,
        steps: |tensors, steps| client::calls(LaneKind::Switched, tensors, steps),
    },
    Drive {
        name: "client-library-window",
        about: "the same, 64 at a time",
        tensors: 64,
        steps: |tensors, steps| client::calls(LaneKind::Switched, tensors, steps),
    },
    Drive {
        name: "client-library-batch",
        about: "the same by their calls for many tensors, 64 at a time",
        tensors: 64,
        steps: |tensors, steps| client::batches(LaneKind::Switched, tensors, steps),
    },
    Drive {
        name: "direct",
        about: "a send and its recv between two clients by a direct lane, by the calls of their libraries, one at a time",
        tensors: 1,
        steps: |tensors, steps| client::calls(LaneKind::Direct, tensors, steps),
    },
    Drive {
        name: "direct-window",
        about: "the same, 64 at a time",
        tensors: 64,
        steps: |tensors, steps| client::calls(LaneKind::Direct, tensors, steps),
    },
    Drive {
        name: "direct-batch",
        about: "the same by their calls for many tensors, 64 at a time",
        tensors: 64,
        steps: |tensors, steps| client::batches(LaneKind::Direct, tensors, steps),
    },
];

impl Drive {
    /// The drive of that name.
    pub fn named(name: &str) -> Option<&'static Drive> {
        DRIVES.iter().find(|drive| drive.name == name)
    }

    /// Takes `steps` steps.
    ///
    /// # Errors
    /// A tensor did not come, which should not happen.
    pub fn run(&self, steps: i64) -> Result<(), String> {
        (self.steps)(self.tensors, steps)
    }
}

fn keys(tensors: usize) -> Vec<String> {
    (0..tensors).map(|number| format!("layer_{number}/kernel")).collect()
}
