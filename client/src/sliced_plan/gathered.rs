//! The slices of one tensor, put together: of one version, and each where it belongs. Pure.

use bytes::Bytes;
use sealane_runtime::Buffer;
use sealane_transport::{Error, Payload, Slicing, Tensor};

use super::SliceVersions;

/// The slices of one tensor, as they come.
pub(super) struct Gathered {
    slices: Vec<Option<Tensor>>,
    error: Option<Error>,
    oldest: i64,
    newest: i64,
}

impl Gathered {
    pub(super) fn new(slicing: &Slicing) -> Self {
        let slices = (0..slicing.len()).map(|_| None).collect();
        Self { slices, error: None, oldest: i64::MAX, newest: i64::MIN }
    }

    pub(super) fn take(&mut self, slice: usize, came: Result<(Tensor, i64), Error>) {
        match came {
            Ok((tensor, version)) => {
                (self.oldest, self.newest) = (self.oldest.min(version), self.newest.max(version));
                self.slices[slice] = Some(tensor);
            }
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
    }

    /// The tensor and its version.
    pub(super) fn end(
        self,
        (key, slicing): (&str, &Slicing),
        whole: Option<&Bytes>,
        versions: SliceVersions,
    ) -> (Result<Tensor, Error>, i64) {
        let Self { slices, error, oldest, newest } = self;
        if let Some(error) = error {
            return (Err(error), oldest);
        }
        if versions == SliceVersions::Same && oldest != newest {
            let reason = format!(
                "the slices of '{key}' are of versions {oldest} to {newest}: pull version {newest}, or accept any"
            );
            return (Err(Error::Aborted { step: newest, reason: reason.into() }), newest);
        }
        let slices = slices.into_iter().flatten();
        let payload = match whole {
            Some(whole) => in_place(slicing, whole, slices).map(|()| Payload::Bytes(whole.clone())),
            None => joined(slices),
        };
        let payload = payload.ok_or_else(|| Error::invalid(format!("a slice of '{key}' did not arrive in its place")));
        (payload.and_then(|payload| Tensor::new(slicing.meta().clone(), payload)), oldest)
    }
}

/// Whether the slices lie where they should.
fn in_place(slicing: &Slicing, whole: &Bytes, slices: impl Iterator<Item = Tensor>) -> Option<()> {
    let lies = |(index, tensor): (usize, Tensor)| {
        std::ptr::eq(tensor.bytes().as_ptr(), whole[slicing.bytes_of(index)].as_ptr())
    };
    slices.enumerate().all(lies).then_some(())
}

/// The parts of an array, as one again.
fn joined(slices: impl Iterator<Item = Tensor>) -> Option<Payload> {
    Buffer::join(slices.map(Tensor::into_buffer).collect()).ok().map(Payload::Owned)
}
