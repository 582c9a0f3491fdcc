//! The library for training processes: attach to the host's daemon, send and receive tensors.
//!
//! # Quick start
//! Start `sealane daemon` on every host (see the project's README), then:
//!
//! ```no_run
//! use sealane::{Task, Tensor};
//!
//! // This process is the task worker0.train:2222 of the endpoint map.
//! let task = Task::attach("worker0.train:2222")?;
//! // Request a tensor of step 7 from the parameter server, and send one back.
//! let weights = task.recv("ps0.train:2222", 7, "dense/kernel").wait()?;
//! println!("{} of shape {:?}", weights.dtype(), weights.shape());
//! let gradient = Tensor::from_elements(&[2, 2], &[0.1_f32, 0.2, 0.3, 0.4])?;
//! task.send("ps0.train:2222", 7, "dense/kernel:gradient", gradient).wait()?;
//! # Ok::<(), sealane::Error>(())
//! ```
//!
//! [`Sending`] and [`Receiving`] can be waited for, awaited in any executor, or polled. [`Task::alloc`] returns memory
//! that tensors are sent from and received into without a copy. [`Task::send_all`] and [`Task::recv_all`] move many small tensors
//! at a fraction of the cost each.
//!
//! A tensor that every worker reads is [published](Task::publish) once and [pulled](Task::pull) as often as they like, from
//! the daemon, without waking its producer; a [`Plan`] pulls many tensors with two records, into the same memory each time.
//!
//! A tensor that is too large for one parameter server is published in [slices](Task::publish_slices) by several, and a plan
//! [gathers](Task::sliced_plan) them into one array.
//!
//! Rows of a [published table](Task::publish_table) are [pulled by their numbers](Task::pull_rows), from one task or from all that have a
//! [part](ShardedTable) of it; the engine that serves the table's owner gathers them.
//!
//! Tensors from many producers for one consumer are [pushed](Task::push) into a queue, from which an [`Acceptor`] takes them in
//! order of arrival; a full queue applies back-pressure to its pushers.
//!
//! Other bytes, such as those of a protocol that a program already speaks, pass through [`Streams`] between two tasks.
//!
//! # How it works
//! Attaching maps memory shared with the daemon: an arena, and rings to each of the daemon's shards. A call is a record in a
//! ring; while both sides are awake, it needs no system call. This crate has no executor and at most one thread, which runs
//! only for calls that are awaited as futures.
//!
//! With the feature `embedded`, a [`Task`] can also use an engine in this process; with `tokio`, a [`Stream`] has tokio's traits; with
//! `cuda`, tensors can be in the memory of GPUs. With `group`, processes compute with each other's tensors in a `Group`, without a daemon.
//!
//! # Failure behavior
//! No call waits forever: each has a deadline, and ends at most a second after it even if the daemon hangs. When the daemon
//! disappears, calls in progress end with [`Error::Unavailable`], and the next call attaches again. Received tensors stay
//! readable; a thread publishes again what the task has published. A forked child cannot use its parent's task
//! and gets an error; it may drop the task.

#![deny(missing_docs, unsafe_code)]

mod acceptor;
mod attach;
mod attached_acceptor;
mod attached_plan;
mod attachment;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod by_hand;
mod clock;
#[cfg(feature = "cuda")]
pub mod cuda;
mod default_socket;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "group")]
mod group;
mod in_process;
mod limits;
mod lives;
mod memory;
mod patience;
mod plan;
mod publishing;
mod pushing;
mod sliced_plan;
mod stream;
mod table;
mod task;
mod together;
mod under_way;
mod waiter;

#[cfg(feature = "group")]
pub use self::group::{CallFigures, Group, GroupOptions, Message, RankFigures, ReduceOp, Store};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use self::stream::far_end;
#[cfg(feature = "tonic")]
pub use self::stream::{Connector, Incoming, StreamPeer};
pub use self::{
    acceptor::{AcceptOptions, Accepted, Accepting, AcceptingMany, Acceptor},
    attach::{Attach, Backlog, environment_job},
    default_socket::{
        USER_DIRECTORY_MODE, check_directory, daemon_socket, default_socket, foreign_socket, is_in_user_directory,
    },
    limits::ARENA_BYTES,
    plan::{Plan, PlanPulling, Pulling, PullingMany},
    publishing::Publishing,
    pushing::Pushing,
    sliced_plan::SliceVersions,
    stream::{AcceptingStream, Connecting, Finishing, Stream, StreamFigures, StreamListener, StreamOptions, Streams},
    table::{
        MissingRows, PulledRows, PullingAllRows, PullingRows, RowUpdate, RowsOptions, RowsWanted, ShardedTable,
        Sharding, SumRows, Table, TableOptions, TableRows, UnpulledRows,
    },
    task::{Direction, Task},
    under_way::{Receiving, Sending},
    waiter::Waiter,
};
#[cfg(feature = "embedded")]
pub use sealane_fusion::{EndpointMap, Engine, EngineSettings, StartError};
pub use sealane_runtime::{Buffer, Polling};
#[cfg(any(feature = "embedded", feature = "group"))]
pub use sealane_transport::authentication::{Authentication, TlsFiles};
pub use sealane_transport::interrupt::{interruptible, is_interrupted};
pub use sealane_transport::tensor::{DType, Element, Shape, Tensor, TensorMeta, TypeCode};
pub use sealane_transport::{
    BadJobName, Code, Destination, Error, JobName, Keys, Late, Operation, Payload, PullOptions, Pulled, RecvOptions,
    RecvOutcome, SendOptions, SendOutcome, Slicing, Unreceived,
};
