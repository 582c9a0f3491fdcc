//! What `sealane send` and `sealane recv` share: the two tasks, the step, the time, and what carries the tensors.

mod carrier;

use std::path::PathBuf;
use std::time::Duration;

use sealane::{Attach, Error, Task};
use sealane_fusion::{EndpointMap, Engine, EngineSettings};
use sealane_runtime::Pin;

pub(super) use self::carrier::{Carrier, Wanted};

use self::carrier::{Daemon, NoDaemon, Through};
use super::daemon::socket_override;
use crate::commands::map::unknown_task;
use crate::engine_settings::short_lived_engine_settings;
use crate::flags::{SettingsFlags, TIMEOUT_S_MAX};
use crate::progress::write_line;
use crate::settings::{Settings, Source};
use crate::{Context, Failure, locked_memory};

/// The part of the time-out within which the peer must have answered a call; the rest tells an absent peer from a peer without the
/// tensor.
const CONNECT_PART: f64 = 0.9;

/// Size of a slab that is not used: the smallest that the settings accept.
const UNUSED_SLAB_BYTES: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Ends {
    #[command(flatten)]
    settings: SettingsFlags,

    /// The task that sends, as the endpoint map names it
    #[arg(long, value_name = "TASK")]
    pub(super) from: String,

    /// The task that receives, as the endpoint map names it
    #[arg(long, value_name = "TASK")]
    pub(super) to: String,

    /// The step, which must be the same on both sides
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) step: i64,

    /// Seconds to wait for the other side
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_S_MAX))]
    timeout_s: u64,

    /// The socket of the daemon to go through [default: this host's daemon, if it serves the task]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Run an engine in this process, even if there is a daemon
    #[arg(long, conflicts_with = "socket")]
    embedded: bool,
}

/// Which of the two tasks this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

impl Ends {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    /// What carries the tensors of one of the two tasks: this host's daemon if it serves the task, else an engine in this process.
    /// A line on standard error says which and why. `arena_bytes` is memory to share with the daemon.
    pub(super) fn start(&self, side: Side, arena_bytes: u64, context: &Context) -> Result<Carrier, Failure> {
        let settings = context.settings(&self.settings, socket_override(self.socket.as_ref())?)?;
        let task = match side {
            Side::Sender => &self.from,
            Side::Receiver => &self.to,
        };
        let (task, through) = match self.attach(task, arena_bytes, &settings)? {
            Ok((attached, daemon)) => {
                write_line(&format!("through {daemon}"));
                (attached, Through::Daemon(daemon))
            }
            Err(reason) => {
                let engine = self.start_engine(task, side, &settings)?;
                write_line(&format!("{reason}: engine in this process"));
                (engine.task(task).map_err(Failure::work)?.into(), Through::Engine(engine))
            }
        };
        Ok(Carrier::new(task, through, settings.transport.tensor_bytes_max.value))
    }

    /// Attaches to the daemon if one serves the task, or says why not. It is an error if a daemon named by a flag is missing.
    fn attach(
        &self,
        task: &str,
        arena_bytes: u64,
        settings: &Settings,
    ) -> Result<Result<(Task, Daemon), String>, Failure> {
        if self.embedded {
            return Ok(Err("--embedded".to_owned()));
        }
        let (socket, source) = (settings.daemon.clients_socket(), &settings.daemon.socket.source);
        let named = matches!(source, Source::Flag(_));
        let daemon = match carrier::find(&socket) {
            Ok(daemon) => daemon,
            Err(NoDaemon { reason, remedy }) if named => {
                return Err(Failure::work(format!("{reason}; {remedy}, or omit {source} to run without it")));
            }
            Err(NoDaemon { reason, .. }) => return Ok(Err(reason)),
        };
        let wish = Attach::new(task).socket(&socket.path).arena_bytes(arena_bytes).timeout(self.timeout());
        let wish = settings.daemon.for_client(wish);
        match wish.attach() {
            Ok(attached) => Ok(Ok((attached, daemon))),
            Err(Error::NotFound { .. }) if !named => Ok(Err(format!("{daemon} does not serve {task}"))),
            Err(error) => Err(Failure::work(error)),
        }
    }

    fn start_engine(&self, task: &str, side: Side, settings: &Settings) -> Result<Engine, Failure> {
        let engine = short_lived_engine_settings(settings, self.map(settings)?, &[task], Pin::Off)?;
        let engine = EngineSettings {
            // Tensors are sent from the memory that the file was read into.
            slab_send_bytes: UNUSED_SLAB_BYTES,
            slab_receive_bytes: match side {
                Side::Sender => UNUSED_SLAB_BYTES,
                Side::Receiver => engine.slab_receive_bytes,
            },
            connect_timeout: engine.connect_timeout.min(self.timeout().mul_f64(CONNECT_PART)),
            ..engine
        };
        locked_memory::check(&engine)?;
        Engine::start(engine).map_err(Failure::work)
    }

    fn map(&self, settings: &Settings) -> Result<EndpointMap, Failure> {
        let file = &settings.transport.endpoint_map.value;
        let map = EndpointMap::load(file)?;
        let address = |task: &str| map.resolve(task).ok_or_else(|| Failure::input(unknown_task(&map, file, task)));
        let (from, to) = (address(&self.from)?, address(&self.to)?);
        if from == to {
            return Err(Failure::input(format!(
                "{} and {} have the same transport address {from}, which one process serves; \
                 start `sealane daemon` for both, or name tasks of two processes",
                self.from, self.to
            )));
        }
        Ok(map)
    }
}
