//! The tables of a measurement of rows, as flags spell them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::within;
use crate::error::BenchError;
use crate::limits::{TABLE_BATCH_MAX, TABLE_DIM_MAX, TABLES_BYTES_MAX, TABLES_MAX};

/// Tables of one size, and what a worker pulls of each in a step. Elements are 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    /// How many. Default: 26.
    pub tables: usize,
    /// Rows of each. Default: 100,000.
    pub rows: u64,
    /// Elements of a row. Default: 16.
    pub dim: usize,
    /// Rows that a worker names of each table in a step, some of them more than once. Default: 2,048.
    pub batch: usize,
    /// How popular rows are. Default: Zipf 1.05.
    pub skew: Skew,
}

impl Tables {
    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.dim * size_of::<f32>()
    }

    /// Rows that a worker names in a step.
    pub(crate) fn rows_a_step(&self) -> usize {
        self.tables * self.batch
    }

    /// Bytes of what a worker gets in a step.
    pub(crate) fn step_bytes(&self) -> usize {
        self.rows_a_step() * self.row_bytes()
    }

    /// Bytes of all tables.
    pub(crate) fn bytes(&self) -> u64 {
        (self.tables as u64).saturating_mul(self.rows).saturating_mul(self.row_bytes() as u64)
    }

    /// Each by itself.
    pub(crate) fn each(&self) -> impl Iterator<Item = Tables> + use<> {
        std::iter::repeat_n(Tables { tables: 1, ..*self }, self.tables)
    }

    fn check(&self) -> Result<(), BenchError> {
        within("--tables", self.tables, 1..=TABLES_MAX)?;
        within("--dim", self.dim, 1..=TABLE_DIM_MAX)?;
        within("--batch", self.batch, 1..=TABLE_BATCH_MAX)?;
        within("--rows", self.rows, 1..=TABLES_BYTES_MAX)?;
        if self.bytes() > TABLES_BYTES_MAX {
            let accepted = format!("so many that all tables have at most {TABLES_BYTES_MAX} bytes");
            return Err(BenchError::setting(
                "--rows",
                format!("{}, which makes {} bytes", self.rows, self.bytes()),
                accepted,
            ));
        }
        Ok(())
    }
}

/// Tables of any sizes.
pub(crate) fn check(tables: &[Tables]) -> Result<(), BenchError> {
    tables.iter().try_for_each(Tables::check)?;
    let count = tables.iter().map(|of| of.tables).sum::<usize>();
    within("--tables", count, usize::from(count > 0)..=TABLES_MAX)?;
    let bytes = tables.iter().map(Tables::bytes).fold(0, u64::saturating_add);
    if bytes > TABLES_BYTES_MAX {
        let accepted = format!("tables of at most {TABLES_BYTES_MAX} bytes in all");
        return Err(BenchError::setting("--rows", format!("so many that they have {bytes} bytes"), accepted));
    }
    Ok(())
}

/// How a report tells what they are: of several sizes, the least and the most rows.
pub(crate) fn in_words(tables: &[Tables]) -> String {
    let (count, rows) = (tables.iter().map(|of| of.tables).sum::<usize>(), || tables.iter().map(|of| of.rows));
    match (tables, rows().min(), rows().max()) {
        ([one], ..) => one.to_string(),
        ([Tables { dim, batch, skew, .. }, ..], Some(least), Some(most)) => {
            format!("{count} tables of {least} to {most} rows of {dim} float32, {batch} rows each, {skew}")
        }
        _ => "no tables".to_owned(),
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self { tables: 26, rows: 100_000, dim: 16, batch: 2_048, skew: Skew::Zipf(1.05) }
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tables, rows, dim, batch, skew } = self;
        write!(f, "{tables} tables of {rows} rows of {dim} float32, {batch} rows each, {skew}")
    }
}

/// How popular rows are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Skew {
    /// All the same.
    Uniform,
    /// The `n`th is drawn in proportion to `n` to the power of minus this.
    Zipf(f64),
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

impl From<Skew> for String {
    fn from(skew: Skew) -> Self {
        skew.to_string()
    }
}

impl TryFrom<String> for Skew {
    type Error = BenchError;

    fn try_from(text: String) -> Result<Self, BenchError> {
        text.parse()
    }
}

impl FromStr for Skew {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let zipf = text.strip_prefix("zipf:").and_then(|exponent| exponent.parse().ok());
        match (text, zipf) {
            ("uniform", _) => Ok(Self::Uniform),
            (_, Some(exponent)) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf(exponent)),
            _ => Err(BenchError::setting(
                "--skew",
                text,
                "uniform, or zipf: and an exponent from 0 to 10, as in zipf:1.05",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_read_as_it_is_written() {
        for skew in [Skew::Uniform, Skew::Zipf(1.05), Skew::Zipf(0.0)] {
            assert_eq!(skew.to_string().parse::<Skew>().unwrap(), skew);
        }
        for wrong in ["", "zipf", "zipf:", "zipf:-1", "zipf:11", "zipf:NaN", "normal"] {
            assert!(wrong.parse::<Skew>().unwrap_err().to_string().contains("--skew"), "{wrong}");
        }
    }

    #[test]
    fn tables_of_several_sizes_are_counted_together() {
        let [few, many] = [3, 500_000_000].map(|rows| Tables { tables: 2, rows, ..Tables::default() });
        assert_eq!(in_words(&[few, many]), "4 tables of 3 to 500000000 rows of 16 float32, 2048 rows each, zipf:1.05");
        assert_eq!(in_words(&[few]), few.to_string());
        check(&[]).unwrap();
        check(&[few, many]).unwrap();
        for wrong in [vec![many, many], vec![Tables { tables: TABLES_MAX, ..few }, few]] {
            assert!(check(&wrong).unwrap_err().is_usage());
        }
    }

    #[test]
    fn tables_that_are_too_large_are_refused() {
        Tables::default().check().unwrap();
        assert_eq!(Tables::default().bytes(), 26 * 100_000 * 64);
        for (setting, wrong) in [
            ("--tables", Tables { tables: 0, ..Tables::default() }),
            ("--rows", Tables { rows: 0, ..Tables::default() }),
            ("--rows", Tables { rows: 1 << 40, ..Tables::default() }),
            ("--dim", Tables { dim: 0, ..Tables::default() }),
            ("--batch", Tables { batch: TABLE_BATCH_MAX + 1, ..Tables::default() }),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(setting), "{error}");
        }
    }
}
