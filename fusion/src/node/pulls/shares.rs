//! How much of a store each task has: no task takes the room of all others, in tensors or in bytes of names.
//!
//! Pure. Of the last [part](PUBLISHED_SHARED_PART) of the room for tensors, a task gets at most half of what is free; a store with room for
//! fewer than so many parts has no such part.

use sealane_transport::{Error, TensorMeta};

use crate::limits::{PUBLISHED_NAME_BYTES, PUBLISHED_NAME_BYTES_MIN, PUBLISHED_SHARED_PART};

const SETTING: &str = "fusion.published_tensors_max";

/// What a task has published.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) tensors: usize,
    /// Of keys and metadata.
    pub(super) name_bytes: usize,
}

/// The shares of a store's tasks; see the module.
#[derive(Debug)]
pub(super) struct Shares {
    /// All tasks together.
    tensors_max: usize,
    tensors: usize,
    /// By task.
    of: Vec<Share>,
}

/// The bytes of a tensor that count as its name.
pub(super) fn name_bytes(key: &str, meta: &TensorMeta) -> usize {
    key.len() + meta.as_wire().len()
}

impl Shares {
    pub(super) fn new(tensors_max: usize) -> Shares {
        Shares { tensors_max, tensors: 0, of: Vec::new() }
    }

    pub(super) fn tensors_max(&self) -> usize {
        self.tensors_max
    }

    /// Tensors of all tasks.
    pub(super) fn tensors(&self) -> usize {
        self.tensors
    }

    pub(super) fn of(&self, task: u16) -> Share {
        self.of.get(usize::from(task)).copied().unwrap_or_default()
    }

    /// Checks whether a task may publish a tensor, in place of one whose name has `replaced` bytes if there is one.
    ///
    /// # Errors
    /// ResourceExhausted.
    pub(super) fn check(&self, task: u16, name_bytes: usize, replaced: Option<usize>) -> Result<(), Error> {
        let share = self.of(task);
        if replaced.is_none() {
            self.check_tensors(share)?;
        }
        let bytes = share.name_bytes - replaced.unwrap_or(0) + name_bytes;
        let most = (self.tensors_max * PUBLISHED_NAME_BYTES).max(PUBLISHED_NAME_BYTES_MIN);
        if bytes > most {
            let reason =
                format!("the keys and metadata that a task has published would have {bytes} bytes of at most {most}");
            return Err(Error::full(SETTING, reason));
        }
        Ok(())
    }

    fn check_tensors(&self, Share { tensors, .. }: Share) -> Result<(), Error> {
        let free = self.tensors_max - self.tensors;
        if free == 0 {
            return Err(Error::full(SETTING, format!("{} keys are published", self.tensors_max)));
        }
        if free <= self.tensors_max / PUBLISHED_SHARED_PART && tensors >= free {
            let reason = format!("the task has published {tensors} keys, and room for {free} is left for other tasks");
            return Err(Error::full(SETTING, reason));
        }
        Ok(())
    }

    pub(super) fn add(&mut self, task: u16, name_bytes: usize) {
        let task = usize::from(task);
        if self.of.len() <= task {
            self.of.resize(task + 1, Share::default());
        }
        self.tensors += 1;
        self.of[task].tensors += 1;
        self.of[task].name_bytes += name_bytes;
    }

    pub(super) fn remove(&mut self, task: u16, name_bytes: usize) {
        let share = &mut self.of[usize::from(task)];
        share.tensors -= 1;
        share.name_bytes -= name_bytes;
        self.tensors -= 1;
    }

    /// Panics unless the tasks have exactly these tensors, each given by its task and the bytes of its name.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, published: impl Iterator<Item = (u16, usize)>) {
        let mut counted = Shares::new(self.tensors_max);
        published.for_each(|(task, name_bytes)| counted.add(task, name_bytes));
        assert_eq!(self.tensors, counted.tensors, "another bound than the one that is set");
        let shares = |shares: &Shares| (0..self.of.len() as u16).map(|task| shares.of(task)).collect::<Vec<_>>();
        assert_eq!(shares(self), shares(&counted), "a task could publish less than it may, or more");
        assert!(self.tensors <= self.tensors_max, "{SETTING} would be no bound");
    }
}
