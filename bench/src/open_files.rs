//! How many files this process may have open: as many as the system lets it have, which is seldom what it starts with.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::BenchError;

/// What a process has open besides its peers: its streams, a shard's descriptors, a listener.
const FILES_BESIDE: usize = 64;

/// Lets this process open `each` files for each of `peers`, whom `setting` has given, and all that the system allows
/// besides.
///
/// # Errors
/// [`BenchError::Setting`] when the system does not allow so many.
pub(crate) fn allow_for(setting: &'static str, peers: usize, each: usize) -> Result<(), BenchError> {
    let limits = getrlimit(Resource::RLIMIT_NOFILE).map_err(BenchError::io("ask how many files may be open"));
    let (now, most) = limits?;
    let most_peers = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(FILES_BESIDE) / each;
    if peers > most_peers {
        let accepted = format!("at most {most_peers}, or raise the hard limit of open files ({most})");
        return Err(BenchError::setting(setting, peers, accepted));
    }
    if now < most {
        setrlimit(Resource::RLIMIT_NOFILE, most, most)
            .map_err(BenchError::io(format!("raise the limit of open files to {most}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_the_system_allows_is_taken() {
        allow_for("--peers", 1, 1).expect("a few files may be open");
        let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("linux tells");
        assert_eq!(now, most);
    }

    #[test]
    fn more_than_the_system_allows_is_the_users_to_change() {
        let error = allow_for("--peers", usize::MAX, 1).expect_err("no system allows it");
        assert!(error.is_usage() && error.to_string().contains("hard limit of open files"), "{error}");
    }
}
