//! Sends and recvs in progress: a thread that waits for one moves the messages of all. While nobody waits, a progress thread does, which
//! is started on first use and sleeps while nothing is in progress.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use sealane_transport::{
    Error,
    interrupt::is_interrupted,
    shm::group::{GroupWords, Mailboxes, Word},
};

use super::{
    hosts::network::Purpose,
    mail::{Given, Mail, Room, deadline},
    members::Members,
};
use crate::group::limits::{
    GROUP_FAR_LOOKS, GROUP_LOOK, GROUP_PROGRESS_IDLE, GROUP_PROGRESS_TICK, GROUP_SPINS_PER_CLOCK,
};

/// The messages of one rank.
pub(super) struct Post {
    members: Arc<Members>,
    mail: Mutex<Mail>,
    /// Threads that move messages because they wait for one.
    movers: AtomicUsize,
    /// Threads that sleep until another rank notifies this one.
    sleepers: Mutex<u32>,
    progress_thread: Mutex<Option<Thread>>,
    /// The progress thread sleeps until it is called, not just for a tick.
    rests: AtomicBool,
}

/// A send or a recv of a [`Group`](super::Group). When dropped, a send goes on and a recv is given up.
#[must_use = "wait for it"]
pub struct Message {
    post: Arc<Post>,
    id: u64,
    is_over: bool,
}

impl Post {
    pub(super) fn new(members: Arc<Members>, boxes: Mailboxes) -> Arc<Post> {
        Arc::new(Post {
            mail: Mutex::new(Mail::new(members.clone(), boxes)),
            members,
            movers: AtomicUsize::new(0),
            sleepers: Mutex::new(0),
            progress_thread: Mutex::new(None),
            rests: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, then calls those whose messages have ended.
    fn unlock(mut mail: MutexGuard<'_, Mail>) {
        let aftermath = mail.take_aftermath();
        drop(mail);
        aftermath.run();
    }

    pub(super) fn send(self: &Arc<Self>, given: Given, to: usize, tag: i64) -> Result<Message, Error> {
        self.start(to, |mail| mail.send(given, to, tag))
    }

    pub(super) fn recv(self: &Arc<Self>, room: Room, from: Option<usize>, tag: i64) -> Result<Message, Error> {
        self.start(from.unwrap_or(0), |mail| mail.recv(room, from, tag))
    }

    fn start(self: &Arc<Self>, peer: usize, enter: impl FnOnce(&mut Mail) -> u64) -> Result<Message, Error> {
        self.members.check()?;
        let size = self.members.layout().size();
        if peer >= size {
            return Err(Error::invalid(format!("there is no rank {peer} in a group of {size}")));
        }
        let mut mail = self.lock();
        let id = enter(&mut mail);
        mail.advance();
        let is_over = mail.look(id).is_some();
        Post::unlock(mail);
        if !is_over {
            self.call_progress_thread();
        }
        Ok(Message { post: self.clone(), id, is_over: false })
    }

    /// Moves messages until `is_over`, or until `until`: then false.
    fn attend(&self, is_over: impl Fn(&Mail) -> bool, until: Option<Instant>) -> bool {
        loop {
            // Polling connections costs a system call.
            let spins = if self.lock().is_busy_far() { GROUP_FAR_LOOKS } else { self.members.spins() };
            for spin in 1..=spins {
                let mut mail = self.lock();
                let moved = mail.advance();
                let over = is_over(&mail);
                Post::unlock(mail);
                if over {
                    return true;
                }
                if spin % GROUP_SPINS_PER_CLOCK == 0 && until.is_some_and(|until| until <= Instant::now()) {
                    break;
                }
                if !moved {
                    std::hint::spin_loop();
                }
            }
            let left = until.map_or(GROUP_LOOK, |until| until.saturating_duration_since(Instant::now()));
            if !left.is_zero() {
                self.sleep(left.min(GROUP_LOOK), &is_over);
            }
            let mut mail = self.lock();
            mail.look_around();
            let over = is_over(&mail);
            Post::unlock(mail);
            if over || left.is_zero() || is_interrupted() {
                return over;
            }
        }
    }

    /// Sleeps until another rank notifies this one.
    fn sleep(&self, limit: Duration, is_over: impl Fn(&Mail) -> bool) {
        self.count_sleepers(1);
        // SLEEP: see `Members::tell`.
        fence(Ordering::SeqCst);
        let mut mail = self.lock();
        let told = mail.told();
        let moved = mail.advance() || is_over(&mail);
        let (here, far) = (mail.is_busy_here(), mail.is_busy_far());
        Post::unlock(mail);
        match self.members.network() {
            _ if moved => {}
            // Neither what comes through memory nor what another thread is woken for ends this sleep.
            Some(network) if far => {
                let shares = here || self.movers.load(Ordering::SeqCst) > 1;
                network.wait(Purpose::Messages, if shares { GROUP_PROGRESS_TICK } else { limit });
            }
            _ => GroupWords::wait_any(told.iter().map(|(words, word, seen)| (words, *word, *seen)), limit),
        }
        self.count_sleepers(-1);
    }

    fn count_sleepers(&self, change: i32) {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepers = sleepers.wrapping_add_signed(change);
        self.members.own().store(Word::Listens, *sleepers);
    }

    /// Something is in progress that nobody may wait for.
    fn call_progress_thread(self: &Arc<Self>) {
        let mut progress_thread = self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner);
        match &*progress_thread {
            // A thread that polls anyway is left alone: it would only take the CPU of those who wait.
            Some(thread) => {
                if self.rests.swap(false, Ordering::SeqCst) {
                    thread.unpark();
                }
            }
            None => {
                let post = Arc::downgrade(self);
                let started = thread::Builder::new().name("sealane-progress".into()).spawn(move || deliver(&post));
                // Without a thread, messages move only while somebody waits for one.
                *progress_thread = started.ok().map(|started| started.thread().clone());
            }
        }
    }

    /// Ends everything: the group is left.
    pub(super) fn close(&self, error: &Error) {
        let mut mail = self.lock();
        mail.end_all(error);
        Post::unlock(mail);
        if let Some(progress_thread) = &*self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner) {
            progress_thread.unpark();
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if self.members.is_forked() {
            return;
        }
        // It finds that nothing is left to do.
        if let Some(progress_thread) = &*self.progress_thread.lock().unwrap_or_else(PoisonError::into_inner) {
            progress_thread.unpark();
        }
    }
}

/// Counts a thread that moves messages, as long as this lives.
struct Moves<'p>(&'p AtomicUsize);

impl<'p> Moves<'p> {
    fn begin(movers: &'p AtomicUsize) -> Self {
        movers.fetch_add(1, Ordering::SeqCst);
        Moves(movers)
    }
}

impl Drop for Moves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs in the thread that moves messages for which nobody waits.
fn deliver(post: &Weak<Post>) {
    let mut idle_since = Instant::now();
    loop {
        // Threads that are about to wait are faster.
        thread::park_timeout(GROUP_PROGRESS_TICK);
        let Some(post) = post.upgrade() else { return };
        if post.movers.load(Ordering::SeqCst) > 0 {
            idle_since = Instant::now();
            continue;
        }
        if post.lock().is_busy() {
            let is_needed = |mail: &Mail| !mail.is_busy() || post.movers.load(Ordering::SeqCst) > 0;
            post.attend(is_needed, deadline(Some(GROUP_LOOK)));
            idle_since = Instant::now();
        } else if idle_since.elapsed() > GROUP_PROGRESS_IDLE {
            post.rests.store(true, Ordering::SeqCst);
            // Whoever starts a message from here on calls this thread.
            let is_busy = post.lock().is_busy();
            drop(post);
            if !is_busy {
                thread::park();
            }
            idle_since = Instant::now();
        }
    }
}

impl Message {
    /// Waits until a send's bytes are not needed any more, or a recv has its message; returns the rank that it went to or came from.
    ///
    /// # Errors
    /// [`Error::Left`] if the other rank has left the group or its process has ended; [`Error::TimedOut`]; InvalidArgument if the message
    /// has another size than the recv; and the error that has ended the group.
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.wait_on(timeout)?;
        self.is_over = true;
        self.post.lock().take(self.id).unwrap_or_else(|| Err(Error::invalid("its outcome was taken before")))
    }

    /// [`wait`](Self::wait), but the outcome can be asked for again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_on(&self, timeout: Option<Duration>) -> Result<usize, Error> {
        if self.post.members.is_forked() {
            self.post.members.check()?;
        }
        let (id, until) = (self.id, deadline(timeout));
        let moves = Moves::begin(&self.post.movers);
        let in_time = self.post.attend(|mail| mail.look(id).is_some(), until);
        drop(moves);
        let mut mail = self.post.lock();
        if !in_time && is_interrupted() {
            let reason = "a signal interrupted the wait for a message, which continues";
            return Err(Error::TimedOut { reason: reason.into() });
        }
        if !in_time {
            mail.give_up(id, timeout.unwrap_or_default());
        }
        let outcome = mail.look(id).cloned().unwrap_or_else(|| Err(Error::invalid("its outcome was taken before")));
        Post::unlock(mail);
        outcome
    }

    /// The outcome, if the message has ended.
    pub fn outcome(&self) -> Option<Result<usize, Error>> {
        if self.post.members.is_forked() {
            return self.post.members.check().err().map(Err);
        }
        let mut mail = self.post.lock();
        mail.advance();
        let outcome = mail.look(self.id).cloned();
        Post::unlock(mail);
        outcome
    }

    /// Has `then` called with the outcome, on whichever thread finds out, and at once if it has ended. A later call replaces it.
    pub fn then(&self, then: impl FnOnce(&Result<usize, Error>) + Send + 'static) {
        if let (true, Err(error)) = (self.post.members.is_forked(), self.post.members.check()) {
            return then(&Err(error));
        }
        let mut mail = self.post.lock();
        mail.then(self.id, Box::new(then));
        Post::unlock(mail);
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if self.is_over || self.post.members.is_forked() {
            return;
        }
        let mut mail = self.post.lock();
        mail.forget(self.id);
        Post::unlock(mail);
    }
}
