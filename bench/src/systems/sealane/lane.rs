//! One of the tensors that a consumer asks for again and again. On a shard.

use sealane_fusion::{Buffer, Error, LocalPair, LocalReceiving, Tensor, Unreceived};

use super::names::{NAME, key_of};

/// One of the requests that are in flight at once: its key, its next step, and the memory that it fills.
pub(super) struct Lane {
    key: String,
    step: i64,
    size_bytes: usize,
    buffer: Option<Buffer>,
}

impl Lane {
    /// The lane of the tensor with that number, in memory of its size.
    pub(super) fn new(index: usize, buffer: Buffer) -> Self {
        Self { key: key_of(index), step: 0, size_bytes: buffer.len(), buffer: Some(buffer) }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The next step.
    pub(super) fn step(&self) -> i64 {
        self.step
    }

    /// The next step is this one.
    pub(super) fn go_on_from(&mut self, step: i64) {
        self.step = step;
    }

    /// Empties the lane's own memory.
    pub(super) fn wipe(&mut self) {
        self.buffer.iter_mut().for_each(|buffer| buffer.fill(0));
    }

    /// What lies in the lane's own memory.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }

    /// The lane's own memory, until it [takes](Self::take_in) it back.
    pub(super) fn lend(&mut self) -> Buffer {
        self.buffer.take().expect("given back with every tensor")
    }

    /// Asks for the next step's tensor, into the lane's own memory.
    pub(super) fn ask(&mut self, pair: &LocalPair) -> LocalReceiving {
        let buffer = self.lend();
        pair.recv_into(self.step, &self.key, buffer)
    }

    /// Takes the memory back, with what was asked for in it.
    pub(super) fn take_in(&mut self, tensor: Tensor) -> Result<(), Error> {
        let buffer = tensor.into_buffer();
        if buffer.len() != self.size_bytes {
            let reason = format!("{NAME} answered {} bytes to a request for {}", buffer.len(), self.size_bytes);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        self.buffer = Some(buffer);
        self.step += 1;
        Ok(())
    }

    /// Receives the next step's tensor.
    pub(super) async fn pull(&mut self, pair: &LocalPair) -> Result<(), Error> {
        let tensor = self.ask(pair).await.map_err(|Unreceived { error, .. }| error)?;
        self.take_in(tensor)
    }
}
