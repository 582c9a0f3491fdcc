//! The endpoint map, and the secret or the certificates, of a running daemon: read again when asked or when a file changes, whole or
//! not at all. The control thread waits meanwhile for the files and for names of new hosts, transfers do not.

use std::sync::Arc;

use sealane_fusion::Engine;
use sealane_transport::endpoint_map::{EndpointMap, SharedEndpointMap};

use super::instruments::Instruments;
use super::tasks::{Growth, list};
use crate::engine_settings::authentication;
use crate::local_host::LocalHost;
use crate::settings::{Peers, Security};

/// The map, and what the daemon does with a new one.
#[derive(Debug)]
pub(super) struct MapInUse {
    map: SharedEndpointMap,
    /// False if the tasks to serve were named one by one: then a new map adds none.
    grows: bool,
}

impl MapInUse {
    /// The map that the daemon starts with.
    pub(super) fn new(map: SharedEndpointMap, grows: bool) -> MapInUse {
        MapInUse { map, grows }
    }

    /// The map as it is now.
    pub(super) fn snapshot(&self) -> Arc<EndpointMap> {
        self.map.snapshot()
    }

    /// Reads the file again and gives it to the engine. A file that is wrong is logged, and the old map stays.
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

/// Reads the files again that say who may talk, and gives the engine what they have. Files that are wrong are logged and
/// counted, and what was read before stays in use.
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

/// What a new map says and a running daemon cannot do.
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
