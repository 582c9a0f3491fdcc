//! A task that needs no daemon: its engine is in its own process, and tells what it holds.

use std::path::Path;
use std::thread;
use std::time::Duration;

use sealane::{EndpointMap, Engine};
use sealane_cli::engine_settings::engine_settings;
use sealane_cli::settings::Settings;

use super::ledger::{Holdings, Line, now_us};
use super::{Actor, Role, name};

/// Between two looks at what the engine holds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Starts the engine.
pub(super) fn start(map: &Path, role: &Role) -> Result<Engine, String> {
    let folder = map.parent().ok_or("the endpoint map is in no folder")?;
    let map = EndpointMap::load(map).map_err(|error| error.to_string())?;
    let settings = Settings::of(role.manner.settings(folder, role.address)).map_err(|error| error.to_string())?;
    let settings = engine_settings(&settings, map, &[&name(role.task)]).map_err(|error| error.to_string())?;
    Engine::start(settings).map_err(|error| error.to_string())
}

/// Notes what the engine holds, until all is over.
pub(super) fn sample(actor: &Actor, engine: &Engine) {
    while !actor.orders.is_over(now_us()) {
        thread::sleep(SAMPLE_INTERVAL);
        let Ok(shards) = engine.counters() else { continue };
        let total = shards.iter().fold(Holdings::default(), |total, shard| Holdings {
            slab_bytes: total.slab_bytes + shard.slab_send_bytes + shard.slab_receive_bytes,
            deposits: total.deposits + shard.deposits,
            parked: total.parked + shard.parked,
            published: total.published + shard.published,
            links: total.links + shard.links,
        });
        actor.ledger.write(&Line::Holds { at: now_us(), holdings: total });
    }
}
