//! Tensors of strings: first the offsets, then all text.

use crate::Error;

use super::{Tensor, TensorMeta};

impl Tensor {
    /// A tensor of byte strings, row-major. On the wire: one `u64` offset per string and one more for the end, counted from the
    /// first text byte, then the texts without separators (Apache Arrow's layout for large binaries).
    ///
    /// # Errors
    /// InvalidArgument if the shape requires another number of strings.
    pub fn from_strings<S: AsRef<[u8]>>(shape: &[u64], strings: &[S]) -> Result<Tensor, Error> {
        let meta = TensorMeta::strings(shape)?;
        if meta.element_count() != strings.len() as u64 {
            let reason = format!("shape {shape:?} has {} strings, {} were given", meta.element_count(), strings.len());
            return Err(Error::invalid(reason));
        }
        let text: usize = strings.iter().map(|string| string.as_ref().len()).sum();
        let mut data = Vec::with_capacity((strings.len() + 1) * 8 + text);
        let mut offset = 0_u64;
        data.extend_from_slice(&offset.to_le_bytes());
        for string in strings {
            offset += string.as_ref().len() as u64;
            data.extend_from_slice(&offset.to_le_bytes());
        }
        for string in strings {
            data.extend_from_slice(string.as_ref());
        }
        Tensor::new(meta, data)
    }

    /// The strings, in place.
    ///
    /// # Errors
    /// InvalidArgument if the tensor is not of strings, or its offsets are not ascending within its bytes.
    pub fn strings(&self) -> Result<Vec<&[u8]>, Error> {
        if !self.meta().is_strings() {
            return Err(Error::invalid(format!("the tensor is {}, not strings", self.dtype())));
        }
        let count = self.meta().element_count() as usize;
        let (offsets, text) = self.bytes().split_at((count + 1) * 8);
        let offset = |index: usize| {
            let bytes = offsets[index * 8..][..8].try_into().expect("8 bytes");
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        (0..count)
            .map(|index| {
                text.get(offset(index)..offset(index + 1))
                    .ok_or_else(|| Error::invalid(format!("the offsets of string {index} are out of order or range")))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_and_bad_offsets_are_refused() {
        let tensor = Tensor::from_strings(&[3], &["click", "", "Größe"]).unwrap();
        assert_eq!(tensor.strings().unwrap(), ["click".as_bytes(), b"", "Größe".as_bytes()]);
        assert!(Tensor::from_strings(&[2], &["one"]).is_err());
        let (meta, data) = tensor.into_parts();
        for (at, value) in [(8, u64::MAX), (0, 9), (24, 1 << 20)] {
            let mut bytes = data.as_ref().to_vec();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(Tensor::new(meta.clone(), bytes).unwrap().strings().is_err(), "offset at {at} is {value}");
        }
        assert!(Tensor::new(meta, vec![0; 31]).is_err(), "offsets alone take 32 bytes");
    }

    #[test]
    fn an_empty_tensor_of_strings_has_one_offset() {
        let tensor = Tensor::from_strings::<&str>(&[0], &[]).unwrap();
        assert_eq!(tensor.bytes().len(), 8);
        assert!(tensor.strings().unwrap().is_empty());
    }
}
