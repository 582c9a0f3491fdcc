//! Calls with tensors of devices: first the copy, then the call; and copies of what was received.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use sealane_transport::{Error, Payload, Tensor};

use super::{
    DeviceBytes, DeviceTensor, Direction,
    device::{Device, Held, Host},
    piece::layout,
};
use crate::{Plan, Task, limits::CUDA_ALIGNMENT};

/// A copy in progress: await it, or [`try_outcome`](Self::try_outcome). If it is dropped, it continues.
#[must_use = "await it to know that the bytes are there"]
pub struct Copying<T = ()>(State<T>);

enum State<T> {
    UnderWay(oneshot::AsyncReceiver<Result<T, Error>>),
    /// It was not started.
    Failed(Option<Error>),
}

const TOLD: &str = "the outcome was handed out before";

impl<T> Copying<T> {
    fn failed(error: Error) -> Self {
        Self(State::Failed(Some(error)))
    }

    /// Checks whether the copy has ended, without waiting; `None` while it has not. The outcome can be taken once. A task that has polled
    /// before is not woken any more.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<T, Error>> {
        match Pin::new(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }
}

impl<T> Future for Copying<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let outcome = match &mut self.0 {
            State::UnderWay(outcome) => ready!(Pin::new(outcome).poll(context)).unwrap_or_else(|_| Err(gone())),
            State::Failed(error) => Err(error.take().expect(TOLD)),
        };
        self.0 = State::Failed(None);
        Poll::Ready(outcome)
    }
}

/// The error if the thread for copies has panicked.
fn gone() -> Error {
    Error::unavailable("the thread for CUDA copies", "it has ended")
}

/// A call that is made once its tensors are in the arena; from [`Task::copy_from_device`]. If it is dropped, the copy continues and the
/// call is made, and dropped.
#[must_use = "await it to know how the call ended"]
pub struct Staged<C>(Stage<C>);

enum Stage<C> {
    Copying(Copying<C>),
    Begun(C),
}

impl<C> Staged<C> {
    /// A call that was begun already, beside others that were not.
    pub fn begun(call: C) -> Self {
        Self(Stage::Begun(call))
    }

    /// The call, once it has been made; polled like a future.
    ///
    /// # Errors
    /// Those of the copy: ResourceExhausted if the arena has no room for the tensors, Unavailable for the driver's.
    ///
    /// # Panics
    /// After an error.
    pub fn poll_call(&mut self, context: &mut Context<'_>) -> Poll<Result<&mut C, Error>> {
        if let Stage::Copying(copying) = &mut self.0 {
            let call = ready!(Pin::new(copying).poll(context))?;
            self.0 = Stage::Begun(call);
        }
        match &mut self.0 {
            Stage::Begun(call) => Poll::Ready(Ok(call)),
            Stage::Copying(_) => unreachable!("it was just made"),
        }
    }
}

impl<C, T> Future for Staged<C>
where
    C: Future<Output = Result<T, Error>> + Unpin,
{
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        match ready!(self.poll_call(context)) {
            Ok(call) => Pin::new(call).poll(context),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// Copies to and from CUDA devices.
impl Task {
    /// Pins the arena for all devices with the CUDA driver, by this device's context, unless it is pinned; the first copy tries this too.
    /// An arena stays pinned until the task is closed; the next daemon's is pinned by the next copy.
    ///
    /// # Errors
    /// Why the driver does not: then copies work, but are slower and not asynchronous. Unimplemented with an embedded engine, whose
    /// memory is ordinary.
    pub fn pin(&self, device: usize) -> Result<(), Error> {
        match self.attachment() {
            Some(attachment) => attachment.pin(device),
            None => Err(Error::Unimplemented { reason: "an embedded engine's memory cannot be pinned".into() }),
        }
    }

    /// Copies the tensors into the arena, and then makes a call with them, such as a send, a push or a publication: on a thread of
    /// this crate's own, in the order of these calls for a device. Returns at once. All tensors are of one device.
    ///
    /// ```no_run
    /// # use sealane::{Task, cuda::DeviceTensor};
    /// # async fn example(task: Task, gradient: DeviceTensor) -> Result<(), sealane::Error> {
    /// let to = "ps0.train:2222";
    /// task.copy_from_device(vec![gradient], move |task, mut host| task.send(to, 7, "gradient", host.remove(0))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_from_device<C: Send + 'static>(
        &self,
        tensors: Vec<DeviceTensor>,
        call: impl FnOnce(&Task, Vec<Tensor>) -> C + Send + 'static,
    ) -> Staged<C> {
        let (metas, device): (Vec<_>, Vec<_>) = tensors.into_iter().map(|tensor| (tensor.meta, tensor.bytes)).unzip();
        let begun = only(&device).and_then(|on| Ok((on, self.staging(&device)?)));
        Staged(Stage::Copying(match begun {
            Ok((on, host)) => {
                let task = self.clone();
                begin(on, Direction::ToHost, Held { host: Host::Payloads(host), device }, move |host| {
                    let Host::Payloads(host) = host else { unreachable!("as it was given") };
                    let tensor = |(meta, data)| Tensor::from_parts(meta, data);
                    call(&task, metas.into_iter().zip(host).map(tensor).collect())
                })
            }
            Err(error) => Copying::failed(error),
        }))
    }

    /// Copies tensors to memory of as many bytes each, all on one device. Returns at once. The future completes when the bytes are
    /// there, for any stream; the tensors are kept until then.
    ///
    /// It fails with InvalidArgument if a tensor has another number of bytes than its place, and with Unavailable for the driver's
    /// errors; the memory then has some of the bytes.
    pub fn copy_to_device(&self, tensors: Vec<(Tensor, DeviceBytes)>) -> Copying {
        if let Some((tensor, bytes)) = tensors.iter().find(|(tensor, bytes)| tensor.len() != bytes.len) {
            return Copying::failed(other_size(tensor.len(), bytes.len));
        }
        let (host, device): (Vec<Payload>, Vec<_>) =
            tensors.into_iter().map(|(tensor, bytes)| (tensor.into_parts().1, bytes)).unzip();
        match only(&device) {
            Ok(on) => {
                self.pin_once(&device);
                begin(on, Direction::ToDevice, Held { host: Host::Payloads(host), device }, drop)
            }
            Err(error) => Copying::failed(error),
        }
    }

    /// [`copy_to_device`](Self::copy_to_device) for tensors of a plan that has been pulled, by their numbers. The plan is given back when
    /// the bytes are there; a copy that fails drops it.
    ///
    /// # Errors
    /// The plan, with NotFound or another reason if one of them was not pulled, and InvalidArgument if one has another number of
    /// bytes than its place.
    pub fn copy_plan_to_device(
        &self,
        plan: Box<Plan>,
        places: Vec<(usize, DeviceBytes)>,
    ) -> Result<Copying<Box<Plan>>, (Box<Plan>, Error)> {
        let check = |(number, bytes): &(usize, DeviceBytes)| match plan.get(*number)?.len() {
            found if found == bytes.len => Ok(()),
            found => Err(other_size(found, bytes.len)),
        };
        if let Err(error) = places.iter().try_for_each(check) {
            return Err((plan, error));
        }
        let (numbers, device): (Vec<_>, Vec<_>) = places.into_iter().unzip();
        let on = match only(&device) {
            Ok(on) => on,
            Err(error) => return Err((plan, error)),
        };
        self.pin_once(&device);
        let held = Held { host: Host::Pulled(plan, numbers), device };
        Ok(begin(on, Direction::ToDevice, held, |host| match host {
            Host::Pulled(plan, _) => plan,
            Host::Payloads(_) => unreachable!("as it was given"),
        }))
    }

    /// Tries to pin the arena; `pin` tells those who want to know whether it worked.
    fn pin_once(&self, bytes: &[DeviceBytes]) {
        if let (Some(attachment), Some(bytes)) = (self.attachment(), bytes.first()) {
            let _ = attachment.pin_once(bytes.device);
        }
    }

    /// Checks whether the arena is pinned, by the context of this device; tries that unless it was tried. Does not wait for a daemon.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn is_pinned(&self, device: usize) -> Result<(), Error> {
        self.attachment().map_or(Ok(()), |attachment| attachment.pin_once(device))
    }

    /// Memory to copy these into, with the layout that they have on the device.
    fn staging(&self, device: &[DeviceBytes]) -> Result<Vec<Payload>, Error> {
        let (places, size) = layout(device, CUDA_ALIGNMENT);
        let mut lens = Vec::with_capacity(2 * places.len());
        let mut end = 0;
        for (place, bytes) in places.iter().zip(device) {
            lens.extend([place - end, bytes.len]);
            end = place + bytes.len;
        }
        let parts = self.alloc(size)?.split(&lens);
        self.pin_once(device);
        // Every other part is a gap.
        Ok(parts.into_iter().skip(1).step_by(2).map(Payload::from).collect())
    }
}

fn other_size(found: usize, room: usize) -> Error {
    Error::invalid(format!("the tensor has {found} bytes, the device's memory {room}"))
}

/// The one device that has all of these.
fn only(bytes: &[DeviceBytes]) -> Result<&'static Device, Error> {
    // A tensor without bytes may be on any device.
    let mut some = bytes.iter().filter(|bytes| bytes.len > 0);
    let first = some.next().or(bytes.first()).ok_or_else(|| Error::invalid("no tensors to copy"))?;
    if let Some(other) = some.find(|other| other.device != first.device) {
        let (one, two) = (first.device, other.device);
        return Err(Error::invalid(format!(
            "tensors of the CUDA devices {one} and {two} in one call: make one for each"
        )));
    }
    Device::get(first.device)
}

fn begin<T: Send + 'static>(
    device: &'static Device,
    direction: Direction,
    held: Held,
    then: impl FnOnce(Host) -> T + Send + 'static,
) -> Copying<T> {
    let (told, outcome) = oneshot::async_channel();
    let then = move |copied: Result<Held, Error>| {
        // The receiver may be gone.
        let _ = told.send(copied.map(|held| then(held.host)));
    };
    device.copy(direction, held, Box::new(then));
    Copying(State::UnderWay(outcome))
}
