//! Callers of one connection's methods: every tensor that is pulled goes to its own buffer.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::codec::{Message, MessageCodec, copy_out, request_for};
use super::runtime::{NAME, failed};
use super::service::{PULL, PULL_ALL, PUSH, PUSH_ALL};
use crate::error::BenchError;
use crate::limits::STEP_TENSORS_MAX;

/// Makes one call at a time.
#[derive(Clone)]
pub(super) struct Caller(Grpc<Channel>);

impl Caller {
    /// The largest answer is twice `largest` and some, for what is around many tensors.
    pub(super) fn new(channel: Channel, largest: usize) -> Self {
        Self(Grpc::new(channel).max_decoding_message_size(2 * largest + STEP_TENSORS_MAX))
    }

    /// Calls a method, and gives the message that it answers with.
    pub(super) async fn call(&mut self, method: &'static str, request: impl Message) -> Result<Bytes, BenchError> {
        self.0.ready().await.map_err(failed("get ready for a call"))?;
        let (path, codec) = (PathAndQuery::from_static(method), MessageCodec::new(request.bytes()));
        let response = self.0.unary(Request::new(request), path, codec).await.map_err(failed("call"))?;
        Ok(response.into_inner())
    }
}

/// Callers that are idle between steps: as many as may have a call in flight at once.
pub(super) struct Callers(Vec<Caller>);

impl Callers {
    /// So many, one at least.
    pub(super) fn new(caller: Caller, count: usize) -> Self {
        Self(vec![caller; count.max(1)])
    }

    /// One call, whose answer is one message with all tensors.
    pub(super) async fn pull_all(&mut self, version: i64, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
        let message = self.0[0].call(PULL_ALL, request_for(0, version)).await?;
        copy_out(&message, targets).ok_or_else(|| wrong_reply(targets.iter().map(Vec::len).sum(), message.len()))
    }

    /// A call a tensor.
    pub(super) async fn pull_each(&mut self, version: i64, targets: &mut [Vec<u8>]) -> Result<(), BenchError> {
        let numbers = 0..targets.len();
        self.call_each(PULL, numbers.map(|number| request_for(number, version)), |number, answer| {
            let target = &mut targets[number];
            if answer.len() != target.len() {
                return Err(wrong_reply(target.len(), answer.len()));
            }
            target.copy_from_slice(&answer);
            Ok(())
        })
        .await
    }

    /// One call, with one message of all gradients.
    pub(super) async fn push_all(&mut self, gradients: &Arc<[Bytes]>) -> Result<(), BenchError> {
        self.0[0].call(PUSH_ALL, gradients.clone()).await.map(drop)
    }

    /// A call a gradient.
    pub(super) async fn push_each(&mut self, gradients: &[Bytes]) -> Result<(), BenchError> {
        self.call_each(PUSH, gradients.iter().cloned(), |_, _| Ok(())).await
    }

    /// As many calls in flight as there are callers, all of which are idle again at the end.
    async fn call_each(
        &mut self,
        method: &'static str,
        requests: impl Iterator<Item = Bytes>,
        mut answered: impl FnMut(usize, Bytes) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let call = async |mut caller: Caller, (number, request): (usize, Bytes)| {
            let answer = caller.call(method, request).await;
            (caller, number, answer)
        };
        let mut requests = requests.enumerate();
        let mut calls = FuturesUnordered::new();
        while !self.0.is_empty()
            && let Some(request) = requests.next()
            && let Some(caller) = self.0.pop()
        {
            calls.push(call(caller, request));
        }
        while let Some((caller, number, answer)) = calls.next().await {
            answered(number, answer?)?;
            match requests.next() {
                Some(request) => calls.push(call(caller, request)),
                None => self.0.push(caller),
            }
        }
        Ok(())
    }
}

fn wrong_reply(expected: usize, received: usize) -> BenchError {
    BenchError::WrongReply { system: NAME, expected, received }
}
