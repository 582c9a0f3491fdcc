//! The collectives of one host, as rounds. Each is the same for all ranks; tensors larger than a slot go in pieces, of which the next is
//! written while the last is read.
//!
//! Reductions fold the ranks' elements in the order of the ranks, each element in one place: so all ranks have the same bits, and the same
//! in each run. Small tensors are reduced by every rank, in one round; of large ones each rank reduces a part, which it gives to the
//! others in a second round (reduce-scatter, then all-gather, as Rabenseifner's algorithm does).

use std::ops::Range;

use sealane_transport::{
    Error,
    shm::group::{SLOT_BYTES, Stage},
};

use super::{
    reduce::Reduction,
    rounds::{Reader, Rounds, part_of_slot, rounds_of},
};
use crate::limits::GROUP_ONE_SHOT_BYTES;

/// The part of a piece of so many bytes, of elements of `element` bytes, that a rank reduces.
fn share(bytes: usize, element: usize, rank: usize, size: usize) -> Range<usize> {
    let count = bytes / element;
    // No product overflows: a piece is no larger than a slot.
    count * rank / size * element..count * (rank + 1) / size * element
}

impl Rounds {
    fn size(&self) -> usize {
        self.members().size()
    }

    fn rank(&self) -> usize {
        self.members().rank
    }

    /// `rounds` times, `write` fills this rank's slot with something of `data`, and `read` takes what the others have written.
    fn exchange<D: ?Sized>(
        &mut self,
        rounds: usize,
        data: &mut D,
        write: impl Fn(&D, usize, &mut [u8]),
        read: impl Fn(&Reader, &mut D, usize, u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        write(data, 0, self.slot(Stage::Given)?);
        let mut posted = self.post(Stage::Given);
        for number in 0..rounds {
            let round = posted;
            if number + 1 < rounds {
                write(data, number + 1, self.slot(Stage::Given)?);
                posted = self.post(Stage::Given);
            }
            read(self.reader(), data, number, round)?;
            self.done(Stage::Given, round);
        }
        Ok(())
    }

    pub(super) fn barrier(&mut self) -> Result<(), Error> {
        self.exchange(
            1,
            &mut (),
            |(), _, _| {},
            |reader, (), _, round| {
                reader.others_from_next().try_for_each(|rank| reader.read(Stage::Given, rank, round).map(drop))
            },
        )
    }

    /// `data` of one rank becomes that of all.
    pub(super) fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), Error> {
        let (rounds, is_root) = (rounds_of(data.len(), SLOT_BYTES), self.rank() == root);
        self.exchange(
            rounds,
            data,
            |data, number, slot| {
                if is_root {
                    let piece = piece(data.len(), SLOT_BYTES, number);
                    slot[..piece.len()].copy_from_slice(&data[piece]);
                }
            },
            |reader, data, number, round| {
                if !is_root {
                    let piece = piece(data.len(), SLOT_BYTES, number);
                    let len = piece.len();
                    data[piece].copy_from_slice(&reader.read(Stage::Given, root, round)?[..len]);
                }
                Ok(())
            },
        )
    }

    /// `whole` is a part of each rank, of which this rank's is there.
    pub(super) fn all_gather(&mut self, whole: &mut [u8]) -> Result<(), Error> {
        let part = whole.len() / self.size();
        let own = self.rank() * part;
        self.exchange(
            rounds_of(part, SLOT_BYTES),
            whole,
            |whole, number, slot| {
                let piece = piece(part, SLOT_BYTES, number);
                slot[..piece.len()].copy_from_slice(&whole[own..][piece]);
            },
            |reader, whole, number, round| {
                reader.others_from_next().try_for_each(|rank| {
                    let piece = piece(part, SLOT_BYTES, number);
                    let len = piece.len();
                    whole[rank * part..][piece].copy_from_slice(&reader.read(Stage::Given, rank, round)?[..len]);
                    Ok(())
                })
            },
        )
    }

    /// The `part` of each rank comes to `whole` of one, which has its own part there.
    pub(super) fn gather(&mut self, part: &[u8], mut whole: Option<&mut [u8]>) -> Result<(), Error> {
        self.exchange(
            rounds_of(part.len(), SLOT_BYTES),
            &mut whole,
            |_, number, slot| {
                let piece = piece(part.len(), SLOT_BYTES, number);
                slot[..piece.len()].copy_from_slice(&part[piece]);
            },
            |reader, whole, number, round| {
                let Some(whole) = whole else { return Ok(()) };
                reader.others_from_next().try_for_each(|rank| {
                    let piece = piece(part.len(), SLOT_BYTES, number);
                    let len = piece.len();
                    whole[rank * part.len()..][piece].copy_from_slice(&reader.read(Stage::Given, rank, round)?[..len]);
                    Ok(())
                })
            },
        )
    }

    /// Each rank gets its `part` of `whole`, which one has.
    pub(super) fn scatter(&mut self, whole: Option<&[u8]>, part: &mut [u8], root: usize) -> Result<(), Error> {
        let (size, own, per) = (self.size(), self.rank(), part_of_slot(self.size()));
        let len = part.len();
        if let Some(whole) = whole {
            part.copy_from_slice(&whole[own * len..][..len]);
        }
        self.exchange(
            rounds_of(len, per),
            part,
            |_, number, slot| {
                let Some(whole) = whole else { return };
                for rank in 0..size {
                    let piece = piece(len, per, number);
                    slot[rank * per..][..piece.len()].copy_from_slice(&whole[rank * len..][piece]);
                }
            },
            |reader, part, number, round| {
                if whole.is_none() {
                    let piece = piece(len, per, number);
                    let count = piece.len();
                    part[piece].copy_from_slice(&reader.read(Stage::Given, root, round)?[own * per..][..count]);
                }
                Ok(())
            },
        )
    }

    /// Each rank has a part for each rank in `from`, and gets one of each in `to`, all of one length.
    pub(super) fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), Error> {
        let len = from.len() / self.size();
        let places: Vec<Range<usize>> = (0..self.size()).map(|rank| rank * len..(rank + 1) * len).collect();
        self.all_to_all_parts(from, to, (&places, &places), len)
    }

    /// The same with parts of any length, which the others must expect so.
    pub(super) fn all_to_all_uneven(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        (given, wanted): (&[Range<usize>], &[Range<usize>]),
    ) -> Result<(), Error> {
        let size = self.size();
        let lengths: Vec<u8> = given.iter().flat_map(|part| (part.len() as u64).to_ne_bytes()).collect();
        let mut table = vec![0; lengths.len() * size];
        table[self.rank() * lengths.len()..][..lengths.len()].copy_from_slice(&lengths);
        self.all_gather(&mut table)?;
        let table = table.as_chunks::<8>().0;
        let length = |from: usize, to: usize| u64::from_ne_bytes(table[from * size + to]);
        for (rank, part) in wanted.iter().enumerate() {
            if length(rank, self.rank()) != part.len() as u64 {
                let (gives, own) = (length(rank, self.rank()), self.rank());
                let reason = format!("rank {rank} gives rank {own} {gives} bytes, which expects {}", part.len());
                return Err(self.members().fail(Error::invalid(reason)));
            }
        }
        let longest = (0..size * size).filter(|pair| pair / size != pair % size);
        let longest = longest.map(|pair| length(pair / size, pair % size)).max().unwrap_or(0);
        self.all_to_all_parts(from, to, (given, wanted), usize::try_from(longest).unwrap_or(usize::MAX))
    }

    /// `longest` is the longest part of all ranks.
    fn all_to_all_parts(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        (given, wanted): (&[Range<usize>], &[Range<usize>]),
        longest: usize,
    ) -> Result<(), Error> {
        let (own, per) = (self.rank(), part_of_slot(self.size()));
        to[wanted[own].clone()].copy_from_slice(&from[given[own].clone()]);
        self.exchange(
            rounds_of(longest, per),
            to,
            |_, number, slot| {
                for (rank, part) in given.iter().enumerate().filter(|(rank, _)| *rank != own) {
                    let piece = piece(part.len(), per, number);
                    slot[rank * per..][..piece.len()].copy_from_slice(&from[part.clone()][piece]);
                }
            },
            |reader, to, number, round| {
                reader.others_from_next().try_for_each(|rank| {
                    let piece = piece(wanted[rank].len(), per, number);
                    let len = piece.len();
                    let slot = reader.read(Stage::Given, rank, round)?;
                    to[wanted[rank].clone()][piece].copy_from_slice(&slot[own * per..][..len]);
                    Ok(())
                })
            },
        )
    }

    /// `data` of all ranks becomes what they reduce to; elements have `element` bytes. With a `root`, of that rank alone.
    pub(super) fn all_reduce(
        &mut self,
        data: &mut [u8],
        element: usize,
        reduction: &Reduction,
        root: Option<usize>,
    ) -> Result<(), Error> {
        if data.len() <= GROUP_ONE_SHOT_BYTES {
            self.reduce_at_once(data, reduction, root)
        } else {
            self.reduce_by_parts(data, element, reduction, root)
        }
    }

    fn reduce_at_once(&mut self, data: &mut [u8], reduction: &Reduction, root: Option<usize>) -> Result<(), Error> {
        let (own, size, len) = (self.rank(), self.size(), data.len());
        self.slot(Stage::Given)?[..len].copy_from_slice(data);
        let round = self.post(Stage::Given);
        if root.is_none_or(|root| root == own) {
            let (mine, reader) = self.own_and_reader(Stage::Given, round);
            fold_all(data, size, reduction, |rank| {
                let slot = if rank == own { mine } else { reader.read(Stage::Given, rank, round)? };
                Ok(&slot[..len])
            })?;
        }
        self.done(Stage::Given, round);
        Ok(())
    }

    fn reduce_by_parts(
        &mut self,
        data: &mut [u8],
        element: usize,
        reduction: &Reduction,
        root: Option<usize>,
    ) -> Result<(), Error> {
        let (own, size) = (self.rank(), self.size());
        let rounds = rounds_of(data.len(), SLOT_BYTES);
        let mut posted = self.give_piece(data, element, 0)?;
        for number in 0..rounds {
            let given = posted;
            if number + 1 < rounds {
                posted = self.give_piece(data, element, number + 1)?;
            }
            let range = piece(data.len(), SLOT_BYTES, number);
            let piece = &mut data[range];
            let part = share(piece.len(), element, own, size);
            let (made, reader) = self.slot_and_reader(Stage::Made)?;
            let made = &mut made[..part.len()];
            fold_all(made, size, reduction, |rank| match rank == own {
                true => Ok(&piece[part.clone()]),
                false => reader.read(Stage::Given, rank, given).map(|slot| &slot[part.clone()]),
            })?;
            if root.is_none_or(|root| root == own) {
                piece[part].copy_from_slice(made);
            }
            self.done(Stage::Given, given);
            let round = self.post(Stage::Made);
            if root.is_none_or(|root| root == own) {
                let reader = self.reader();
                for rank in reader.others_from_next() {
                    let part = share(piece.len(), element, rank, size);
                    let len = part.len();
                    piece[part].copy_from_slice(&reader.read(Stage::Made, rank, round)?[..len]);
                }
            }
            self.done(Stage::Made, round);
        }
        Ok(())
    }

    /// Writes what the other ranks reduce of a piece. What this one does stays where it is.
    fn give_piece(&mut self, data: &[u8], element: usize, number: usize) -> Result<u32, Error> {
        let (own, size) = (self.rank(), self.size());
        let piece = &data[piece(data.len(), SLOT_BYTES, number)];
        let part = share(piece.len(), element, own, size);
        let slot = &mut self.slot(Stage::Given)?[..piece.len()];
        slot[..part.start].copy_from_slice(&piece[..part.start]);
        slot[part.end..].copy_from_slice(&piece[part.end..]);
        Ok(self.post(Stage::Given))
    }

    /// Each rank has a part for each rank in `from`, and gets in `to` what those for it reduce to.
    pub(super) fn reduce_scatter(&mut self, from: &[u8], to: &mut [u8], reduction: &Reduction) -> Result<(), Error> {
        let (own, size, per) = (self.rank(), self.size(), part_of_slot(self.size()));
        let len = to.len();
        self.exchange(
            rounds_of(len, per),
            to,
            |_, number, slot| {
                for rank in (0..size).filter(|rank| *rank != own) {
                    let piece = piece(len, per, number);
                    slot[rank * per..][..piece.len()].copy_from_slice(&from[rank * len..][piece]);
                }
            },
            |reader, to, number, round| {
                let piece = piece(len, per, number);
                let mine = &from[own * len..][piece.clone()];
                let to = &mut to[piece];
                let of = |rank: usize| match rank == own {
                    true => Ok(mine),
                    false => reader.read(Stage::Given, rank, round).map(|slot| &slot[own * per..][..mine.len()]),
                };
                fold_all(to, size, reduction, of)?;
                Ok(())
            },
        )
    }
}

/// Folds what `of` gives for each rank, in their order.
fn fold_all<'s>(
    into: &mut [u8],
    size: usize,
    reduction: &Reduction,
    of: impl Fn(usize) -> Result<&'s [u8], Error>,
) -> Result<(), Error> {
    match size {
        1 => into.copy_from_slice(of(0)?),
        _ => {
            reduction.fold_two(into, of(0)?, of(1)?);
            (2..size).try_for_each(|rank| of(rank).map(|other| reduction.fold(into, other)))?;
        }
    }
    reduction.finish(into, size);
    Ok(())
}

/// The bytes of the piece of that number of so many that go by `part` each; none where they are fewer.
fn piece(bytes: usize, part: usize, number: usize) -> Range<usize> {
    let start = (number * part).min(bytes);
    start..(start + part).min(bytes)
}
