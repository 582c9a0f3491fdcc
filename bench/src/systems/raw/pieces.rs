//! The tensors of a step, each in its own memory, as bare sockets move them all: by vectors; neighbouring small ones go through one
//! piece of memory, since a vector for each would cost more than the copy.

use std::io::{IoSlice, IoSliceMut};

/// A tensor up to this size is copied, as by Sealane's links.
const SMALL_BYTES: usize = 8 << 10;

const VECTORS: usize = 64;

/// What one vector moves: a large tensor, or small ones that are copied to it and from it.
#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    small: Vec<Vec<u8>>,
}

/// Also tracks how far they have moved.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// The first piece that has not moved completely, and how much of it has.
    at: usize,
    moved: usize,
}

impl Pieces {
    pub(super) fn new(sizes: &[usize], fill: u8) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        for &bytes in sizes {
            if bytes > SMALL_BYTES {
                pieces.push(Piece { bytes: vec![fill; bytes], small: Vec::new() });
                continue;
            }
            if pieces.last().is_none_or(|last| last.small.is_empty()) {
                pieces.push(Piece::default());
            }
            let last = pieces.last_mut().expect("one was pushed");
            last.bytes.resize(last.bytes.len() + bytes, 0);
            last.small.push(vec![fill; bytes]);
        }
        Self { pieces, at: 0, moved: 0 }
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &[u8]> {
        let large = |piece: &&Piece| piece.small.is_empty();
        self.pieces.iter().flat_map(move |piece| {
            let own = Some(piece).filter(large).map(|piece| piece.bytes.as_slice());
            own.into_iter().chain(piece.small.iter().map(Vec::as_slice))
        })
    }

    /// Collects the small ones; then all are ready to be sent.
    pub(super) fn gather(&mut self) {
        for Piece { bytes, small } in &mut self.pieces {
            let mut left = bytes.as_mut_slice();
            for tensor in small {
                left.split_off_mut(..tensor.len()).expect("as long as its tensors").copy_from_slice(tensor);
            }
        }
        self.rewind();
    }

    /// Prepares to receive all of them.
    pub(super) fn rewind(&mut self) {
        (self.at, self.moved) = (0, 0);
    }

    /// Copies the small ones to their places, after all have been received.
    pub(super) fn scatter(&mut self) {
        for Piece { bytes, small } in &mut self.pieces {
            let mut left = bytes.as_slice();
            for tensor in small {
                let bytes = left.split_off(..tensor.len()).expect("as long as its tensors");
                tensor.copy_from_slice(bytes);
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at == self.pieces.len()
    }

    pub(super) fn left_to_send(&self) -> Vec<IoSlice<'_>> {
        let mut moved = self.moved;
        let rest = self.pieces[self.at..].iter().take(VECTORS);
        rest.map(|piece| IoSlice::new(&piece.bytes[std::mem::take(&mut moved)..])).collect()
    }

    pub(super) fn left_to_fill(&mut self) -> Vec<IoSliceMut<'_>> {
        let mut moved = self.moved;
        let rest = self.pieces[self.at..].iter_mut().take(VECTORS);
        rest.map(|piece| IoSliceMut::new(&mut piece.bytes[std::mem::take(&mut moved)..])).collect()
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.moved += bytes;
        while let Some(piece) = self.pieces.get(self.at)
            && self.moved >= piece.bytes.len()
        {
            self.moved -= piece.bytes.len();
            self.at += 1;
        }
    }
}
