//! Passes the events of sessions to the parts concerned.

use sealane_transport::session::Event;
use sealane_transport::tensor::{Tensor, TensorMeta};
use sealane_transport::{Error, Handle, Unreceived};

use super::Node;
use super::cells::RecvWaiter;

impl Node {
    /// Handles all events of a session.
    #[inline]
    pub(super) fn handle_events(&mut self, handle: Handle) {
        if self.context.peers.has_events(handle) {
            self.handle_all_events(handle);
        }
        self.pushes.deliver_arrived(&mut self.context);
    }

    fn handle_all_events(&mut self, handle: Handle) {
        let mut events = std::mem::take(&mut self.events);
        debug_assert!(events.is_empty(), "the events of one session would be taken for another's");
        while let Some(session) = self.context.peers.session_mut(handle).filter(|session| session.has_events()) {
            session.swap_events(&mut events);
            for event in events.drain(..) {
                self.handle_event(handle, event);
            }
        }
        self.events = events;
    }

    #[inline]
    fn handle_event(&mut self, handle: Handle, event: Event<RecvWaiter, Handle>) {
        let Node { exchange, row_requests, pulls, pushes, context, .. } = self;
        match event {
            Event::Requested(request) => exchange.requested_behind_events(handle, &request, context),
            Event::RowsRequested(request) => row_requests.requested(handle, *request, pulls, context),
            Event::Cancelled(id) => {
                exchange.cancelled(handle, id, &mut context.peers);
                row_requests.cancelled(handle, id, context);
            }
            Event::RequestEnded { waiter, outcome } => {
                let outcome = match *outcome {
                    Ok(arrived) => {
                        context.reporter.count_received(1, arrived.buffer.len());
                        Tensor::from_wire(&arrived.meta, arrived.buffer).map_err(|error| {
                            let peer = context.peers.name_of(handle);
                            Unreceived::from(Error::unavailable(peer, format!("it sent an invalid tensor: {error}")))
                        })
                    }
                    Err(unreceived) => Err(unreceived),
                };
                let waiter = match waiter {
                    RecvWaiter::Remote(recv) => {
                        let bytes = outcome.as_ref().ok().map(|tensor| tensor.payload().len());
                        match exchange.remote().answered(context.reporter.clock, recv, bytes) {
                            Some(waiter) => waiter,
                            None => return,
                        }
                    }
                    waiter => waiter,
                };
                context.reporter.finish_recv(waiter, outcome);
            }
            Event::Released { pending, tensor, taken } => {
                let (meta, payload) = *tensor;
                let (bytes, way) = (payload.len() as u64, context.peers.way_of(handle));
                let tensor = (TensorMeta::from_own_wire(meta), payload);
                exchange.released_as(pending, tensor, (bytes, taken, way), context);
            }
            Event::TakenAhead { pending, count } => {
                let way = context.peers.way_of(handle);
                exchange.taken_ahead(pending, count, way, context);
            }
            Event::BackFromAhead(back) => exchange.back_from_ahead(*back, context),
            Event::Pulled { waiter, pull_buffer } => pulls.arrived(handle, waiter, pull_buffer, context),
            Event::Pushed { .. } => unreachable!("pushes are received by the node itself"),
            Event::PushEnded { pending, count, outcome } => {
                pushes.ended(pending, count, outcome, &mut context.reporter);
            }
            Event::Opened(opened) => pushes.stream_opened(handle, opened, context),
            Event::Wanting { stream } => pushes.stream_wants(handle, stream, context),
            Event::Closed { streams } => pushes.streams_closed(handle, &streams),
            Event::Named(named) => pulls.named(handle, named, &mut context.peers),
            Event::Forgotten { slots } => pulls.forgotten(&slots),
            Event::Aborted { step, peer_task, reason } => {
                exchange.aborted(Some(handle), (step, peer_task), &reason, context);
            }
        }
    }
}
