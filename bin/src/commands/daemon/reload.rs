//! The endpoint map and the secret or certificates of a running daemon: reread on request or when a file changes, as a whole or not
//! at all. The control thread waits meanwhile for the files and for names of new hosts; transfers do not.

use std::sync::Arc;

use sealane_fusion::Engine;
use sealane_transport::endpoint_map::{EndpointMap, SharedEndpointMap};

use super::instruments::Instruments;
use super::tasks::{Growth, list};
use crate::engine_settings::authentication;
use crate::local_host::LocalHost;
use crate::settings::{Peers, Security};

/// The map, and how the daemon applies a new one.
#[derive(Debug)]
pub(super) struct MapInUse {
    map: SharedEndpointMap,
    /// False if the tasks to serve were named one by one: then a new map adds none.
    grows: bool,
}

impl MapInUse {
    pub(super) fn new(map: SharedEndpointMap, grows: bool) -> MapInUse {
        MapInUse { map, grows }
    }

    pub(super) fn snapshot(&self) -> Arc<EndpointMap> {
        self.map.snapshot()
    }

    /// Rereads the file and gives it to the engine. A wrong file is logged, and the old map stays.
    pub(super) fn reload(&self, engine: &Engine) {
        let changed = match self.map.reload() {
            Ok(changed) if changed.is_empty() => return tracing::debug!("the endpoint map is unchanged"),
            Ok(changed) => changed,
            Err(error) => return tracing::error!(%error, "the previous endpoint map stays in use"),
        };
        let map = self.map.snapshot();
        let fresh = [changed.added.as_slice(), &changed.moved].concat();
        let mut growth = Growth::of(&map, &fresh, &engine.tasks(), engine.addresses());
        if !self.grows {
            growth = Growth { gone: growth.gone, ..Growth::default() };
        }
        match engine.set_map(map, &growth.more) {
            Ok(()) => tracing::info!(%changed, more = list(&growth.more, "none"), "the endpoint map was reloaded"),
            Err(error) => return tracing::error!(%error, "the engine rejects the new endpoint map"),
        }
        warn(&growth);
    }
}

/// Rereads the credential files and gives their contents to the engine. Wrong files are logged and counted, and the old credentials
/// stay in use.
pub(super) fn reload_credentials(security: &Security, engine: &Engine, instruments: &Instruments) {
    if security.peers == Peers::Anyone {
        return;
    }
    let taken = authentication(security).map_err(|failure| failure.to_string()).and_then(|new| {
        if new.is_same(&engine.authentication()) {
            return Ok(false);
        }
        engine.set_authentication(new).map(|()| true).map_err(|error| error.to_string())
    });
    match taken {
        Ok(false) => tracing::debug!("the credentials are unchanged"),
        Ok(true) => {
            instruments.credentials_taken();
            let shown = engine.authentication().name();
            tracing::info!(shown, "the credentials were reloaded: new links use them");
        }
        Err(error) => {
            instruments.credentials_refused();
            tracing::error!(error, "the previous credentials stay in use");
        }
    }
}

/// Warns of changes in a new map that a running daemon cannot apply.
fn warn(growth: &Growth) {
    if !growth.gone.is_empty() {
        let tasks = list(&growth.gone, "none");
        tracing::warn!(tasks, "tasks that the new map does not list here are served until the daemon restarts");
    }
    if growth.new_addresses.is_empty() {
        return;
    }
    let here = LocalHost::look().of_these(&growth.new_addresses);
    if !here.is_empty() {
        let addresses = list(&here, "none");
        tracing::warn!(
            addresses,
            "the new map has more transport addresses of this host; restart the daemon to listen there"
        );
    }
}
