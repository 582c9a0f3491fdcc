//! Collectives of the ranks of one host, as rounds. Rounds are the same for all ranks; tensors larger than a slot go in pieces, the next
//! of which is written while the last is read. Ranks are places on this host, unless they are parts of a tensor.
//!
//! Reductions fold the ranks' elements in the order of the ranks, each element in one place: so all ranks have the same bits, and the same
//! in each run. Small tensors are reduced by every rank, in one round; of large ones each rank reduces a part, which it sends to the
//! others in a second round (reduce-scatter, then all-gather, as in Rabenseifner's algorithm).

use std::ops::Range;

use sealane_runtime::copy_bytes;
use sealane_transport::{
    Error,
    shm::group::{SLOT_BYTES, Stage},
};

use super::{
    hosts::collectives::Wants,
    reduce::Reduction,
    rounds::{Reader, Rounds, part_of_slot, rounds_of},
};

/// The part of a piece that rank `number` of `count` reduces, in whole elements of `element` bytes; none if there are too few.
pub(super) fn share(bytes: usize, element: usize, number: usize, count: usize) -> Range<usize> {
    let elements = bytes / element;
    // No product overflows: a piece is no larger than a slot.
    let at = |number: usize| elements * number.min(count) / count * element;
    at(number)..at(number + 1)
}

impl Rounds {
    fn size(&self) -> usize {
        self.members().size()
    }

    fn rank(&self) -> usize {
        self.members().rank
    }

    /// In each of `rounds`, `write` fills this rank's slot from `data`, and `read` takes what the others have written.
    fn exchange<D: ?Sized>(
        &mut self,
        rounds: usize,
        data: &mut D,
        write: impl Fn(&D, usize, &mut [u8]),
        read: impl Fn(&Reader, &mut D, usize, u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Nobody reads what a rank alone on its host writes.
        let is_alone = self.size() == 1;
        let write = |data: &D, number: usize, slot: &mut [u8]| {
            if !is_alone {
                write(data, number, slot)
            }
        };
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

    /// Copies `data` of rank `root` to all.
    pub(super) fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), Error> {
        let (rounds, is_root) = (rounds_of(data.len(), SLOT_BYTES), self.rank() == root);
        self.exchange(
            rounds,
            data,
            |data, number, slot| {
                if is_root {
                    let piece = piece(data.len(), SLOT_BYTES, number);
                    copy_bytes(&mut slot[..piece.len()], &data[piece]);
                }
            },
            |reader, data, number, round| {
                if !is_root {
                    let piece = piece(data.len(), SLOT_BYTES, number);
                    let len = piece.len();
                    copy_bytes(&mut data[piece], &reader.read(Stage::Given, root, round)?[..len]);
                }
                Ok(())
            },
        )
    }

    /// `whole` has a part for each rank of the group; each place of this host brings the parts that `held` lists for it.
    pub(super) fn all_gather(&mut self, whole: &mut [u8], held: &[Vec<usize>]) -> Result<(), Error> {
        let part = whole.len() / held.iter().map(Vec::len).sum::<usize>();
        let (per, own) = (part_of_slot(held.iter().map(Vec::len).max().unwrap_or(1)), self.rank());
        self.exchange(
            rounds_of(part, per),
            whole,
            |whole, number, slot| {
                let piece = piece(part, per, number);
                for (place, rank) in slot.chunks_mut(per).zip(&held[own]) {
                    copy_bytes(&mut place[..piece.len()], &whole[rank * part..][piece.clone()]);
                }
            },
            |reader, whole, number, round| {
                reader.others_from_next().try_for_each(|other| {
                    let piece = piece(part, per, number);
                    let slot = reader.read(Stage::Given, other, round)?;
                    for (place, rank) in slot.chunks(per).zip(&held[other]) {
                        copy_bytes(&mut whole[rank * part..][piece.clone()], &place[..piece.len()]);
                    }
                    Ok(())
                })
            },
        )
    }

    /// Collects the `part` of each rank in `whole` of one rank, which has its own part there already.
    pub(super) fn gather(&mut self, part: &[u8], mut whole: Option<&mut [u8]>) -> Result<(), Error> {
        self.exchange(
            rounds_of(part.len(), SLOT_BYTES),
            &mut whole,
            |_, number, slot| {
                let piece = piece(part.len(), SLOT_BYTES, number);
                copy_bytes(&mut slot[..piece.len()], &part[piece]);
            },
            |reader, whole, number, round| {
                let Some(whole) = whole else { return Ok(()) };
                reader.others_from_next().try_for_each(|rank| {
                    let (piece, place) = (piece(part.len(), SLOT_BYTES, number), reader.number_of(rank) * part.len());
                    let len = piece.len();
                    copy_bytes(&mut whole[place..][piece], &reader.read(Stage::Given, rank, round)?[..len]);
                    Ok(())
                })
            },
        )
    }

    /// Gives each rank its `part` of `whole`, which one rank has.
    pub(super) fn scatter(&mut self, whole: Option<&[u8]>, part: &mut [u8], root: usize) -> Result<(), Error> {
        let (own, per, len) = (self.rank(), part_of_slot(self.size()), part.len());
        let numbers: Vec<usize> = (0..self.size()).map(|rank| self.members().number_of(rank)).collect();
        if let Some(whole) = whole {
            copy_bytes(part, &whole[numbers[own] * len..][..len]);
        }
        self.exchange(
            rounds_of(len, per),
            part,
            |_, number, slot| {
                let Some(whole) = whole else { return };
                let piece = piece(len, per, number);
                for (place, rank) in slot.chunks_mut(per).zip(&numbers) {
                    copy_bytes(&mut place[..piece.len()], &whole[rank * len..][piece.clone()]);
                }
            },
            |reader, part, number, round| {
                if whole.is_none() {
                    let piece = piece(len, per, number);
                    let count = piece.len();
                    copy_bytes(&mut part[piece], &reader.read(Stage::Given, root, round)?[own * per..][..count]);
                }
                Ok(())
            },
        )
    }

    /// Each rank has a part for each rank of the group in `from`, and one of each in `to`: copies those of this host. `longest` is the
    /// longest part of all.
    pub(super) fn all_to_all_parts(
        &mut self,
        from: &[u8],
        to: &mut [u8],
        (given, wanted): (&[Range<usize>], &[Range<usize>]),
        longest: usize,
    ) -> Result<(), Error> {
        let (own, per) = (self.rank(), part_of_slot(self.size()));
        let numbers: Vec<usize> = (0..self.size()).map(|rank| self.members().number_of(rank)).collect();
        copy_bytes(&mut to[wanted[numbers[own]].clone()], &from[given[numbers[own]].clone()]);
        self.exchange(
            rounds_of(longest, per),
            to,
            |_, number, slot| {
                for (place, rank) in slot.chunks_mut(per).zip(&numbers).filter(|(_, rank)| **rank != numbers[own]) {
                    let part = &from[given[*rank].clone()];
                    let part = &part[piece(part.len(), per, number)];
                    copy_bytes(&mut place[..part.len()], part);
                }
            },
            |reader, to, number, round| {
                reader.others_from_next().try_for_each(|rank| {
                    let part = &mut to[wanted[numbers[rank]].clone()];
                    let range = piece(part.len(), per, number);
                    let len = range.len();
                    let slot = reader.read(Stage::Given, rank, round)?;
                    copy_bytes(&mut part[range], &slot[own * per..][..len]);
                    Ok(())
                })
            },
        )
    }

    /// Reduces `data` of all ranks, each rank for itself.
    pub(super) fn reduce_at_once(&mut self, data: &mut [u8], reduction: &Reduction, wants: Wants) -> Result<(), Error> {
        let (own, size, len) = (self.rank(), self.size(), data.len());
        copy_bytes(&mut self.slot(Stage::Given)?[..len], data);
        let round = self.post(Stage::Given);
        if wants == Wants::Result {
            let (mine, reader) = self.own_and_reader(Stage::Given, round);
            fold_all(data, size, reduction, |rank| {
                let slot = if rank == own { mine } else { reader.read(Stage::Given, rank, round)? };
                Ok(&slot[..len])
            })?;
        }
        self.done(Stage::Given, round);
        Ok(())
    }

    /// Reduces by parts, one for each rank; elements have `element` bytes.
    pub(super) fn reduce_by_parts(
        &mut self,
        data: &mut [u8],
        element: usize,
        reduction: &Reduction,
        wants: Wants,
    ) -> Result<(), Error> {
        let (own, size) = (self.rank(), self.size());
        let rounds = rounds_of(data.len(), SLOT_BYTES);
        let mut posted = self.give_piece(data, element, size, 0)?;
        for number in 0..rounds {
            let given = posted;
            if number + 1 < rounds {
                posted = self.give_piece(data, element, size, number + 1)?;
            }
            let range = piece(data.len(), SLOT_BYTES, number);
            let piece = &mut data[range];
            let part = share(piece.len(), element, own, size);
            let (made, reader) = self.slot_and_reader(Stage::Made)?;
            let made = &mut made[..part.len()];
            reader.fold_part(piece, part.clone(), given, made, reduction)?;
            if wants == Wants::Result {
                copy_bytes(&mut piece[part], made);
            }
            self.done(Stage::Given, given);
            self.gather_parts(piece, element, size, wants)?;
        }
        Ok(())
    }

    /// Writes what the other ranks reduce of a piece, one part for each of the first `count`. This rank's own part stays in place.
    pub(super) fn give_piece(
        &mut self,
        data: &[u8],
        element: usize,
        count: usize,
        number: usize,
    ) -> Result<u32, Error> {
        let own = self.rank();
        let piece = &data[piece(data.len(), SLOT_BYTES, number)];
        let part = share(piece.len(), element, own, count);
        let slot = &mut self.slot(Stage::Given)?[..piece.len()];
        copy_bytes(&mut slot[..part.start], &piece[..part.start]);
        copy_bytes(&mut slot[part.end..], &piece[part.end..]);
        Ok(self.post(Stage::Given))
    }

    /// Folds all ranks' contributions to a part of a piece; this rank's is in `piece`.
    pub(super) fn fold_part(
        &mut self,
        piece: &[u8],
        part: Range<usize>,
        given: u32,
        into: &mut [u8],
        reduction: &Reduction,
    ) -> Result<(), Error> {
        self.reader().fold_part(piece, part, given, into, reduction)?;
        self.done(Stage::Given, given);
        Ok(())
    }

    /// Gives the others the part of a piece that this rank has reduced, and gets theirs.
    pub(super) fn spread_part(
        &mut self,
        piece: &mut [u8],
        element: usize,
        count: usize,
        part: &[u8],
        wants: Wants,
    ) -> Result<(), Error> {
        let (own, is_alone) = (self.rank(), self.size() == 1);
        let made = self.slot(Stage::Made)?;
        if !is_alone {
            copy_bytes(&mut made[..part.len()], part);
        }
        if wants == Wants::Result {
            let range = share(piece.len(), element, own, count);
            copy_bytes(&mut piece[range], part);
        }
        self.gather_parts(piece, element, count, wants)
    }

    /// Shares the result in this rank's slot with the others, and gets theirs.
    fn gather_parts(&mut self, piece: &mut [u8], element: usize, count: usize, wants: Wants) -> Result<(), Error> {
        let round = self.post(Stage::Made);
        if wants == Wants::Result {
            let reader = self.reader();
            for rank in reader.others_from_next() {
                let part = share(piece.len(), element, rank, count);
                let len = part.len();
                copy_bytes(&mut piece[part], &reader.read(Stage::Made, rank, round)?[..len]);
            }
        }
        self.done(Stage::Made, round);
        Ok(())
    }

    /// Each rank has a part for each rank in `from`, and gets in `to` the reduction of those meant for it.
    pub(super) fn reduce_scatter(&mut self, from: &[u8], to: &mut [u8], reduction: &Reduction) -> Result<(), Error> {
        let (own, size, per) = (self.rank(), self.size(), part_of_slot(self.size()));
        let len = to.len();
        self.exchange(
            rounds_of(len, per),
            to,
            |_, number, slot| {
                for rank in (0..size).filter(|rank| *rank != own) {
                    let piece = piece(len, per, number);
                    copy_bytes(&mut slot[rank * per..][..piece.len()], &from[rank * len..][piece]);
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

    /// One round of a group's reduce-scatter: reduces a piece of the parts of `len` bytes that `from` has for all ranks, for this rank's
    /// `targets`, into `made`, with `per` bytes for each.
    pub(super) fn reduce_parts(
        &mut self,
        from: &[u8],
        (len, piece, per): (usize, Range<usize>, usize),
        targets: &[usize],
        made: &mut [u8],
        reduction: &Reduction,
    ) -> Result<(), Error> {
        let (own, size) = (self.rank(), self.size());
        let slot = self.slot(Stage::Given)?;
        if size > 1 {
            for (place, part) in slot.chunks_mut(per).zip(from.chunks(len.max(1))) {
                copy_bytes(&mut place[..piece.len()], &part[piece.clone()]);
            }
        }
        let round = self.post(Stage::Given);
        let reader = self.reader();
        for (made, target) in made.chunks_mut(per).zip(targets) {
            fold_all(&mut made[..piece.len()], size, reduction, |rank| match rank == own {
                true => Ok(&from[target * len..][piece.clone()]),
                false => reader.read(Stage::Given, rank, round).map(|slot| &slot[target * per..][..piece.len()]),
            })?;
        }
        self.done(Stage::Given, round);
        Ok(())
    }
}

impl Reader {
    /// Folds all ranks' contributions to a part of a piece; this rank's is in `piece`.
    fn fold_part(
        &self,
        piece: &[u8],
        part: Range<usize>,
        given: u32,
        into: &mut [u8],
        reduction: &Reduction,
    ) -> Result<(), Error> {
        let own = self.rank();
        fold_all(into, self.size(), reduction, |rank| match rank == own {
            true => Ok(&piece[part.clone()]),
            false => self.read(Stage::Given, rank, given).map(|slot| &slot[part.clone()]),
        })
    }
}

/// Folds `of` of each of `size`, in their order.
pub(super) fn fold_all<'s>(
    into: &mut [u8],
    size: usize,
    reduction: &Reduction,
    of: impl Fn(usize) -> Result<&'s [u8], Error>,
) -> Result<(), Error> {
    match size {
        1 => copy_bytes(into, of(0)?),
        _ => {
            reduction.fold_two(into, of(0)?, of(1)?);
            (2..size).try_for_each(|rank| of(rank).map(|other| reduction.fold(into, other)))?;
        }
    }
    reduction.finish(into);
    Ok(())
}

/// The bytes of piece `number`, if so many bytes are divided into pieces of `part`; none behind the last.
pub(super) fn piece(bytes: usize, part: usize, number: usize) -> Range<usize> {
    let start = (number * part).min(bytes);
    start..(start + part).min(bytes)
}
