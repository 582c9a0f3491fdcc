//! Type, shape and flags of a tensor, kept in wire form, so that a send encodes nothing.

use crate::{Error, Meta};
use smallvec::SmallVec;

use super::{DType, TypeCode};

/// Most dimensions a tensor may have: TensorFlow's limit.
pub const RANK_MAX: usize = 254;

/// Dimensions, outermost first. On the stack up to rank 6.
pub type Shape = SmallVec<[u64; 6]>;

const FIXED_BYTES: usize = 8;
const FLAG_DEAD: u8 = 1;
const FLAG_STRINGS: u8 = 2;

/// Type, shape and flags; cannot hold an illegal combination. 8 bytes plus 8 per dimension, on the stack up to rank 5.
///
/// Layout (little-endian): type code `u8`, bits `u8`, lanes `u16`, flags `u8` (1 dead, 2 strings), rank `u8`, zero
/// `u16`, then each dimension as `u64`.
#[derive(Eq)]
pub struct TensorMeta(Meta);

impl PartialEq for TensorMeta {
    /// Word by word: the length is a multiple of 8, and usually 16 or 24, for which calling memcmp takes twice as long.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&*self.0, &*other.0);
        let mut words = ours.as_chunks::<8>().0.iter().zip(theirs.as_chunks::<8>().0);
        ours.len() == theirs.len() && words.all(|(ours, theirs)| ours == theirs)
    }
}

impl Clone for TensorMeta {
    /// One copy of bytes; the derived clone would loop over them, for a tenth of a recv's instructions.
    #[inline]
    fn clone(&self) -> Self {
        TensorMeta(Meta::from_slice(&self.0))
    }
}

impl TensorMeta {
    /// Metadata of a tensor of numbers.
    ///
    /// # Errors
    /// InvalidArgument with over 254 dimensions, or if the bytes of such a tensor overflow 64 bits.
    pub fn new(dtype: DType, shape: &[u64]) -> Result<TensorMeta, Error> {
        Self::with_flags(dtype, shape, 0)
    }

    /// Metadata of a tensor of strings with this shape: see [`Tensor::from_strings`](super::Tensor::from_strings).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn strings(shape: &[u64]) -> Result<TensorMeta, Error> {
        Self::with_flags(DType::U8, shape, FLAG_STRINGS)
    }

    pub(super) fn dead(dtype: DType) -> TensorMeta {
        Self::with_flags(dtype, &[0], FLAG_DEAD).expect("rank 1 without bytes is legal")
    }

    fn with_flags(dtype: DType, shape: &[u64], flags: u8) -> Result<TensorMeta, Error> {
        if shape.len() > RANK_MAX {
            return Err(Error::invalid(format!("{} dimensions, at most {RANK_MAX} are possible", shape.len())));
        }
        let lanes = dtype.lanes.to_le_bytes();
        let mut meta = Meta::new();
        let fixed = [dtype.code as u8, dtype.bits, lanes[0], lanes[1], flags, shape.len() as u8, 0, 0];
        meta.extend_from_slice(&fixed);
        for dimension in shape {
            meta.extend_from_slice(&dimension.to_le_bytes());
        }
        let meta = TensorMeta(meta);
        meta.bytes()?;
        Ok(meta)
    }

    /// Checks untrusted metadata.
    ///
    /// # Errors
    /// InvalidArgument if the layout is invalid or the type is unknown.
    pub fn from_wire(bytes: &[u8]) -> Result<TensorMeta, Error> {
        let Some((&[code, bits, lanes_low, lanes_high, flags, rank, _, _], dimensions)) = bytes.split_first_chunk()
        else {
            return Err(Error::invalid(format!("tensor metadata of {} bytes is too short", bytes.len())));
        };
        DType::from_numbers(code, bits, u16::from_le_bytes([lanes_low, lanes_high]))?;
        if flags & !(FLAG_DEAD | FLAG_STRINGS) != 0 {
            return Err(Error::invalid(format!("tensor metadata has unknown flags {flags:#x}")));
        }
        if usize::from(rank) > RANK_MAX || dimensions.len() != usize::from(rank) * 8 {
            let found = dimensions.len();
            return Err(Error::invalid(format!("tensor metadata of rank {rank} has {found} bytes of dimensions")));
        }
        // Whether the number of bytes overflows is checked when it is compared with the bytes that came.
        Ok(TensorMeta(Meta::from_slice(bytes)))
    }

    /// The wire form, in place.
    #[inline]
    pub fn as_wire(&self) -> &[u8] {
        &self.0
    }

    /// The wire form.
    pub fn into_wire(self) -> Meta {
        self.0
    }

    /// The inverse of [`into_wire`](Self::into_wire), unchecked: on other input, accessors may panic.
    pub fn from_own_wire(meta: Meta) -> TensorMeta {
        TensorMeta(meta)
    }

    /// The element type; `u8` for strings.
    #[inline]
    pub fn dtype(&self) -> DType {
        DType {
            code: TypeCode::from_number(self.0[0]).expect("checked when it was made"),
            bits: self.0[1],
            lanes: u16::from_le_bytes([self.0[2], self.0[3]]),
        }
    }

    /// Number of dimensions, 0 to 254.
    pub fn rank(&self) -> usize {
        usize::from(self.0[5])
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> Shape {
        self.dimensions().collect()
    }

    fn dimensions(&self) -> impl Iterator<Item = u64> {
        self.0[FIXED_BYTES..].chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        if self.dimensions().any(|dimension| dimension == 0) { 0 } else { self.dimensions().product() }
    }

    /// True for TensorFlow's dead tensors.
    pub fn is_dead(&self) -> bool {
        self.0[4] & FLAG_DEAD != 0
    }

    /// True for a tensor of strings.
    pub fn is_strings(&self) -> bool {
        self.0[4] & FLAG_STRINGS != 0
    }

    /// Bytes of a tensor of numbers; for strings, of their offsets, which is the minimum.
    #[inline]
    fn bytes(&self) -> Result<u64, Error> {
        let too_large = || Error::invalid("the shape asks for more than 2^64 bytes");
        let mut count = Some(1_u64);
        for dimension in self.dimensions() {
            // A zero makes the tensor empty, however large the other dimensions are.
            if dimension == 0 {
                count = Some(0);
                break;
            }
            count = count.and_then(|count| count.checked_mul(dimension));
        }
        // An overflow before a zero dimension does not count either.
        let count = match count {
            Some(count) => count,
            None if self.dimensions().any(|dimension| dimension == 0) => 0,
            None => return Err(too_large()),
        };
        if self.is_strings() {
            return count.checked_add(1).and_then(|offsets| offsets.checked_mul(8)).ok_or_else(too_large);
        }
        self.dtype().bytes_of(count).ok_or_else(too_large)
    }

    /// Checks the number of bytes of a tensor.
    ///
    /// # Errors
    /// InvalidArgument if it does not match type and shape; for strings, if it is too small for their offsets.
    #[inline]
    pub fn check_bytes(&self, found: u64) -> Result<(), Error> {
        let bytes = self.bytes()?;
        let fits = if self.is_strings() { found >= bytes } else { found == bytes };
        if fits {
            return Ok(());
        }
        Err(Error::invalid(format!("{self:?} takes {bytes} bytes, the data has {found}")))
    }
}

impl std::fmt::Debug for TensorMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_strings() { "strings".to_owned() } else { self.dtype().to_string() };
        write!(f, "{kind}{:?}", self.shape().as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_up_to_254_and_no_more() {
        for rank in [0, 1, 6, 7, RANK_MAX] {
            let shape = vec![1; rank];
            let meta = TensorMeta::new(DType::F32, &shape).unwrap();
            assert_eq!((meta.rank(), meta.shape().to_vec(), meta.element_count()), (rank, shape, 1));
            assert_eq!(TensorMeta::from_wire(&meta.clone().into_wire()).unwrap(), meta);
        }
        assert!(TensorMeta::new(DType::F32, &[1; RANK_MAX + 1]).is_err());
    }

    #[test]
    fn bytes_follow_type_and_shape() {
        let int4 = DType::scalar(crate::tensor::TypeCode::Int, 4);
        assert_eq!(TensorMeta::new(int4, &[3]).unwrap().bytes().unwrap(), 2);
        assert_eq!(TensorMeta::new(DType::C128, &[2, 2]).unwrap().bytes().unwrap(), 64);
        assert_eq!(TensorMeta::new(DType::F64, &[u64::MAX, 0]).unwrap().bytes().unwrap(), 0);
        assert!(TensorMeta::new(DType::F64, &[1 << 40, 1 << 40]).is_err());
        let error = TensorMeta::new(DType::F32, &[2]).unwrap().check_bytes(9).unwrap_err();
        assert_eq!(error.to_string(), "f32[2] takes 8 bytes, the data has 9");
    }
}
