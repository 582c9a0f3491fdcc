//! Which version of its tensors a ps has come to, and who waits for a later one. On one shard.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The version of a ps; the first is 0.
#[derive(Default)]
pub(super) struct Versions {
    current: Cell<i64>,
    /// One for each task that waits; bounded by the workers.
    waiting: RefCell<Vec<Waker>>,
}

impl Versions {
    /// Begins the next version, and gives its number.
    pub(super) fn advance(&self) -> i64 {
        self.current.set(self.current.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
        self.current.get()
    }

    /// Waits until there is this version, or a later one.
    pub(super) async fn reached(&self, version: i64) {
        poll_fn(|context| {
            if self.current.get() >= version {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_version_is_waited_for_until_it_is_there() {
        let versions = Versions::default();
        assert_eq!(versions.reached(0).now_or_never(), Some(()));
        let mut second = pin!(versions.reached(2));
        for (version, expected) in [(1, None), (2, Some(()))] {
            assert_eq!(second.as_mut().now_or_never(), None);
            assert_eq!(versions.advance(), version);
            if expected.is_some() {
                assert_eq!(second.as_mut().now_or_never(), expected);
            }
        }
    }
}
