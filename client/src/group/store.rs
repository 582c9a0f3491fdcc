//! How the ranks of a group find each other before they have met.

use std::time::Duration;

use sealane_transport::Error;

/// A store that all ranks of a job share, such as PyTorch's: values under keys, where asking for a key waits until it is there.
pub trait Store {
    /// Puts a value under a key.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// The value under a key, once there is one.
    ///
    /// # Errors
    /// The store cannot be reached, or nobody has set the key in time.
    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error>;
}
