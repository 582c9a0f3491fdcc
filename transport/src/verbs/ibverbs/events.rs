//! Asynchronous events of the device.

use std::io;
use std::mem::MaybeUninit;

use super::owned::Context;
use super::sys::{self, ibv_event_type::*};
use crate::verbs::device::AsyncEvent;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Device(AsyncEvent),
    /// A queue pair failed; the event has its pointer.
    QueuePair,
    /// A queue pair no longer holds any receive buffer; the event has its pointer.
    LastReceive,
    /// A port's state changed; the event has its number.
    Port(AsyncEvent),
    /// Nothing that matters here: the consequences show in completions.
    Nothing,
}

/// The meaning of an event kind. Newer libraries have kinds that are unknown here.
fn meaning(kind: u32) -> Meaning {
    match kind {
        IBV_EVENT_CQ_ERR => Meaning::Device(AsyncEvent::CompletionQueueOverrun),
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => Meaning::QueuePair,
        // The device, or the shard's only receive queue.
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_SRQ_ERR => Meaning::Device(AsyncEvent::DeviceFailed),
        IBV_EVENT_PORT_ACTIVE => Meaning::Port(AsyncEvent::PortUp),
        IBV_EVENT_PORT_ERR => Meaning::Port(AsyncEvent::PortDown),
        IBV_EVENT_QP_LAST_WQE_REACHED => Meaning::LastReceive,
        IBV_EVENT_LID_CHANGE | IBV_EVENT_CLIENT_REREGISTER | IBV_EVENT_GID_CHANGE => {
            Meaning::Port(AsyncEvent::AddressChanged)
        }
        _ => Meaning::Nothing,
    }
}

/// The next event of the device or of this port. Every event is acknowledged before this returns, so that destroying an
/// object never waits for an acknowledgement. `failed` is set with the first [`AsyncEvent::DeviceFailed`], which is
/// reported once.
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
        // SAFETY: the call has filled the event.
        let kind = unsafe { (*event.as_ptr()).event_type };
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
        assert_eq!(meaning(0), Meaning::Device(AsyncEvent::CompletionQueueOverrun));
        for kind in [1, 2, 3] {
            assert_eq!(meaning(kind), Meaning::QueuePair);
        }
        for kind in [8, 14] {
            assert_eq!(meaning(kind), Meaning::Device(AsyncEvent::DeviceFailed));
        }
        assert_eq!(meaning(9), Meaning::Port(AsyncEvent::PortUp));
        assert_eq!(meaning(10), Meaning::Port(AsyncEvent::PortDown));
        for kind in [11, 17, 18] {
            assert_eq!(meaning(kind), Meaning::Port(AsyncEvent::AddressChanged));
        }
        assert_eq!(meaning(16), Meaning::LastReceive);
        for kind in [4, 1000] {
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
