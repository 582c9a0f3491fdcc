//! The callers of the connect baseline: as many bytes in and out as a greeting of Sealane has.

use crate::systems::crowd::Manners;
use crate::systems::sealane;

/// Callers that say and hear zeros.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems) struct Zeros {
    pub(super) hello_bytes: usize,
    pub(super) welcome_bytes: usize,
}

impl Zeros {
    /// As many as Sealane's greetings have.
    pub(in crate::systems) fn like_sealane() -> Self {
        let (hello_bytes, welcome_bytes) = sealane::greeting_bytes();
        Self { hello_bytes, welcome_bytes }
    }
}

impl Manners for Zeros {
    fn greeting(self, _caller: usize, _visit: u64) -> Vec<u8> {
        vec![0; self.hello_bytes]
    }

    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
        Ok((heard.len() >= self.welcome_bytes).then_some(self.welcome_bytes))
    }

    fn answer(self, heard: &[u8], _answers: &mut Vec<u8>) -> Result<usize, String> {
        if heard.is_empty() { Ok(0) } else { Err(format!("it said {} bytes too many", heard.len())) }
    }
}
