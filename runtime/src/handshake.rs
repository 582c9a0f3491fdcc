//! The sleep protocol between a sleeper and the threads or processes that post to it.
//!
//! A lost wake-up needs the sleeper to miss the post and the poster to miss the sleeper. Both sides write, then
//! fence, then read what the other writes, so at least one of them sees the other (Dekker's idea). A poster that
//! finds the sleeper awake pays one fence and one load, no system call.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const ASLEEP_DEEPLY: u32 = 2;
const IDLE: u32 = 3;

/// What work is to a sleeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It can wait until the sleeper wakes by itself, unless the sleep is light.
    Low,
    /// It wakes a sleeper that waits for anything.
    Normal,
    /// It wakes every sleeper: others wait for its answer.
    High,
}

/// Tells posters whether a shard, or a process on the other side of shared memory, sleeps.
///
/// It may lie in memory that another process writes: one word, 0 while awake, 2 while in a deep sleep (work of low urgency does not wake it),
/// 3 while idle (only work of high urgency wakes it), anything else while in a light sleep. So every value is legal: a wrong one costs a needless doorbell, or loses a wake-up of the
/// process that wrote it.
#[derive(Debug)]
#[repr(transparent)]
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// A flag that says awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    /// Poster, after publishing work: true if it must ring the doorbell; only one poster gets true.
    #[inline]
    pub fn must_ring(&self) -> bool {
        // Pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != AWAKE && self.0.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// [`must_ring`](Self::must_ring) for work that can wait until the sleeper wakes by itself: false if it is in a deep sleep.
    #[inline]
    pub fn must_ring_if_light(&self) -> bool {
        // Pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
        !matches!(self.0.load(Ordering::Relaxed), AWAKE | ASLEEP_DEEPLY | IDLE)
            && self.0.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// True if a poster must ring the doorbell for work of this urgency; only one poster gets true. The work was published by a sequentially
    /// consistent read-modify-write, which saves the fence of [`must_ring`](Self::must_ring).
    #[inline]
    pub fn must_ring_for(&self, urgency: Urgency) -> bool {
        // Loom has no sequentially consistent operations but fences.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        // Pairs with the fence in `announce`: the poster's read-modify-write, this load, that fence and the sleeper's last check are in one order.
        let state = self.0.load(Ordering::SeqCst);
        let hears = match state {
            AWAKE => false,
            ASLEEP_DEEPLY => urgency >= Urgency::Normal,
            IDLE => urgency == Urgency::High,
            _ => true,
        };
        hears && self.0.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// Like [`announce`](Self::announce), but for a sleeper that waits for nothing: only work of high urgency wakes it.
    #[inline]
    pub fn announce_idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
        // As in `announce`.
        fence(Ordering::SeqCst);
    }

    /// Like [`announce`](Self::announce), but for a deep sleep: work that can wait need not wake the sleeper.
    #[inline]
    pub fn announce_deep(&self) {
        self.0.store(ASLEEP_DEEPLY, Ordering::Relaxed);
        // Pairs with the fences in `must_ring` and `must_ring_if_light`.
        fence(Ordering::SeqCst);
    }

    /// Sleeper: announces that it is about to sleep. It must check for work once more before it does.
    #[inline]
    pub fn announce(&self) {
        self.0.store(ASLEEP, Ordering::Relaxed);
        // Pairs with the fence in `must_ring`.
        fence(Ordering::SeqCst);
    }

    /// Sleeper: it is awake and needs no doorbell.
    #[inline]
    pub fn awake(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }
}

impl Default for SleepFlag {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        thread,
    };

    use super::{SleepFlag, Urgency};

    struct Model {
        flag: SleepFlag,
        posts: AtomicUsize,
        rung: AtomicBool,
    }

    impl Model {
        fn post(&self) {
            self.posts.fetch_add(1, Ordering::Release);
            if self.flag.must_ring() {
                self.rung.store(true, Ordering::Release);
            }
        }
    }

    /// If the sleeper's last look finds nothing, every later post must ring.
    fn no_lost_wake_up(posters: usize) {
        loom::model(move || {
            let model =
                Arc::new(Model { flag: SleepFlag::new(), posts: AtomicUsize::new(0), rung: AtomicBool::new(false) });
            let threads: Vec<_> = (0..posters)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || model.post())
                })
                .collect();

            model.flag.announce();
            let seen = model.posts.load(Ordering::Acquire);
            for thread in threads {
                thread.join().unwrap();
            }
            model.flag.awake();
            let missed = posters - seen;
            assert!(missed == 0 || model.rung.load(Ordering::Acquire), "{missed} posts and no doorbell");
        });
    }

    #[test]
    fn loom_one_poster() {
        no_lost_wake_up(1);
    }

    #[test]
    fn loom_two_posters() {
        no_lost_wake_up(2);
    }

    /// An idle sleeper is woken by urgent work alone, and by all work once it sleeps lightly.
    #[test]
    fn loom_an_idle_sleep_that_becomes_light() {
        loom::model(|| {
            let model =
                Arc::new(Model { flag: SleepFlag::new(), posts: AtomicUsize::new(0), rung: AtomicBool::new(false) });
            model.flag.announce_idle();
            assert!(!model.flag.must_ring_for(Urgency::Low) && !model.flag.must_ring_for(Urgency::Normal));
            let poster = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.posts.fetch_add(1, Ordering::SeqCst);
                    if model.flag.must_ring_for(Urgency::Normal) {
                        model.rung.store(true, Ordering::Release);
                    }
                })
            };
            model.flag.announce();
            let seen = model.posts.load(Ordering::SeqCst);
            poster.join().unwrap();
            assert!(seen == 1 || model.rung.load(Ordering::Acquire), "a post and no doorbell");
        });
    }

    /// A sleeper that turns its deep sleep into a light one: later posts ring, or its last look sees them.
    #[test]
    fn loom_a_deep_sleep_that_becomes_light() {
        loom::model(|| {
            let model =
                Arc::new(Model { flag: SleepFlag::new(), posts: AtomicUsize::new(0), rung: AtomicBool::new(false) });
            model.flag.announce_deep();
            let poster = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    model.posts.fetch_add(1, Ordering::Release);
                    if model.flag.must_ring_if_light() {
                        model.rung.store(true, Ordering::Release);
                    }
                })
            };
            model.flag.announce();
            let seen = model.posts.load(Ordering::Acquire);
            poster.join().unwrap();
            assert!(seen == 1 || model.rung.load(Ordering::Acquire), "a post and no doorbell");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::SleepFlag;

    #[test]
    fn a_deep_sleeper_needs_the_doorbell_for_what_cannot_wait() {
        let flag = SleepFlag::new();
        assert!(!flag.must_ring_if_light());
        flag.announce();
        assert!(flag.must_ring_if_light() && !flag.must_ring_if_light());
        flag.announce_deep();
        assert!(!flag.must_ring_if_light());
        assert!(flag.must_ring() && !flag.must_ring());
    }
}
