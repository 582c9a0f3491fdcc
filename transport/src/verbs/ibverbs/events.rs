//! Asynchronous events of the device.

use std::io;
use std::mem::MaybeUninit;

use rdma_sys as sys;

use super::owned::Context;
use crate::verbs::device::AsyncEvent;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Device(AsyncEvent),
    /// A queue pair failed; the event has its pointer.
    QueuePair,
    /// A queue pair holds no receive buffer any more; the event has its pointer.
    LastReceive,
    /// A port's state changed; the event has its number.
    Port(AsyncEvent),
    /// Nothing that matters here: the rest of it shows in completions.
    Nothing,
}

/// The numbers are those of `ibv_event_type`; newer libraries have more than this one knows.
fn meaning(kind: u32) -> Meaning {
    match kind {
        0 => Meaning::Device(AsyncEvent::CompletionQueueOverrun),
        // Queue pair: fatal, request error, access error.
        1..=3 => Meaning::QueuePair,
        // The device, or the shard's only receive queue.
        8 | 14 => Meaning::Device(AsyncEvent::DeviceFailed),
        9 => Meaning::Port(AsyncEvent::PortUp),
        10 => Meaning::Port(AsyncEvent::PortDown),
        16 => Meaning::LastReceive,
        // LID, client reregistration, GID.
        11 | 17 | 18 => Meaning::Port(AsyncEvent::AddressChanged),
        _ => Meaning::Nothing,
    }
}

/// The next event of the device or of this port. Every event is acknowledged before this returns, so that nothing waits
/// for an acknowledgement when it is destroyed. `failed` is set with the first [`AsyncEvent::DeviceFailed`]: it is told once.
pub(super) fn next(context: &Context, port: u8, failed: &mut bool) -> Option<AsyncEvent> {
    loop {
        let mut event = MaybeUninit::<sys::ibv_async_event>::uninit();
        // SAFETY: the context is open, the event outlives the call, and the descriptor does not block.
        if unsafe { sys::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = io::Error::last_os_error();
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                return None;
            }
            // The device is gone, and its descriptor stays readable.
            return once(AsyncEvent::DeviceFailed, failed);
        }
        // SAFETY: the call has filled the event. Its kind is read as the number that it is, which may be one that the
        // enumeration does not have.
        let kind = unsafe { (&raw const (*event.as_ptr()).event_type).cast::<u32>().read() };
        let found = match meaning(kind) {
            Meaning::Device(event) => Some(event),
            of_pair @ (Meaning::QueuePair | Meaning::LastReceive) => {
                // SAFETY: events of these kinds carry the queue pair, which cannot end before the acknowledgement.
                let number = unsafe { (*(*event.as_ptr()).element.qp).qp_num };
                let is_last = of_pair == Meaning::LastReceive;
                Some(if is_last { AsyncEvent::LastReceive(number) } else { AsyncEvent::QueuePairFailed(number) })
            }
            // SAFETY: events of this kind carry the port's number.
            Meaning::Port(told) => (unsafe { (*event.as_ptr()).element.port_num } == i32::from(port)).then_some(told),
            Meaning::Nothing => None,
        };
        // SAFETY: the event came from the call above, and is acknowledged once.
        unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        if let Some(event) = found.and_then(|event| once(event, failed)) {
            return Some(event);
        }
    }
}

fn once(event: AsyncEvent, failed: &mut bool) -> Option<AsyncEvent> {
    if event != AsyncEvent::DeviceFailed {
        return Some(event);
    }
    (!std::mem::replace(failed, true)).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_understood() {
        use sys::ibv_event_type::*;
        assert_eq!(meaning(IBV_EVENT_CQ_ERR as u32), Meaning::Device(AsyncEvent::CompletionQueueOverrun));
        for kind in [IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR] {
            assert_eq!(meaning(kind as u32), Meaning::QueuePair);
        }
        for kind in [IBV_EVENT_DEVICE_FATAL, IBV_EVENT_SRQ_ERR] {
            assert_eq!(meaning(kind as u32), Meaning::Device(AsyncEvent::DeviceFailed));
        }
        assert_eq!(meaning(IBV_EVENT_PORT_ACTIVE as u32), Meaning::Port(AsyncEvent::PortUp));
        assert_eq!(meaning(IBV_EVENT_PORT_ERR as u32), Meaning::Port(AsyncEvent::PortDown));
        for kind in [IBV_EVENT_LID_CHANGE, IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE] {
            assert_eq!(meaning(kind as u32), Meaning::Port(AsyncEvent::AddressChanged));
        }
        assert_eq!(meaning(IBV_EVENT_QP_LAST_WQE_REACHED as u32), Meaning::LastReceive);
        for kind in [IBV_EVENT_COMM_EST as u32, 1000] {
            assert_eq!(meaning(kind), Meaning::Nothing);
        }
    }

    #[test]
    fn the_failure_of_the_device_is_told_once() {
        let mut failed = false;
        assert_eq!(once(AsyncEvent::PortUp, &mut failed), Some(AsyncEvent::PortUp));
        assert_eq!(once(AsyncEvent::DeviceFailed, &mut failed), Some(AsyncEvent::DeviceFailed));
        assert_eq!(once(AsyncEvent::DeviceFailed, &mut failed), None);
        assert_eq!(once(AsyncEvent::PortDown, &mut failed), Some(AsyncEvent::PortDown));
    }
}
