//! The tensors of a step, each in memory of its own, as bare sockets move them all: by vectors, and neighbours that are
//! small by way of one piece of memory, since a vector each would cost more than the copy.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

/// A tensor up to this size is copied: as Sealane's links do.
const SMALL_BYTES: usize = 8 << 10;

/// Vectors in one call.
const VECTORS: usize = 64;

#[derive(Debug)]
enum Piece {
    Small { tensors: Range<usize>, staged: Vec<u8> },
    Large(usize),
}

/// See the module. It knows how far they have moved.
#[derive(Debug)]
pub(super) struct Pieces {
    tensors: Vec<Vec<u8>>,
    pieces: Vec<Piece>,
    /// The first piece that has not moved whole, and how much of it has.
    at: usize,
    moved: usize,
}

impl Pieces {
    /// Tensors that are full of `fill`.
    pub(super) fn new(sizes: &[usize], fill: u8) -> Self {
        let mut pieces = Vec::new();
        for (place, &bytes) in sizes.iter().enumerate() {
            match pieces.last_mut() {
                _ if bytes > SMALL_BYTES => pieces.push(Piece::Large(place)),
                Some(Piece::Small { tensors, staged }) => {
                    tensors.end = place + 1;
                    staged.resize(staged.len() + bytes, 0);
                }
                _ => pieces.push(Piece::Small { tensors: place..place + 1, staged: vec![0; bytes] }),
            }
        }
        Self { tensors: sizes.iter().map(|&bytes| vec![fill; bytes]).collect(), pieces, at: 0, moved: 0 }
    }

    /// Their bytes.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &[u8]> {
        self.tensors.iter().map(Vec::as_slice)
    }

    /// Collects the small ones; then all are to be sent.
    pub(super) fn gather(&mut self) {
        for piece in &mut self.pieces {
            if let Piece::Small { tensors, staged } = piece {
                let mut left = staged.as_mut_slice();
                for tensor in &self.tensors[tensors.clone()] {
                    let place = left.split_off_mut(..tensor.len()).expect("as long as its tensors");
                    place.copy_from_slice(tensor);
                }
            }
        }
        self.rewind();
    }

    /// From now on all are to be received.
    pub(super) fn rewind(&mut self) {
        (self.at, self.moved) = (0, 0);
    }

    /// Brings the small ones to their places: all have been received.
    pub(super) fn scatter(&mut self) {
        for piece in &self.pieces {
            if let Piece::Small { tensors, staged } = piece {
                let mut left = staged.as_slice();
                for tensor in &mut self.tensors[tensors.clone()] {
                    let place = left.split_off(..tensor.len()).expect("as long as its tensors");
                    tensor.copy_from_slice(place);
                }
            }
        }
    }

    /// True if all have moved.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.pieces.len()
    }

    /// What is to be sent next.
    pub(super) fn left_to_send(&self) -> Vec<IoSlice<'_>> {
        let rest = self.pieces[self.at..].iter().take(VECTORS).map(|piece| match piece {
            Piece::Small { staged, .. } => staged.as_slice(),
            Piece::Large(place) => self.tensors[*place].as_slice(),
        });
        rest.enumerate()
            .map(|(index, bytes)| IoSlice::new(if index == 0 { &bytes[self.moved..] } else { bytes }))
            .collect()
    }

    /// What is to be filled next.
    pub(super) fn left_to_fill(&mut self) -> Vec<IoSliceMut<'_>> {
        let mut moved = self.moved;
        let mut tensors = self.tensors.iter_mut().enumerate();
        let rest = self.pieces[self.at..].iter_mut().take(VECTORS);
        rest.map(|piece| {
            let bytes = match piece {
                Piece::Small { staged, .. } => staged.as_mut_slice(),
                Piece::Large(place) => {
                    let (_, tensor) = tensors.find(|(other, _)| other == place).expect("pieces are in order");
                    tensor.as_mut_slice()
                }
            };
            IoSliceMut::new(&mut bytes[std::mem::take(&mut moved)..])
        })
        .collect()
    }

    /// Notes that so many bytes have moved.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let length = match &self.pieces[self.at] {
                Piece::Small { staged, .. } => staged.len(),
                Piece::Large(place) => self.tensors[*place].len(),
            };
            let step = bytes.min(length - self.moved);
            self.moved += step;
            bytes -= step;
            if self.moved == length {
                self.at += 1;
                self.moved = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_arrives_in_its_place_whatever_moves_at_once() {
        let sizes = [3, 1, SMALL_BYTES + 5, 64, SMALL_BYTES, SMALL_BYTES + 1, SMALL_BYTES + 2];
        let (mut near, mut far) = (Pieces::new(&sizes, 0), Pieces::new(&sizes, 0));
        assert_eq!(near.pieces.len(), 5);
        for (fill, tensor) in near.tensors.iter_mut().enumerate() {
            tensor.fill(fill as u8 + 1);
        }
        for at_once in [1_000_000, 4_097, 7] {
            near.gather();
            far.rewind();
            let mut wire = Vec::new();
            while !near.is_done() {
                let bytes: Vec<u8> =
                    near.left_to_send().iter().flat_map(|slice| slice.to_vec()).take(at_once).collect();
                near.advance(bytes.len());
                wire.extend(bytes);
            }
            let mut left = wire.as_slice();
            while !far.is_done() {
                let mut room = at_once.min(left.len());
                let before = room;
                for slice in &mut far.left_to_fill() {
                    let count = room.min(slice.len());
                    slice[..count].copy_from_slice(&left[..count]);
                    (left, room) = (&left[count..], room - count);
                }
                far.advance(before - room);
            }
            assert!(left.is_empty());
            far.scatter();
            assert_eq!(far.tensors, near.tensors);
            far.tensors.iter_mut().for_each(|tensor| tensor.fill(0));
        }
    }
}
