//! The tables of a measurement of rows, as flags spell them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::within;
use crate::error::BenchError;
use crate::limits::{TABLE_BATCH_MAX, TABLE_DIM_MAX, TABLES_BYTES_MAX, TABLES_MAX};

/// Tables of one size, and what a worker pulls of each in a step. Elements are 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Tables {
    /// Tables
    #[arg(long, value_name = "N", default_value_t = Tables::default().tables)]
    pub tables: usize,

    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = Tables::default().rows)]
    pub rows: u64,

    /// Elements of a row, of 4 bytes each
    #[arg(long, value_name = "N", default_value_t = Tables::default().dim)]
    pub dim: usize,

    /// Rows that a worker names of each table in a step, some of them more than once
    #[arg(long, value_name = "N", default_value_t = Tables::default().batch)]
    pub batch: usize,

    /// How popular rows are: uniform, or zipf with its exponent
    #[arg(long, value_name = "uniform|zipf:S", default_value_t = Tables::default().skew)]
    pub skew: Skew,
}

impl Tables {
    pub(crate) fn row_bytes(&self) -> usize {
        self.dim * size_of::<f32>()
    }

    pub(crate) fn rows_a_step(&self) -> usize {
        self.tables * self.batch
    }

    /// Bytes of what a worker gets in a step.
    pub(crate) fn step_bytes(&self) -> usize {
        self.rows_a_step() * self.row_bytes()
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.tables as u64).saturating_mul(self.rows).saturating_mul(self.row_bytes() as u64)
    }

    /// The same tables, one at a time.
    pub(crate) fn each(&self) -> impl Iterator<Item = Tables> + use<> {
        std::iter::repeat_n(Tables { tables: 1, ..*self }, self.tables)
    }

    fn check(&self) -> Result<(), BenchError> {
        within("--tables", self.tables, 1, TABLES_MAX)?;
        within("--dim", self.dim, 1, TABLE_DIM_MAX)?;
        within("--batch", self.batch, 1, TABLE_BATCH_MAX)?;
        within("--rows", self.rows as usize, 1, TABLES_BYTES_MAX as usize)
    }
}

/// Checks tables of any sizes.
pub(crate) fn check(tables: &[Tables]) -> Result<(), BenchError> {
    tables.iter().try_for_each(Tables::check)?;
    let count = tables.iter().map(|of| of.tables).sum::<usize>();
    within("--tables", count, 0, TABLES_MAX)?;
    let bytes = tables.iter().map(Tables::bytes).fold(0, u64::saturating_add);
    if bytes > TABLES_BYTES_MAX {
        let accepted = format!("tables of at most {TABLES_BYTES_MAX} bytes in all");
        return Err(BenchError::setting("--rows", format!("so many that they have {bytes} bytes"), accepted));
    }
    Ok(())
}

impl Default for Tables {
    fn default() -> Self {
        Self { tables: 26, rows: 100_000, dim: 16, batch: 2_048, skew: Skew::Zipf(1.05) }
    }
}

/// How popular rows are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Skew {
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
    fn tables_that_are_too_large_are_refused_together_as_well() {
        let usual = Tables::default();
        let [few, many] = [3, 500_000_000].map(|rows| Tables { tables: 2, rows, ..usual });
        assert!(check(&[]).is_ok() && check(&[few, many]).is_ok());
        for (setting, wrong) in [
            ("--tables", vec![Tables { tables: 0, ..usual }]),
            ("--tables", vec![Tables { tables: TABLES_MAX, ..few }, few]),
            ("--rows", vec![Tables { rows: 0, ..usual }]),
            ("--rows", vec![Tables { rows: 1 << 40, ..usual }]),
            ("--rows", vec![many, many]),
            ("--dim", vec![Tables { dim: 0, ..usual }]),
            ("--batch", vec![Tables { batch: TABLE_BATCH_MAX + 1, ..usual }]),
        ] {
            let error = check(&wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().starts_with(setting), "{error}");
        }
    }
}
