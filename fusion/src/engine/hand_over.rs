//! One engine takes over from another, in another process: it sets everything up while the other still serves, and then continues with the
//! other's listening sockets, so that no caller is refused in between.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use sealane_runtime::{CpuClaim, Runtime};
use sealane_transport::Error;
use sealane_transport::endpoint_map::TransportAddress;

use super::listener::Listener;
use super::shard::ShardEngine;
use super::{Binder, Engine, EngineSettings, StartError, check_reach};

/// An engine that is set up but does not serve yet: its shards run and their memory is populated, but it does not listen at the addresses
/// that it will inherit.
pub struct Prepared {
    engine: Engine,
    /// Sockets of addresses where no other engine listens, in the order of the engine's addresses.
    own: Vec<Option<TcpListener>>,
}

impl Engine {
    /// Sets up an engine beside another one, from which it is to take over: `shared` are claims on the CPUs of the other's shards,
    /// `inherits` the addresses at which the other listens, each with that of its socket. All other addresses are bound now;
    /// [`EngineSettings::listeners`] are not used.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub fn prepare(
        settings: EngineSettings,
        shared: Vec<CpuClaim>,
        inherits: &[(TransportAddress, SocketAddr)],
    ) -> Result<Prepared, StartError> {
        let addresses = settings.check().map_err(StartError::Settings)?;
        let binder = Binder::new(&settings, &addresses);
        let mut own = Vec::with_capacity(addresses.len());
        for address in &addresses {
            let inherited = inherits.iter().find(|(other, _)| other == address);
            own.push(match inherited {
                Some((_, at)) => check_reach(*at, &settings).map(|()| None)?,
                None => Some(binder.bind(address)?),
            });
        }
        let engine = Engine::set_up(settings, addresses, |runtime| Runtime::start_beside(runtime, shared))?;
        Ok(Prepared { engine, own })
    }

    /// The claims on the CPUs of the shards, for [`prepare`](Self::prepare) in another process.
    pub fn cpu_claims(&self) -> Vec<Arc<CpuClaim>> {
        self.0.runtime.claims()
    }

    /// The transport addresses at which the engine listens, each with that of its socket.
    pub fn listening(&self) -> Vec<(TransportAddress, SocketAddr)> {
        let listening = self.on_all_shards(ShardEngine::listening).unwrap_or_default().into_iter().flatten();
        listening.map(|(via, at)| (self.addresses()[usize::from(via)].clone(), at)).collect()
    }

    /// Stops listening: returns the sockets, in which callers wait from now on. [`resume`](Self::resume) takes them back.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn yield_listeners(&self) -> Result<Vec<(TransportAddress, TcpListener)>, Error> {
        let yielded = self.on_all_shards(ShardEngine::yield_listeners)?;
        let of = |(via, socket): (u16, TcpListener)| (self.addresses()[usize::from(via)].clone(), socket);
        Ok(yielded.into_iter().flatten().map(of).collect())
    }

    /// Takes new calls again after [`drain`](Self::drain), and listens at the sockets that it had given away. Clients that were told of the
    /// drain lose their connections, so that they attach again.
    ///
    /// # Errors
    /// Unavailable if the engine has stopped.
    pub fn resume(&self, sockets: Vec<(TransportAddress, TcpListener)>) -> Result<(), Error> {
        self.on_all_shards(|engine| {
            engine.drain_announced.set(false);
            engine.with_node(|node, _| node.resume());
        })?;
        let place = |address: &TransportAddress| self.addresses().iter().position(|other| other == address);
        let sockets = sockets.into_iter().filter_map(|(address, socket)| Some((place(&address)? as u16, socket)));
        self.listen_at(sockets.collect())?;
        self.hang_up_on_clients();
        Ok(())
    }

    /// Listens at sockets, given in the order of the addresses.
    pub(super) fn listen(&self, sockets: Vec<TcpListener>) -> Result<(), Error> {
        self.listen_at(sockets.into_iter().enumerate().map(|(via, socket)| (via as u16, socket)).collect())
    }

    /// The first shard listens for all.
    fn listen_at(&self, sockets: Vec<(u16, TcpListener)>) -> Result<(), Error> {
        let settings = &self.0.settings.tcp;
        let listeners: Vec<_> = sockets.into_iter().map(|(via, socket)| Listener::new(socket, via, settings)).collect();
        let listening = self.0.runtime.shard(0).run_always(async move |_| {
            ShardEngine::current().expect("set up at start").listen(listeners);
        });
        listening.wait().map_err(|error| super::stopped(&error))
    }
}

impl Prepared {
    /// The engine, which does not serve yet.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Serves: at the `inherited` sockets that the other engine has yielded, and at its own. If one is missing, because the other engine
    /// failed before it could hand it over, the address is bound. The shards are pinned.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running.
    pub fn open(self, mut inherited: Vec<(TransportAddress, TcpListener)>) -> Result<Engine, StartError> {
        let Prepared { engine, own } = self;
        let binder = Binder::new(&engine.0.settings, engine.addresses());
        let socket = |(address, own): (&TransportAddress, Option<TcpListener>)| {
            let place = inherited.iter().position(|(other, _)| other == address);
            match (own, place) {
                (Some(own), _) => Ok(own),
                (None, Some(place)) => Ok(inherited.swap_remove(place).1),
                (None, None) => binder.bind(address),
            }
        };
        let sockets = engine.addresses().iter().zip(own).map(socket).collect::<Result<_, _>>()?;
        engine.listen(sockets).map_err(|error| StartError::Shard(error.to_string()))?;
        if let Err(error) = engine.0.runtime.pin() {
            tracing::warn!(%error, "the shards run unpinned");
        }
        Ok(engine)
    }
}
