//! A device's copies: two streams, and a thread that learns when copies have ended. Callable from any thread; bounded by the memory
//! that is copied, which is the caller's.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Instant,
};

use sealane_transport::{Error, Payload};

use super::{
    DeviceBytes,
    driver::{self, Context, Driver, Event, Stream},
    piece::{Piece, copy_all, follow},
};
use crate::{
    Plan,
    limits::{CUDA_COPY_MAX, CUDA_DEVICES_MAX, CUDA_LOOK},
};

/// Where copies go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a device to the host.
    ToHost,
    /// From the host to a device.
    ToDevice,
}

/// What a copy holds until it has ended: bytes of the host, and as many of the device for each.
pub(super) struct Held {
    pub(super) host: Host,
    pub(super) device: Vec<DeviceBytes>,
}

/// The host's side of a copy.
pub(super) enum Host {
    Payloads(Vec<Payload>),
    /// Tensors of a plan that were pulled, by their numbers.
    Pulled(Box<Plan>, Vec<usize>),
}

impl Held {
    fn pieces(&mut self) -> Vec<Piece> {
        let pieces: Vec<Piece> = match &mut self.host {
            Host::Payloads(host) => {
                let piece = |(host, device): (&mut Payload, &DeviceBytes)| match host {
                    Payload::Owned(buffer) => Piece::new(&mut *buffer, device),
                    other => Piece::new_read(other.as_ref(), device),
                };
                host.iter_mut().zip(&self.device).map(piece).collect()
            }
            Host::Pulled(plan, numbers) => {
                let tensor = |(number, device): (&usize, &DeviceBytes)| Some((plan.get(*number).ok()?, device.clone()));
                let tensors = numbers.iter().zip(&self.device).filter_map(tensor);
                tensors.map(|(tensor, device)| Piece::new_read(tensor.bytes(), &device)).collect()
            }
        };
        pieces.into_iter().filter(|piece| !piece.is_empty()).collect()
    }
}

/// Called with the outcome of a copy, on the device's thread.
pub(super) type Then = Box<dyn FnOnce(Result<Held, Error>) + Send>;

/// A device as used by this process. Made on first use, and kept.
pub(super) struct Device {
    context: Context,
    lanes: [Lane; 2],
    bell: Bell,
    /// The process that runs the thread.
    process: u32,
}

/// A stream and its pending copies, oldest first.
struct Lane {
    stream: Stream,
    jobs: Mutex<VecDeque<Job>>,
}

struct Job {
    passed: Event,
    begun: Instant,
    held: Held,
    /// The driver's error, if it refused a part of the copy.
    refused: Option<Error>,
    then: Then,
}

/// The thread sleeps on it.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    ring: Condvar,
}

impl driver::Bell for Bell {
    fn ring(&self) {
        *locked(&self.has_rung) = true;
        self.ring.notify_one();
    }
}

impl Bell {
    /// Sleeps until the bell rings; with copies pending at most [`CUDA_LOOK`], since a lost device does not ring.
    fn wait(&self, is_idle: bool) {
        let has_rung = locked(&self.has_rung);
        let mut has_rung = if is_idle {
            self.ring.wait_while(has_rung, |has_rung| !*has_rung).unwrap_or_else(PoisonError::into_inner)
        } else {
            let waited = self.ring.wait_timeout_while(has_rung, CUDA_LOOK, |has_rung| !*has_rung);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        *has_rung = false;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// # Errors
    /// InvalidArgument for a device that does not exist, and in a forked child; otherwise the driver's.
    pub(super) fn get(ordinal: usize) -> Result<&'static Device, Error> {
        static DEVICES: [OnceLock<&'static Device>; CUDA_DEVICES_MAX] = [const { OnceLock::new() }; CUDA_DEVICES_MAX];
        static MAKING: Mutex<()> = Mutex::new(());
        let Some(slot) = DEVICES.get(ordinal) else {
            return Err(Error::invalid(format!("CUDA device {ordinal}: there are at most {CUDA_DEVICES_MAX}")));
        };
        let device = match slot.get() {
            Some(device) => device,
            None => {
                let _making = locked(&MAKING);
                match slot.get() {
                    Some(device) => device,
                    None => {
                        let made = Device::new(ordinal)?;
                        slot.get_or_init(|| made)
                    }
                }
            }
        };
        if device.process != std::process::id() {
            return Err(Error::invalid(
                "this process was forked after CUDA was used, which CUDA does not allow: start it anew instead",
            ));
        }
        Ok(device)
    }

    fn new(ordinal: usize) -> Result<&'static Device, Error> {
        let context = Context::of(ordinal)?;
        let streams = context.with(|current| Ok([current.stream()?, current.stream()?]))?;
        let lanes = streams.map(|stream| Lane { stream, jobs: Mutex::default() });
        let device = Device { context, lanes, bell: Bell::default(), process: std::process::id() };
        let device: &'static Device = Box::leak(Box::new(device));
        let name = format!("sealane-cuda{ordinal}");
        let started = thread::Builder::new().name(name).spawn(|| device.run());
        started.map_err(|error| Error::unavailable("a thread for CUDA copies", error.to_string()))?;
        Ok(device)
    }

    /// The number of the stream used for copies in this direction.
    pub(super) fn stream(&self, direction: Direction) -> u64 {
        self.lane(direction).stream.number()
    }

    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::ToHost => &self.lanes[0],
            Direction::ToDevice => &self.lanes[1],
        }
    }

    /// Starts a copy between the two sides, to the host only into buffers that it alone has, and returns at once. Both sides are kept
    /// until the copy has ended; memory that the device may still use after an error is never freed.
    pub(super) fn copy(&'static self, direction: Direction, mut held: Held, then: Then) {
        let lane = self.lane(direction);
        let mut jobs = locked(&lane.jobs);
        let pieces = held.pieces();
        let mut is_used = false;
        let begun = self.context.with(|current| {
            held.device.iter().try_for_each(|bytes| follow(bytes, current, &lane.stream))?;
            is_used = true;
            let refused = copy_all(&pieces, direction, current, &lane.stream).err();
            let passed = current.record(&lane.stream)?;
            // If that fails, the thread still looks, only later.
            let _ = current.ring(&lane.stream, &self.bell);
            Ok((passed, refused))
        });
        match begun {
            Ok((passed, refused)) => {
                jobs.push_back(Job { passed, begun: Instant::now(), held, refused, then });
                // An idle thread does not look by itself.
                driver::Bell::ring(&self.bell);
            }
            Err(error) => {
                drop(jobs);
                if is_used {
                    std::mem::forget(held);
                }
                then(Err(error));
            }
        }
    }

    /// Makes copies in this direction wait for what is in the other stream now.
    pub(super) fn follow(&self, direction: Direction, bytes: &DeviceBytes) -> Result<(), Error> {
        self.context.with(|current| follow(bytes, current, &self.lane(direction).stream))
    }

    fn run(&'static self) {
        loop {
            let mut is_idle = true;
            for lane in &self.lanes {
                while let Some((job, outcome)) = self.ended(lane) {
                    // A panic of a caller's function has been reported, and other copies go on.
                    let _ = catch_unwind(AssertUnwindSafe(|| job.end(outcome)));
                }
                is_idle &= locked(&lane.jobs).is_empty();
            }
            self.bell.wait(is_idle);
        }
    }

    /// The oldest copy and its outcome, if it has ended.
    fn ended(&self, lane: &Lane) -> Option<(Job, Result<(), Error>)> {
        let mut jobs = locked(&lane.jobs);
        let job = jobs.front()?;
        let outcome = match self.context.with(|current| current.has_passed(&job.passed)) {
            Ok(true) => Ok(()),
            Ok(false) if job.begun.elapsed() < CUDA_COPY_MAX => return None,
            Ok(false) => {
                Err(Error::TimedOut { reason: format!("a CUDA copy has not ended within {CUDA_COPY_MAX:?}").into() })
            }
            Err(error) => Err(error),
        };
        jobs.pop_front().map(|job| (job, outcome))
    }
}

impl Job {
    fn end(self, outcome: Result<(), Error>) {
        let Job { held, refused, then, .. } = self;
        match (outcome, refused) {
            (Ok(()), None) => then(Ok(held)),
            // The parts that were begun have ended.
            (Ok(()), Some(error)) => then(Err(error)),
            (Err(error), _) => {
                std::mem::forget(held);
                then(Err(error));
            }
        }
    }
}

/// The names of this host's devices.
///
/// # Errors
/// Unavailable, with the reason, where there is no driver that works.
pub fn devices() -> Result<Vec<String>, Error> {
    let driver = Driver::get()?;
    (0..driver.devices()).map(|ordinal| driver.device_name(ordinal)).collect()
}

/// The number of the device that has memory at this address.
///
/// # Errors
/// Unavailable if none has, or where there is no driver.
pub fn device_of(address: u64) -> Result<usize, Error> {
    Driver::get()?.device_of(address)
}
