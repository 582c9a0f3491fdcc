//! What happens to a request when its producer's task leaves: the consumer's half of that protocol. Pure; the producer's
//! half, and the test of both, are in `fusion/src/presence.rs`.
//!
//! A task may have been attached before, and may be again: each attachment has a number. A request that should fail when
//! the task is gone is told the number of the attachment that it waits for, and includes it when it is sent again on
//! another link. So a request that waited for a process that has ended never waits for the next one, whatever was lost with
//! the link.

/// What happens to a request when its producer's task leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum IfGone {
    /// It waits for the next attachment.
    #[default]
    Waits,
    /// It fails, also if the task had already left.
    Fails {
        /// The attachment that it waits for; 0 if it was told none yet.
        attachment: u32,
    },
}

impl IfGone {
    /// For a request that was not sent yet.
    pub fn new(fails: bool) -> IfGone {
        if fails { IfGone::Fails { attachment: 0 } } else { IfGone::Waits }
    }

    #[inline]
    pub fn fails(self) -> bool {
        self != IfGone::Waits
    }

    /// The attachment that the request waits for; 0 if none is known.
    #[inline]
    pub fn attachment(self) -> u32 {
        match self {
            IfGone::Waits => 0,
            IfGone::Fails { attachment } => attachment,
        }
    }

    /// The producer says for which attachment the request waits: the first number counts.
    pub fn told(&mut self, number: u32) {
        if let IfGone::Fails { attachment: attachment @ 0 } = self {
            *attachment = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attachment_that_a_request_is_told_of_is_its_own() {
        let (mut waits, mut fails) = (IfGone::new(false), IfGone::new(true));
        for number in [0, 7, 8, 0] {
            waits.told(number);
            fails.told(number);
        }
        assert_eq!((waits, fails), (IfGone::Waits, IfGone::Fails { attachment: 7 }));
        assert_eq!((waits.attachment(), fails.attachment()), (0, 7));
        assert!(fails.fails() && !waits.fails());
    }
}
