//! Puts the slices of one tensor together: of one version, each at its place. Pure.

use bytes::Bytes;
use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::{Error, Payload, Slicing, Tensor};

use super::SliceVersions;

/// The slices of one tensor, as they arrive.
pub(super) struct Gathered {
    slices: Vec<Option<(Tensor, i64)>>,
    error: Option<Error>,
}

impl Gathered {
    pub(super) fn new(slicing: &Slicing) -> Self {
        let slices = (0..slicing.len()).map(|_| None).collect();
        Self { slices, error: None }
    }

    pub(super) fn take(&mut self, slice: usize, came: Result<(Tensor, i64), Error>) {
        match came {
            Ok(came) => self.slices[slice] = Some(came),
            Err(error) => self.error = self.error.take().or(Some(error)),
        }
    }

    /// True if slices of one owner have different versions: it was publishing while they were pulled over several shards.
    pub(super) fn is_torn(&self, slicing: &Slicing) -> bool {
        let mut versions = HashMap::new();
        let differs = |(slice, came): (usize, &Option<(Tensor, i64)>)| {
            came.as_ref()
                .is_some_and(|(_, version)| *versions.entry(slicing.owner(slice)).or_insert(*version) != *version)
        };
        self.error.is_none() && self.slices.iter().enumerate().any(differs)
    }

    /// The tensor and its version.
    pub(super) fn end(
        self,
        (key, slicing): (&str, &Slicing),
        whole: Option<&Bytes>,
        versions: SliceVersions,
    ) -> (Result<Tensor, Error>, i64) {
        let Self { slices, error } = self;
        let versions_of = || slices.iter().flatten().map(|(_, version)| *version);
        let (oldest, newest) = (versions_of().min().unwrap_or(i64::MAX), versions_of().max().unwrap_or(i64::MIN));
        if let Some(error) = error {
            return (Err(error), oldest);
        }
        if versions == SliceVersions::Same && oldest != newest {
            let reason = format!(
                "the slices of '{key}' are of versions {oldest} to {newest}: pull version {newest}, or accept any"
            );
            return (Err(Error::Aborted { step: newest, reason: reason.into() }), newest);
        }
        let slices = slices.into_iter().flatten().map(|(tensor, _)| tensor);
        let payload = match whole {
            Some(whole) => in_place(slicing, whole, slices).map(|()| Payload::Bytes(whole.clone())),
            None => joined(slices),
        };
        let payload = payload.ok_or_else(|| Error::invalid(format!("a slice of '{key}' did not arrive in its place")));
        (payload.and_then(|payload| Tensor::new(slicing.meta().clone(), payload)), oldest)
    }
}

/// `Some` if the slices lie where they should.
fn in_place(slicing: &Slicing, whole: &Bytes, slices: impl Iterator<Item = Tensor>) -> Option<()> {
    let lies = |(index, tensor): (usize, Tensor)| {
        std::ptr::eq(tensor.bytes().as_ptr(), whole[slicing.bytes_of(index)].as_ptr())
    };
    slices.enumerate().all(lies).then_some(())
}

/// Joins the parts of an array again.
fn joined(slices: impl Iterator<Item = Tensor>) -> Option<Payload> {
    Buffer::join(slices.map(Tensor::into_buffer).collect()).ok().map(Payload::Owned)
}
