//! A pull buffer: a place for each tensor of a key set, reused by the next pull.
//!
//! Moves as a whole: into the session with the pull, and back when it ends. A tensor whose type and size are unchanged is
//! overwritten in place, so that from the second pull on nothing is allocated.

use std::sync::atomic::{AtomicU64, Ordering};

use sealane_runtime::{Buffer, VolatileSlice};

use crate::error::Error;
#[cfg(feature = "network")]
use crate::outbox::Outbox;
use crate::payload::Payload;
use crate::tensor::{Tensor, TensorMeta};

/// The keys of a set, in the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys(Box<[Box<str>]>);

impl Keys {
    /// A set of these keys; duplicates are allowed.
    ///
    /// # Errors
    /// InvalidArgument for over [`SET_KEYS_MAX`](crate::limits::SET_KEYS_MAX) keys, or one of over
    /// [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX) bytes.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Result<Keys, Error> {
        use crate::limits::{KEY_BYTES_MAX, SET_KEYS_MAX};
        let keys: Box<[Box<str>]> = keys.into_iter().map(|key| key.as_ref().into()).collect();
        if keys.len() > SET_KEYS_MAX {
            return Err(Error::invalid(format!("{} keys in one set, at most {SET_KEYS_MAX} are possible", keys.len())));
        }
        if let Some(key) = keys.iter().find(|key| key.len() > KEY_BYTES_MAX) {
            let bytes = key.len();
            return Err(Error::invalid(format!("a key has {bytes} bytes, at most {KEY_BYTES_MAX} are accepted")));
        }
        Ok(Keys(keys))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key with this number.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn get(&self, index: usize) -> &str {
        &self.0[index]
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|key| &**key)
    }
}

/// Metadata and size of the tensors of one number, as their producer last said.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Identifies this metadata: other metadata has another stamp. Never 0.
    pub(crate) stamp: u64,
    pub(crate) meta: TensorMeta,
    /// Bytes of the payload.
    pub(crate) len: usize,
}

/// A stamp not used before in this process; by it a pull buffer recognizes whether a tensor is of the kind that it already
/// has.
pub fn next_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[derive(Debug)]
enum Holding {
    Nothing,
    /// The caller's own, for any tensor.
    Memory(Buffer),
    /// The tensor that came last.
    Tensor(Tensor),
}

#[derive(Debug)]
enum State {
    Missing,
    Here,
    Failed(Box<Error>),
}

#[derive(Debug)]
struct Item {
    /// The stamp of the tensor's metadata; 0 for none.
    stamp: u64,
    version: i64,
    state: State,
    holding: Holding,
}

/// A published tensor that was pulled.
#[derive(Debug)]
pub struct Pulled {
    /// The tensor.
    pub tensor: Tensor,
    /// Its version.
    pub version: i64,
}

/// A published tensor.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    pub version: i64,
    pub meta: &'a [u8],
    /// Changes whenever the metadata or the payload's length changes. Never 0.
    pub stamp: u64,
    pub bytes: StoredBytes<'a>,
}

/// Where the bytes of a published tensor are.
#[derive(Debug, Clone, Copy)]
pub enum StoredBytes<'a> {
    /// In the store's own memory, together with others; at most [`INLINE_BYTES_MAX`](crate::shm::limits::INLINE_BYTES_MAX).
    Packed(&'a [u8]),
    /// In a payload of its own: shared if too large to travel within a frame, else in host memory.
    Payload(&'a Payload),
}

impl StoredBytes<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            StoredBytes::Packed(bytes) => bytes.len(),
            StoredBytes::Payload(payload) => payload.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes if they are in host memory; `None` if they are only in device memory.
    #[inline]
    pub fn host_bytes(&self) -> Option<VolatileSlice<'_>> {
        match self {
            StoredBytes::Packed(bytes) => Some((*bytes).into()),
            StoredBytes::Payload(payload) => payload.host_bytes(),
        }
    }
}

/// A place for each tensor of a key set, reused by the next pull.
#[derive(Debug, Default)]
pub struct PullBuffer {
    items: Vec<Item>,
    missing: usize,
}

impl PullBuffer {
    /// Places for `len` tensors, without memory: it is allocated by the receiving task as they come.
    pub fn new(len: usize) -> PullBuffer {
        let item = |_| Item { stamp: 0, version: 0, state: State::Missing, holding: Holding::Nothing };
        PullBuffer { items: (0..len).map(item).collect(), missing: len }
    }

    /// Gives a place memory of the caller's; the next tensor for it is written there if it fits.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn set_destination(&mut self, index: usize, memory: Buffer) {
        let item = &mut self.items[index];
        (item.stamp, item.holding) = (0, Holding::Memory(memory));
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The tensor with this number, as the last pull left it.
    ///
    /// # Errors
    /// Why it did not come; Unavailable before the first pull.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn get(&self, index: usize) -> Result<&Tensor, Error> {
        let item = &self.items[index];
        match (&item.state, &item.holding) {
            (State::Here, Holding::Tensor(tensor)) => Ok(tensor),
            (State::Failed(error), _) => Err((**error).clone()),
            _ => Err(Error::invalid("it has not been pulled, or was taken out")),
        }
    }

    /// The version of this tensor; meaningless where [`get`](Self::get) fails.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn version(&self, index: usize) -> i64 {
        self.items[index].version
    }

    /// Takes a tensor out; the next pull allocates new memory for it.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Panics
    /// If there is no such place.
    pub fn take(&mut self, index: usize) -> Result<Tensor, Error> {
        self.get(index)?;
        let item = &mut self.items[index];
        item.stamp = 0;
        item.state = State::Missing;
        match std::mem::replace(&mut item.holding, Holding::Nothing) {
            Holding::Tensor(tensor) => Ok(tensor),
            _ => unreachable!("just looked at"),
        }
    }

    /// Like [`take`](Self::take), with the version.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Panics
    /// If there is no such place.
    pub fn take_pulled(&mut self, index: usize) -> Result<Pulled, Error> {
        let version = self.version(index);
        self.take(index).map(|tensor| Pulled { tensor, version })
    }

    /// Drops memory that is shared with others.
    pub fn drop_shared(&mut self) {
        for item in &mut self.items {
            let is_shared = |tensor: &Tensor| !matches!(tensor.payload(), Payload::Owned(_));
            if let (State::Here, Holding::Tensor(tensor)) = (&item.state, &item.holding)
                && is_shared(tensor)
            {
                (item.stamp, item.state, item.holding) = (0, State::Missing, Holding::Nothing);
            }
        }
    }

    /// The first tensor that did not come, and why.
    pub fn first_error(&self) -> Option<(usize, &Error)> {
        self.items.iter().enumerate().find_map(|(index, item)| match &item.state {
            State::Failed(error) => Some((index, &**error)),
            _ => None,
        })
    }

    /// How many tensors have come, and their total bytes.
    pub fn came(&self) -> (usize, usize) {
        self.items.iter().fold((0, 0), |(count, bytes), item| match (&item.state, &item.holding) {
            (State::Here, Holding::Tensor(tensor)) => (count + 1, bytes + tensor.len()),
            _ => (count, bytes),
        })
    }

    /// Starts a new pull: every tensor is missing again.
    pub fn begin(&mut self) {
        // If all are missing already, nothing is to do: a tensor that comes or fails is counted once, and `take` does not
        // change the count.
        if self.missing == self.items.len() {
            return;
        }
        self.items.iter_mut().for_each(|item| item.state = State::Missing);
        self.missing = self.items.len();
    }

    /// True if every tensor has come or failed.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// True if that tensor has neither come nor failed.
    #[cfg(feature = "network")]
    #[inline]
    pub(crate) fn is_missing(&self, index: usize) -> bool {
        matches!(self.items[index].state, State::Missing)
    }

    /// A tensor will not come.
    pub fn fail(&mut self, index: usize, error: Error) {
        let item = &mut self.items[index];
        self.missing -= usize::from(matches!(item.state, State::Missing));
        item.state = State::Failed(Box::new(error));
    }

    /// No missing tensor will come; `error` gives the reason by number.
    pub fn fail_missing(&mut self, error: impl Fn(usize) -> Error) {
        for index in 0..self.items.len() {
            if matches!(self.items[index].state, State::Missing) {
                self.fail(index, error(index));
            }
        }
    }

    /// Takes in a tensor by copying it.
    #[cfg(feature = "network")]
    #[inline]
    pub(crate) fn put(
        &mut self,
        index: usize,
        known: &Known,
        version: i64,
        bytes: &[u8],
        allocate: impl FnOnce(usize) -> Result<Buffer, Error>,
    ) {
        let bytes = bytes.into();
        if !self.overwrite(index, known.stamp, version, bytes) {
            self.put_new(index, known, version, bytes, allocate);
        }
    }

    /// Overwrites a tensor of the same kind; false if there is none.
    #[inline(always)]
    fn overwrite(&mut self, index: usize, stamp: u64, version: i64, bytes: VolatileSlice<'_>) -> bool {
        let item = &mut self.items[index];
        if item.stamp != stamp {
            return false;
        }
        let Holding::Tensor(tensor) = &mut item.holding else { return false };
        let Some(memory) = tensor.buffer_mut() else { return false };
        debug_assert_eq!(memory.len(), bytes.len(), "a stamp has one length");
        item.version = version;
        if let Some(mut there) = memory.host_bytes_mut() {
            there.copy_from(bytes);
        } else if let Err(error) = memory.write(0, bytes) {
            self.fail(index, error.into());
            return true;
        }
        self.missing -= usize::from(matches!(item.state, State::Missing));
        item.state = State::Here;
        true
    }

    #[cold]
    fn put_new(
        &mut self,
        index: usize,
        known: &Known,
        version: i64,
        bytes: VolatileSlice<'_>,
        allocate: impl FnOnce(usize) -> Result<Buffer, Error>,
    ) {
        match self.lend(index, known.len, allocate) {
            Ok(mut memory) => match memory.write(0, bytes) {
                Ok(()) => self.give_back(index, known, version, memory),
                Err(error) => self.fail_with(index, memory, error.into()),
            },
            Err(full) => self.fail(index, full),
        }
    }

    /// A tensor will not come; `memory` is what was [lent](Self::lend) for it.
    pub fn fail_with(&mut self, index: usize, memory: Buffer, error: Error) {
        self.take_back(index, memory);
        self.fail(index, error);
    }

    /// Lends memory of exactly `len` bytes for a tensor, from its place or new; to be [filled](Self::fill). It may be device
    /// memory.
    ///
    /// # Errors
    /// As `allocate`.
    pub fn lend(
        &mut self,
        index: usize,
        len: usize,
        allocate: impl FnOnce(usize) -> Result<Buffer, Error>,
    ) -> Result<Buffer, Error> {
        match std::mem::replace(&mut self.items[index].holding, Holding::Nothing) {
            Holding::Memory(mut memory) if memory.len() >= len => {
                memory.truncate(len);
                Ok(memory)
            }
            Holding::Tensor(tensor) if tensor.len() == len => match tensor.into_parts().1 {
                Payload::Owned(memory) => Ok(memory),
                Payload::Shared(_) | Payload::Bytes(_) => allocate(len),
            },
            _ => allocate(len),
        }
    }

    /// Like [`lend`](Self::lend), for a link. If the place has device memory that the link cannot reach, it keeps that memory,
    /// which is written when the newly allocated memory [comes back](Self::land).
    #[cfg(feature = "network")]
    pub(crate) fn lend_for(
        &mut self,
        index: usize,
        len: usize,
        outbox: Option<&mut Outbox>,
        allocate: impl FnOnce(usize) -> Result<Buffer, Error>,
    ) -> Result<Buffer, Error> {
        match self.device_at(index, len) {
            Some(memory) if !outbox.is_some_and(|outbox| outbox.reaches(memory.direct(), len)) => allocate(len),
            _ => self.lend(index, len, allocate),
        }
    }

    /// A place's device memory, if it has any, with room for `len` bytes.
    #[cfg(feature = "network")]
    fn device_at(&mut self, index: usize, len: usize) -> Option<&mut Buffer> {
        let held = match &mut self.items[index].holding {
            Holding::Memory(memory) => Some(memory),
            Holding::Tensor(tensor) if tensor.len() == len => tensor.buffer_mut(),
            _ => None,
        };
        held.filter(|memory| memory.device().is_some() && memory.len() >= len)
    }

    /// Takes in a tensor from a store by copying it.
    ///
    /// # Panics
    /// If it is in device memory: copy it to [lent](Self::lend) memory instead.
    #[inline]
    pub fn copy_in(
        &mut self,
        index: usize,
        stored: &Stored<'_>,
        allocate: impl FnOnce(usize) -> Result<Buffer, Error>,
    ) {
        let bytes = stored.bytes.host_bytes().expect("a device's is copied to memory that was lent for it");
        if !self.overwrite(index, stored.stamp, stored.version, bytes) {
            let meta = TensorMeta::from_own_wire(stored.meta.into());
            self.put_new(
                index,
                &Known { stamp: stored.stamp, meta, len: bytes.len() },
                stored.version,
                bytes,
                allocate,
            );
        }
    }

    /// Takes in a tensor that is already in its memory. Shared memory is never written to: the next pull allocates other
    /// memory.
    pub fn fill(&mut self, index: usize, stamp: u64, meta: TensorMeta, version: i64, memory: impl Into<Payload>) {
        let memory = memory.into();
        let len = memory.len();
        self.give_back(index, &Known { stamp, meta, len }, version, memory);
    }

    /// Takes back filled memory that was [lent to a link](Self::lend_for). If the place has device memory, the tensor is copied
    /// there.
    #[cfg(feature = "network")]
    pub(crate) fn land(&mut self, index: usize, known: &Known, version: i64, memory: Buffer) {
        if memory.device().is_none()
            && let Some(place) = self.device_at(index, known.len)
        {
            return match place.write(0, memory.volatile()) {
                Ok(()) => {
                    let unused = |_| unreachable!("there is memory of a device");
                    let place = self.lend(index, known.len, unused).expect("just looked at");
                    self.give_back(index, known, version, place);
                }
                Err(error) => self.fail(index, error.into()),
            };
        }
        if let Err(error) = memory.flush() {
            self.take_back(index, memory);
            return self.fail(index, error.into());
        }
        self.give_back(index, known, version, memory);
    }

    /// Takes back lent memory that was filled.
    fn give_back(&mut self, index: usize, known: &Known, version: i64, memory: impl Into<Payload>) {
        let item = &mut self.items[index];
        item.holding = Holding::Tensor(Tensor::from_parts(known.meta.clone(), memory));
        (item.stamp, item.version) = (known.stamp, version);
        self.missing -= usize::from(matches!(item.state, State::Missing));
        item.state = State::Here;
    }

    /// Takes back lent memory that was not filled. A place that kept its device memory does not need it.
    pub(crate) fn take_back(&mut self, index: usize, memory: Buffer) {
        let item = &mut self.items[index];
        if matches!(item.holding, Holding::Nothing) {
            (item.stamp, item.holding) = (0, Holding::Memory(memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn known(stamp: u64, elements: u64) -> Known {
        let meta = TensorMeta::new(DType::U8, &[elements]).unwrap();
        Known { stamp, meta, len: elements as usize }
    }

    fn heap(len: usize) -> Result<Buffer, Error> {
        Ok(Buffer::of_len(len))
    }

    #[test]
    fn all_is_missing_again_whatever_became_of_the_pull_before() {
        let mut pull_buffer = PullBuffer::new(3);
        pull_buffer.begin();
        pull_buffer.put(0, &known(1, 10), 1, &[1; 10], heap);
        pull_buffer.take(0).unwrap();
        pull_buffer.put(1, &known(1, 10), 1, &[1; 10], heap);
        pull_buffer.fail(2, Error::invalid("it does"));
        assert_eq!((pull_buffer.is_complete(), pull_buffer.came()), (true, (1, 10)));
        for came in 0..3 {
            pull_buffer.begin();
            assert!((0..3).all(|index| pull_buffer.get(index).is_err()) && pull_buffer.first_error().is_none());
            assert_eq!((pull_buffer.is_complete(), pull_buffer.came()), (false, (0, 0)));
            (0..came).for_each(|index| pull_buffer.put(index, &known(1, 10), 2, &[2; 10], heap));
            assert_eq!(pull_buffer.came(), (came, 10 * came));
        }
    }

    #[test]
    fn another_shape_takes_other_memory_where_it_must() {
        let mut pull_buffer = PullBuffer::new(1);
        pull_buffer.set_destination(0, Buffer::of_len(100));
        pull_buffer.put(0, &known(1, 80), 1, &[1; 80], |_| panic!("the caller's memory is large enough"));
        pull_buffer.put(0, &known(2, 90), 2, &[2; 90], heap);
        assert_eq!(pull_buffer.get(0).unwrap().shape()[..], [90]);
        pull_buffer.begin();
        pull_buffer.put(0, &known(3, 91), 3, &[3; 91], |_| Err(Error::full("x", "full")));
        assert!(pull_buffer.is_complete());
        assert_eq!(pull_buffer.first_error().unwrap().0, 0);
    }
}
