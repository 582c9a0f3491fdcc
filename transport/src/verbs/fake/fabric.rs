//! The network of fake devices, and the tests' handle to it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::counters::Counters;
use super::device::FakeDevice;
use super::fault::{Fault, Weather};
use super::network::Network;
use super::settings::FakeSettings;

/// Connects fake devices of any threads. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric {
    network: Arc<Mutex<Network>>,
}

impl Fabric {
    /// A fabric without devices. `seed` chooses the delays, the order among queue pairs, and which requests the climate
    /// strikes: on one thread, the same calls then have the same results.
    pub fn new(seed: u64) -> Self {
        Self { network: Arc::new(Mutex::new(Network::new(seed))) }
    }

    /// Opens a device.
    ///
    /// # Panics
    /// If the process may open no more descriptors.
    pub fn open(&self, settings: FakeSettings) -> FakeDevice {
        FakeDevice::open(self, settings)
    }

    /// From now on nothing is carried out or acknowledged, except by [`step`](Self::step). Requests that fail at once, those of
    /// a queue pair in error, still do.
    pub fn pause(&self) {
        self.lock().is_paused = true;
    }

    /// Ends a pause; everything that is due is done before this returns.
    pub fn resume(&self) {
        let mut network = self.lock();
        network.is_paused = false;
        network.progress();
    }

    /// Carries out or acknowledges the next request of one queue pair, which the seed chooses; delays are ignored. False if
    /// nothing can be done.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Injects a fault into the devices with this name. False if what should fail does not exist: a queue pair of another
    /// device, or a device that is not open. Other faults wait for a device with that name.
    ///
    /// # Panics
    /// If the fault is a request that should end with success.
    pub fn inject(&self, device: &str, fault: Fault) -> bool {
        self.lock().inject(device, fault)
    }

    /// Makes requests fail randomly from now on; replaces the previous climate.
    ///
    /// # Panics
    /// If one of them should end with success.
    pub fn set_climate(&self, climate: &[Weather]) {
        assert!(climate.iter().all(|weather| !weather.strike.status.is_success()), "a climate with success");
        self.lock().climate = climate.to_vec();
    }

    /// Numbers of the queue pairs that devices with this name have now, oldest first.
    pub fn queue_pairs(&self, device: &str) -> Vec<u32> {
        let network = self.lock();
        network.queue_pairs_of(|_, adapter| network.adapters[adapter].name == device)
    }

    /// Number of buffers waiting in the shared receive queues of the devices with this name.
    pub fn receive_buffers(&self, device: &str) -> usize {
        let network = self.lock();
        let here = network.contexts.values().filter(|context| network.adapters[context.adapter].name == device);
        here.map(|context| context.receives.len()).sum()
    }

    /// Counters of all devices together.
    pub fn counters(&self) -> Counters {
        let mut total = Counters::default();
        for adapter in &self.lock().adapters {
            total.add(&adapter.counters);
        }
        total
    }

    /// Counters of the devices of this name, open and dropped.
    pub fn counters_of(&self, device: &str) -> Counters {
        let network = self.lock();
        let found = network.adapters.iter().find(|adapter| adapter.name == device);
        found.map_or_else(Counters::default, |adapter| adapter.counters.clone())
    }

    /// Requests that found a shared receive queue empty. Credit keeps this at 0.
    pub fn receiver_not_ready(&self) -> u64 {
        self.counters().receiver_not_ready
    }

    /// Completions for which there was no room. Credit keeps this at 0.
    pub fn completion_overruns(&self) -> u64 {
        self.counters().completion_overruns
    }

    /// Breaches of the interface's contract that have no error of their own, human-readable: memory deregistered while in use,
    /// objects freed twice. A test asserts that there are none.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        // A panic of one test thread must not hide what the others find.
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}
