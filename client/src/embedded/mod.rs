//! Tasks of an embedded engine: passes each call to the engine. Runs on the callers' threads.

mod plan;

use std::{
    future::Future,
    os::fd::OwnedFd,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use sealane_transport::{
    Error, Keys, PullOptions, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Tensor, named_rows::NamedRowsBuf,
};

use self::plan::EmbeddedPlan;
use crate::{
    Task,
    acceptor::{AcceptOptions, Accepted, Accepts, Watch},
    in_process::{Call, InProcess},
    plan::Pulls,
};

impl From<sealane_fusion::Task> for Task {
    /// A task with an embedded engine.
    fn from(task: sealane_fusion::Task) -> Task {
        Task::in_process(Arc::new(task))
    }
}

impl InProcess for sealane_fusion::Task {
    fn name(&self) -> &str {
        self.name()
    }

    fn shards(&self) -> usize {
        self.shards()
    }

    fn receive_bytes(&self) -> usize {
        self.slab_receive_bytes()
    }

    fn send(&self, to: &str, step: i64, key: &str, tensor: Tensor, options: SendOptions) -> Call<SendOutcome> {
        Call::of(self.send_with(to, step, key, tensor, options))
    }

    fn recv(&self, from: &str, step: i64, key: &str, options: RecvOptions) -> Call<RecvOutcome> {
        Call::of(self.recv_with(from, step, key, options))
    }

    fn recv_all(
        &self,
        from: &str,
        step: i64,
        wanted: &mut dyn Iterator<Item = (&str, RecvOptions)>,
    ) -> Vec<Call<RecvOutcome>> {
        calls(self.recv_all(from, step, wanted))
    }

    fn push_many(&self, to: &str, queue: &str, tensors: Vec<Tensor>, options: &SendOptions) -> Call<SendOutcome> {
        Call::of(self.push_many(to, queue, tensors, options.timeout))
    }

    fn acceptor(&self, queue: &str, AcceptOptions { tensors_max, bytes_max }: AcceptOptions) -> Box<dyn Accepts> {
        Box::new(self.acceptor(queue, sealane_fusion::AcceptOptions { tensors_max, bytes_max }))
    }

    fn publish_many(&self, version: i64, tensors: Vec<(String, Tensor)>) -> Call<SendOutcome> {
        Call::of(self.publish_many(version, tensors))
    }

    fn withdraw(&self, key: &str) -> Result<(), Error> {
        self.withdraw(key)
    }

    fn plan(&self, from: &str, stripe: usize, keys: Keys) -> Box<dyn Pulls> {
        Box::new(EmbeddedPlan::new(self.plan_over(stripe, from, keys)))
    }

    fn pull_rows(
        &self,
        from: (&str, usize),
        min_version: i64,
        options: PullOptions,
        wanted: Vec<NamedRowsBuf>,
    ) -> Vec<Call<RecvOutcome>> {
        calls(self.pull_rows(from, min_version, options, wanted))
    }

    fn stream_connection(&self, peer: &str, number: Option<u64>) -> Result<(u64, OwnedFd), Error> {
        match number {
            None => self.connect_for_stream(peer),
            Some(number) => self.stream_connection(peer, number).map(|socket| (number, socket)),
        }
    }

    fn abort(&self, step: i64, reason: &str) -> Result<(), Error> {
        self.abort(step, reason)
    }

    fn cleanup(&self, step: i64) -> Result<(), Error> {
        self.cleanup(step)
    }
}

fn calls(receivings: Vec<sealane_fusion::Receiving>) -> Vec<Call<RecvOutcome>> {
    receivings.into_iter().map(Call::of).collect()
}

impl Accepts for sealane_fusion::Acceptor {
    fn name(&self) -> &str {
        self.name()
    }

    fn take(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        let mut taken = Vec::new();
        self.try_accept(most, &mut taken)?;
        let count = taken.len();
        into.extend(ours(taken));
        Ok(count)
    }

    fn wait(&self, most: usize, timeout: Option<Duration>, _watch: &mut Watch) -> Result<Vec<Accepted>, Error> {
        Ok(ours(self.wait_many(most, timeout)?).collect())
    }

    fn poll(&self, most: usize, _watch: &mut Watch, context: &mut Context<'_>) -> Poll<Result<Vec<Accepted>, Error>> {
        std::pin::pin!(self.accept_many(most)).poll(context).map_ok(|accepted| ours(accepted).collect())
    }
}

fn ours(accepted: Vec<sealane_fusion::Accepted>) -> impl Iterator<Item = Accepted> {
    accepted.into_iter().map(|sealane_fusion::Accepted { from, tensor }| Accepted { from, tensor })
}
