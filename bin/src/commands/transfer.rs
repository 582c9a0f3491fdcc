//! What `sealane send` and `sealane recv` share: the two tasks, the step, the time, and the engine for one of them.

use std::time::Duration;

use sealane_fusion::{EndpointMap, Engine, EngineSettings};
use sealane_runtime::Pin;

use crate::cli::SettingsFlags;
use crate::commands::map::unknown_task;
use crate::engine_settings::short_lived_engine_settings;
use crate::settings::Settings;
use crate::{Context, Failure};

/// Longest `--timeout-s`: a day.
const TIMEOUT_S_MAX: u64 = 86_400;

/// The part of the time-out within which the peer must have answered a call; what is left tells a caller that finds
/// nobody from one that finds a peer without the tensor.
const CONNECT_PART: f64 = 0.9;

/// Size of a slab that nothing takes memory from: the least that the settings accept.
const UNUSED_SLAB_BYTES: usize = 1 << 20;

/// The flags that both commands take.
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

    /// The step; both sides name the same
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) step: i64,

    /// Seconds to wait for the other side
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_S_MAX))]
    timeout_s: u64,
}

/// Which of the two tasks this process is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

impl Ends {
    /// How long to wait for the other side.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    /// Starts an engine for one of the two tasks; also, the largest tensor that it accepts, in bytes.
    pub(super) fn start(&self, side: Side, context: &Context) -> Result<(Engine, u64), Failure> {
        let settings = context.settings(&self.settings)?;
        let map = self.map(&settings)?;
        let task = match side {
            Side::Sender => &self.from,
            Side::Receiver => &self.to,
        };
        let engine = short_lived_engine_settings(&settings, map, &[task], Pin::Off)?;
        let engine = EngineSettings {
            // What is sent lies in the memory that the file was read into.
            slab_send_bytes: UNUSED_SLAB_BYTES,
            slab_receive_bytes: match side {
                Side::Sender => UNUSED_SLAB_BYTES,
                Side::Receiver => engine.slab_receive_bytes,
            },
            connect_timeout: engine.connect_timeout.min(self.timeout().mul_f64(CONNECT_PART)),
            request_timeout: self.timeout(),
            ..engine
        };
        let tensor_bytes_max = engine.session.tensor_bytes_max;
        let engine = Engine::start(engine).map_err(Failure::work)?;
        Ok((engine, tensor_bytes_max))
    }

    fn map(&self, settings: &Settings) -> Result<EndpointMap, Failure> {
        let file = &settings.transport.endpoint_map.value;
        let map = EndpointMap::load(file)?;
        let address = |task: &str| map.resolve(task).ok_or_else(|| Failure::input(unknown_task(&map, file, task)));
        let (from, to) = (address(&self.from)?, address(&self.to)?);
        if from == to {
            return Err(Failure::input(format!(
                "{} and {} have the same transport address {from}, which one process serves; \
                 name tasks of two processes",
                self.from, self.to
            )));
        }
        Ok(map)
    }
}

/// A runtime that ended before its work was done.
pub(super) fn engine_ended(error: impl std::fmt::Display) -> Failure {
    Failure::work(format!("the engine ended early: {error}"))
}
