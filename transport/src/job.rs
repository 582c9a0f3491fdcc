//! Names of jobs: they keep the processes and daemons of one training job apart from those of another that uses the same socket
//! path or the same addresses.
//!
//! Limits: [`JOB_NAME_BYTES_MAX`].

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::limits::JOB_NAME_BYTES_MAX;

/// The name of a job: 1 to [`JOB_NAME_BYTES_MAX`] printable ASCII characters without spaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(Arc<str>);

/// A text that is not a [`JobName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a job's name has 1 to {JOB_NAME_BYTES_MAX} printable ASCII characters and no spaces, unlike {0:?}")]
pub struct BadJobName(String);

impl JobName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobName {
    type Err = BadJobName;

    fn from_str(text: &str) -> Result<Self, BadJobName> {
        let has_valid_length = (1..=JOB_NAME_BYTES_MAX).contains(&text.len());
        if has_valid_length && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.into()))
        } else {
            // The text may be of any length.
            Err(BadJobName(text.chars().take(JOB_NAME_BYTES_MAX).collect()))
        }
    }
}

impl TryFrom<String> for JobName {
    type Error = BadJobName;

    fn try_from(text: String) -> Result<Self, BadJobName> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> String {
        name.as_str().to_owned()
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// A job in a message: `job 'NAME'`, or `no named job`.
pub fn describe(job: Option<&JobName>) -> String {
    job.map_or_else(|| "no named job".into(), |name| format!("job '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_name_is_short_and_printable() {
        for good in ["1", "train-7.a_b/c:42", &"x".repeat(JOB_NAME_BYTES_MAX)] {
            assert_eq!(good.parse::<JobName>().unwrap().as_str(), good);
        }
        for bad in ["", " ", "a b", "a\n", "é", "a\u{7f}", &"x".repeat(JOB_NAME_BYTES_MAX + 1)] {
            assert!(bad.parse::<JobName>().is_err(), "{bad:?}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<JobName>(&json).is_err(), "{bad:?}");
        }
        let long = "y".repeat(1 << 20).parse::<JobName>().unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }
}
