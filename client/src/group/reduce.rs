//! Arithmetic of collectives: folds one rank's elements into another's, as bytes of any alignment, in loops that the compiler vectorises.
//! Floats are added in the order in which the caller folds them; `f16` and `bf16` are rounded after each step, as PyTorch does on CPUs.

use half::{bf16, f16};
use sealane_transport::{
    Error,
    tensor::{DType, TypeCode},
};

/// What a reduction does with the elements of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReduceOp {
    /// Adds them, complex numbers too; integers wrap around.
    Sum = 1,
    /// Multiplies them; integers wrap around.
    Product = 2,
    /// The smaller; NaN if either is.
    Min = 3,
    /// The larger; NaN if either is.
    Max = 4,
    /// The sum divided by the number of ranks, of floats and complex numbers alone.
    Average = 5,
    /// Bitwise and, of integers and booleans.
    BitAnd = 6,
    /// Bitwise or, of integers and booleans.
    BitOr = 7,
    /// Bitwise exclusive or, of integers and booleans.
    BitXor = 8,
}

impl ReduceOp {
    /// All of them, by their numbers from 1 on.
    pub const ALL: [ReduceOp; 8] = {
        use ReduceOp::{Average, BitAnd, BitOr, BitXor, Max, Min, Product, Sum};
        [Sum, Product, Min, Max, Average, BitAnd, BitOr, BitXor]
    };

    /// True if the real and imaginary parts of complex numbers are reduced separately.
    fn is_linear(self) -> bool {
        matches!(self, ReduceOp::Sum | ReduceOp::Average)
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        ["sum", "product", "min", "max", "average", "bitwise and", "bitwise or", "bitwise exclusive or"]
            [self as usize - 1]
    }
}

/// The arithmetic of one element type and operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reduction {
    /// `into = into op other`.
    fold: fn(&mut [u8], &[u8]),
    /// `into = left op right`.
    fold_two: fn(&mut [u8], &[u8], &[u8]),
    /// Divides by the number of ranks, if the operation does.
    divide: Option<fn(&mut [u8], usize)>,
    ranks: usize,
}

impl Reduction {
    /// The reduction for so many ranks.
    ///
    /// # Errors
    /// InvalidArgument if elements of that type are not reduced so.
    pub(super) fn new(dtype: DType, op: ReduceOp, ranks: usize) -> Result<Reduction, Error> {
        reduction(dtype, op)
            .map(|reduction| Reduction { ranks, ..reduction })
            .ok_or_else(|| Error::invalid(format!("elements of type {dtype} have no reduction \"{}\"", op.name())))
    }

    #[inline]
    pub(super) fn fold(&self, into: &mut [u8], other: &[u8]) {
        (self.fold)(into, other);
    }

    #[inline]
    pub(super) fn fold_two(&self, into: &mut [u8], left: &[u8], right: &[u8]) {
        (self.fold_two)(into, left, right);
    }

    /// The reduction of some of the ranks, whose result is reduced with those of the others.
    pub(super) fn partial(&self) -> Reduction {
        Reduction { divide: None, ..*self }
    }

    /// Finishes what all ranks were folded into.
    pub(super) fn finish(&self, folded: &mut [u8]) {
        if let Some(divide) = self.divide {
            divide(folded, self.ranks);
        }
    }
}

fn reduction(dtype: DType, op: ReduceOp) -> Option<Reduction> {
    if dtype.lanes != 1 {
        return None;
    }
    Some(match (dtype.code, dtype.bits) {
        (TypeCode::Float, 64) => float::<f64, 8>(op)?,
        (TypeCode::Float, 32) => float::<f32, 4>(op)?,
        (TypeCode::Float, 16) => float::<f16, 2>(op)?,
        (TypeCode::Bfloat, 16) => float::<bf16, 2>(op)?,
        (TypeCode::Int, 64) => integer::<i64, 8>(op)?,
        (TypeCode::Int, 32) => integer::<i32, 4>(op)?,
        (TypeCode::Int, 16) => integer::<i16, 2>(op)?,
        (TypeCode::Int, 8) => integer::<i8, 1>(op)?,
        (TypeCode::UInt, 64) => integer::<u64, 8>(op)?,
        (TypeCode::UInt, 32) => integer::<u32, 4>(op)?,
        (TypeCode::UInt, 16) => integer::<u16, 2>(op)?,
        (TypeCode::UInt, 8) => integer::<u8, 1>(op)?,
        (TypeCode::Bool, 8) => boolean(op)?,
        // Their parts are added, and divided, each by itself.
        (TypeCode::Complex, 128) if op.is_linear() => float::<f64, 8>(op)?,
        (TypeCode::Complex, 64) if op.is_linear() => float::<f32, 4>(op)?,
        _ => return None,
    })
}

/// An element as stored in memory.
trait Bytes<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
}

trait Float<const N: usize>: Bytes<N> {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn divided(self, by: usize) -> Self;
}

trait Integer<const N: usize>: Bytes<N> + Ord {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! bytes {
    ($($type:ty, $bytes:literal;)*) => {$(
        impl Bytes<$bytes> for $type {
            #[inline(always)]
            fn read(bytes: [u8; $bytes]) -> Self {
                <$type>::from_ne_bytes(bytes)
            }

            #[inline(always)]
            fn bytes(self) -> [u8; $bytes] {
                self.to_ne_bytes()
            }
        }
    )*};
}

bytes! { f64, 8; f32, 4; f16, 2; bf16, 2; i64, 8; i32, 4; i16, 2; i8, 1; u64, 8; u32, 4; u16, 2; u8, 1; }

/// Floats that are computed as `$wide`.
macro_rules! floats {
    ($($type:ty, $bytes:literal, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Float<$bytes> for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if $widen(self) <= $widen(other) || self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if $widen(self) >= $widen(other) || self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn divided(self, by: usize) -> Self {
                $narrow($widen(self) / by as $wide)
            }
        }
    )*};
}

floats! {
    f64, 8, f64, |value: f64| value, |value: f64| value;
    f32, 4, f32, |value: f32| value, |value: f32| value;
    f16, 2, f32, f16::to_f32, f16::from_f32;
    bf16, 2, f32, bf16::to_f32, bf16::from_f32;
}

macro_rules! integers {
    ($($type:ty, $bytes:literal;)*) => {$(
        impl Integer<$bytes> for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

integers! { i64, 8; i32, 4; i16, 2; i8, 1; u64, 8; u32, 4; u16, 2; u8, 1; }

/// The two forms of folding by a function of two elements.
macro_rules! folding {
    ($type:ty, $bytes:ident, $function:expr) => {
        (
            |into: &mut [u8], other: &[u8]| {
                for (into, other) in into.as_chunks_mut::<$bytes>().0.iter_mut().zip(other.as_chunks::<$bytes>().0) {
                    *into = $function(<$type>::read(*into), <$type>::read(*other)).bytes();
                }
            },
            |into: &mut [u8], left: &[u8], right: &[u8]| {
                let operands = left.as_chunks::<$bytes>().0.iter().zip(right.as_chunks::<$bytes>().0);
                for (into, (left, right)) in into.as_chunks_mut::<$bytes>().0.iter_mut().zip(operands) {
                    *into = $function(<$type>::read(*left), <$type>::read(*right)).bytes();
                }
            },
        )
    };
}

type Folds = (fn(&mut [u8], &[u8]), fn(&mut [u8], &[u8], &[u8]));

fn float<T: Float<N>, const N: usize>(op: ReduceOp) -> Option<Reduction> {
    let (fold, fold_two): Folds = match op {
        ReduceOp::Sum | ReduceOp::Average => folding!(T, N, T::sum),
        ReduceOp::Product => folding!(T, N, T::product),
        ReduceOp::Min => folding!(T, N, T::min),
        ReduceOp::Max => folding!(T, N, T::max),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    };
    let divide: fn(&mut [u8], usize) = |sum, ranks| {
        sum.as_chunks_mut::<N>().0.iter_mut().for_each(|sum| *sum = T::read(*sum).divided(ranks).bytes());
    };
    Some(Reduction { fold, fold_two, divide: (op == ReduceOp::Average).then_some(divide), ranks: 1 })
}

fn integer<T: Integer<N>, const N: usize>(op: ReduceOp) -> Option<Reduction> {
    let (fold, fold_two): Folds = match op {
        ReduceOp::Sum => folding!(T, N, T::sum),
        ReduceOp::Product => folding!(T, N, T::product),
        ReduceOp::Min => folding!(T, N, T::min),
        ReduceOp::Max => folding!(T, N, T::max),
        ReduceOp::BitAnd => folding!(T, N, T::and),
        ReduceOp::BitOr => folding!(T, N, T::or),
        ReduceOp::BitXor => folding!(T, N, T::xor),
        ReduceOp::Average => return None,
    };
    Some(Reduction { fold, fold_two, divide: None, ranks: 1 })
}

/// For bytes that are 0 or 1. A sum is true if any is, as in PyTorch.
fn boolean(op: ReduceOp) -> Option<Reduction> {
    integer::<u8, 1>(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => ReduceOp::BitOr,
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => ReduceOp::BitAnd,
        ReduceOp::BitXor => ReduceOp::BitXor,
        ReduceOp::Average => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<const N: usize, T: Bytes<N>>(dtype: DType, op: ReduceOp, ranks: &[&[T]]) -> Vec<T> {
        let bytes = |rank: &[T]| -> Vec<u8> { rank.iter().flat_map(|element| element.bytes()).collect() };
        let reduction = Reduction::new(dtype, op, ranks.len()).unwrap();
        let mut into = bytes(ranks[0]);
        let mut two = vec![0; into.len()];
        for rank in &ranks[1..] {
            reduction.fold_two(&mut two, &into, &bytes(rank));
            reduction.fold(&mut into, &bytes(rank));
            assert_eq!(into, two);
        }
        reduction.finish(&mut into);
        into.as_chunks::<N>().0.iter().map(|chunk| T::read(*chunk)).collect()
    }

    fn dtype(code: TypeCode, bits: u8) -> DType {
        DType { code, bits, lanes: 1 }
    }

    #[test]
    fn each_operation_of_each_type_is_that_of_its_elements() {
        let f = dtype(TypeCode::Float, 32);
        let (a, b): (&[f32], &[f32]) = (&[1.5, -2.0, f32::NAN, 4.0], &[2.0, 3.0, 1.0, f32::NAN]);
        assert_eq!(reduced(f, ReduceOp::Sum, &[a, b])[..2], [3.5, 1.0]);
        assert_eq!(reduced(f, ReduceOp::Product, &[a, b])[..2], [3.0, -6.0]);
        let (min, max) = (reduced(f, ReduceOp::Min, &[a, b]), reduced(f, ReduceOp::Max, &[a, b]));
        assert_eq!((&min[..2], &max[..2]), (&[1.5, -2.0][..], &[2.0, 3.0][..]));
        assert!(min[2..].iter().chain(&max[2..]).all(|value| value.is_nan()));
        assert_eq!(reduced(f, ReduceOp::Average, &[a, b, a])[..2], [5.0 / 3.0, -1.0 / 3.0]);
        let d = dtype(TypeCode::Float, 64);
        assert_eq!(reduced(d, ReduceOp::Average, &[&[1.0_f64], &[2.0]]), [1.5]);
        let h = dtype(TypeCode::Float, 16);
        let half = |value: f32| f16::from_f32(value);
        assert_eq!(reduced(h, ReduceOp::Sum, &[&[half(0.5)], &[half(0.25)]]), [half(0.75)]);
        let brain = dtype(TypeCode::Bfloat, 16);
        let bf = |value: f32| bf16::from_f32(value);
        assert_eq!(reduced(brain, ReduceOp::Max, &[&[bf(0.5)], &[bf(3.0)]]), [bf(3.0)]);
        assert_eq!(reduced(brain, ReduceOp::Sum, &[&[bf(256.0)], &[bf(1.0)]]), [bf(256.0)], "rounded");
        let i = dtype(TypeCode::Int, 8);
        assert_eq!(reduced(i, ReduceOp::Sum, &[&[127_i8], &[1]]), [-128], "it wraps around");
        assert_eq!(reduced(i, ReduceOp::Min, &[&[-3_i8, 5], &[2, -7]]), [-3, -7]);
        let u = dtype(TypeCode::UInt, 64);
        assert_eq!(reduced(u, ReduceOp::BitXor, &[&[6_u64], &[3]]), [5]);
        assert_eq!(reduced(u, ReduceOp::BitAnd, &[&[6_u64], &[3]]), [2]);
        assert_eq!(reduced(u, ReduceOp::BitOr, &[&[6_u64], &[3]]), [7]);
        let c = dtype(TypeCode::Complex, 64);
        assert_eq!(reduced(c, ReduceOp::Sum, &[&[1.0_f32, 2.0], &[0.5, -4.0]]), [1.5, -2.0]);
        assert_eq!(reduced(c, ReduceOp::Average, &[&[1.0_f32, 2.0], &[3.0, -4.0]]), [2.0, -1.0]);
        let c = dtype(TypeCode::Complex, 128);
        assert_eq!(reduced(c, ReduceOp::Average, &[&[1.0_f64, 2.0], &[3.0, -4.0]]), [2.0, -1.0]);
        let bools = dtype(TypeCode::Bool, 8);
        assert_eq!(reduced(bools, ReduceOp::Sum, &[&[1_u8, 1, 0], &[1, 0, 0]]), [1, 1, 0]);
        assert_eq!(reduced(bools, ReduceOp::Product, &[&[1_u8, 1, 0], &[1, 0, 0]]), [1, 0, 0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (dtype, op) in [
            (dtype(TypeCode::Float, 32), ReduceOp::BitAnd),
            (dtype(TypeCode::Int, 32), ReduceOp::Average),
            (dtype(TypeCode::Complex, 64), ReduceOp::Product),
            (dtype(TypeCode::Complex, 128), ReduceOp::Max),
            (dtype(TypeCode::Complex, 32), ReduceOp::Sum),
        ] {
            let error = Reduction::new(dtype, op, 2).unwrap_err().to_string();
            assert!(error.contains(op.name()) && error.contains(&dtype.to_string()), "{error}");
        }
    }
}
