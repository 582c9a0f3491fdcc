//! Byte counts as people write them: `64`, `4KiB`, `4MiB`, `1GiB`, and `MB` for 10^6.

use crate::error::BenchError;
use crate::plan::Plan;

const UNITS: [(&str, usize); 7] =
    [("", 1), ("b", 1), ("kib", 1 << 10), ("mib", 1 << 20), ("gib", 1 << 30), ("kb", 1_000), ("mb", 1_000_000)];

/// Reads a byte count; the unit's case does not matter, and a space before it is allowed.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, BenchError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_lowercase();
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    number
        .parse::<usize>()
        .ok()
        .zip(scale)
        .and_then(|(number, scale)| number.checked_mul(scale))
        .ok_or_else(|| BenchError::setting("--size", text, "bytes such as 64, 4KiB or 4MiB"))
}

/// Byte counts to measure one after the other: a single one, or for `64..4MiB` these two and the powers of two between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(Vec<usize>);

impl Sizes {
    /// The plan with each of these sizes.
    pub(crate) fn of(&self, plan: &Plan) -> Vec<Plan> {
        self.0.iter().map(|&size_bytes| Plan { size_bytes, ..plan.clone() }).collect()
    }
}

impl Sizes {
    /// The first size, every other one after it, and the last.
    pub(crate) fn every_other(&self) -> impl Iterator<Item = usize> {
        let last = self.0.len() - 1;
        self.0.iter().enumerate().filter(move |(place, _)| place % 2 == 0 || *place == last).map(|(_, size)| *size)
    }
}

impl std::str::FromStr for Sizes {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Sizes, BenchError> {
        let Some((first, last)) = text.split_once("..") else { return Ok(Sizes(vec![parse_bytes(text)?])) };
        let (first, last) = (parse_bytes(first)?, parse_bytes(last)?);
        if first == 0 || first > last {
            return Err(BenchError::setting("--size", text, "a range from smaller to larger, such as 64..4MiB"));
        }
        let between =
            std::iter::successors(first.checked_add(1).map(usize::next_power_of_two), |size| size.checked_mul(2));
        let between = between.take_while(|size| *size < last);
        let last = (last > first).then_some(last);
        Ok(Sizes(std::iter::once(first).chain(between).chain(last).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_what_is_no_byte_count_is_refused() {
        let cases =
            [("64", 64), (" 64 B ", 64), ("4MiB", 4 << 20), ("4 mib", 4 << 20), ("1GiB", 1 << 30), ("3MB", 3_000_000)];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text).expect(text), bytes);
        }
        for text in ["", "MiB", "-1", "4.5MiB", "4 parsecs", "99999999999999999999", "99999999999999999GiB"] {
            let error = parse_bytes(text).expect_err(text);
            assert!(error.to_string().contains("4MiB"), "{error}");
        }
    }

    #[test]
    fn a_range_is_its_ends_and_the_powers_of_two_between() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("64..512").unwrap(), [64, 128, 256, 512]);
        assert_eq!(sizes("100 .. 1KiB").unwrap(), [100, 128, 256, 512, 1024]);
        assert_eq!(sizes("64..64").unwrap(), [64]);
        let every_other = |text: &str| text.parse::<Sizes>().unwrap().every_other().collect::<Vec<_>>();
        assert_eq!(every_other("64..1KiB"), [64, 256, 1024]);
        assert_eq!(every_other("64..512"), [64, 256, 512]);
        assert_eq!(every_other("64"), [64]);
        for text in ["4KiB..64", "0..64", "64..", "..64", "1..2..3"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }
}
