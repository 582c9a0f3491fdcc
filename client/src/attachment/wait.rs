//! Waiting: spin for a while, then sleep on the bell, or park while another thread sleeps on it. Runs on the callers' threads and the
//! driver; a call's wait ends `GRACE` after its deadline whatever the daemon does.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    task::{Wake, Waker},
    thread::Thread,
    time::Instant,
};

use sealane_runtime::Polling;
use sealane_transport::{Error, shm::Woken};

use super::{
    Attachment, Held, Line, State, Take, TakeSome,
    attend::Attendant,
    direct::{Awaited, Sleep},
    nudge,
};
use crate::{
    Attach, attach,
    clock::Tick,
    limits::{GRACE, LET_GO_LOOK, LET_GO_MAX, SPINS_PER_CLOCK, SWEEP_INTERVAL},
};

/// Who waits.
#[derive(Clone, Copy)]
pub(super) enum Waiter<'a> {
    /// The caller of this call.
    Caller(u32),
    /// The caller of a call over a channel.
    OverChannel(&'a dyn Awaited),
    /// The driver without a call to poll for: it answers other clients.
    Host,
    /// The driver, which waits for all calls that are awaited as futures.
    Driver,
    /// A thread that waits for a future.
    Attendant(&'a Attendant),
}

impl Attachment {
    /// Waits for the end of a call.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, where the call never ends.
    #[inline(always)]
    pub(crate) fn wait<T>(&self, call: u32, take: Take<T>) -> Result<T, Error> {
        self.check_fork()?;
        let mut held = self.lock();
        if !held.calls.is_owed(call) {
            held.pump();
            if !held.calls.is_owed(call) {
                drop(held);
                held = self.wait_on(call);
            }
        }
        Ok(held.take(call, take).expect("a wait ends with the call"))
    }

    /// How a call ended, if it has.
    ///
    /// # Errors
    /// InvalidArgument in a forked child.
    #[inline]
    pub(crate) fn look<T>(&self, call: u32, take: Take<T>) -> Result<Option<T>, Error> {
        self.check_fork()?;
        let mut held = self.lock();
        if !held.calls.is_owed(call) {
            held.pump();
            if !held.calls.is_owed(call) {
                held.chores();
                held.check_life(Tick::now());
                if !held.calls.is_owed(call) {
                    return Ok(None);
                }
            }
        }
        Ok(held.take(call, take))
    }

    /// Waits for the end of many calls, in order; takes the lock once for all that have ended by then. `some` takes the outcomes of the
    /// first calls as far as it can, `one` of a call that has ended, and `finish` completes that without the lock.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, where the calls never end.
    pub(crate) fn wait_all<T, O>(
        &self,
        calls: &[u32],
        some: TakeSome<O>,
        (one, finish): (Take<T>, fn(T) -> O),
        outcomes: &mut Vec<O>,
    ) -> Result<(), Error> {
        self.check_fork()?;
        let (mut held, mut rest) = (self.lock(), calls);
        while let Some((call, others)) = rest.split_first() {
            if !held.calls.is_owed(*call) {
                held.pump();
            }
            if !held.calls.is_owed(*call) {
                drop(held);
                held = self.wait_on(*call);
            }
            match some(&mut held.calls, rest, outcomes) {
                0 => {
                    let taken = held.take(*call, one).expect("a wait ends with the call");
                    held.pause(|| outcomes.push(finish(taken)));
                    rest = others;
                }
                count => rest = &rest[count..],
            }
        }
        held.hand_over();
        Ok(())
    }

    fn wait_on(&self, call: u32) -> Held<'_> {
        let waiter = Waiter::Caller(call);
        loop {
            let held = self.spin(waiter);
            if held.calls.is_owed(call) {
                return held;
            }
            let held = self.sleep(held, waiter);
            if held.calls.is_owed(call) {
                return held;
            }
        }
    }

    /// Waits for the end of a call over a channel, or until the daemon is lost.
    pub(crate) fn wait_over_channel(&self, call: &dyn Awaited) {
        let waiter = Waiter::OverChannel(call);
        let mut held = self.spin(waiter);
        if !held.is_over(waiter) {
            held = self.sleep(held, waiter);
        }
        // Somebody must go on to listen, if only to answer other clients.
        held.hand_over();
    }

    /// How a waiting thread polls before it sleeps, if the user has set it.
    pub(crate) fn polling(&self) -> Option<Polling> {
        self.settings.polling
    }

    /// False if a waiting thread is to sleep at once.
    pub(crate) fn may_spin(&self) -> bool {
        self.settings.polling != Some(Polling::Park)
    }

    /// Blocks until the daemon has given a connection for a stream with `peer`: a new one, or that of `number`, which the peer has.
    ///
    /// # Errors
    /// The daemon's, and Unavailable if it does not answer.
    pub(crate) fn stream_connection(&self, peer: &str, number: Option<u64>) -> Result<(u64, OwnedFd), Error> {
        attach::stream_connection(&self.settings, peer, number, Instant::now())
    }

    /// Polls the rings for as long as the policy says, or until the waiter has what it waits for. The driver polls while there is
    /// something to wait for.
    pub(super) fn spin(&self, waiter: Waiter<'_>) -> Held<'_> {
        let mut held = self.lock();
        let polling = match self.settings.polling {
            Some(polling) => polling,
            None if held.patience.may_spin() => Polling::idle(Attach::IDLE_SPIN),
            None => Polling::Park,
        };
        held.start_spinning(waiter);
        drop(held);
        let started = Instant::now();
        let mut held = self.look_on(waiter, polling, started);
        if self.settings.polling.is_none() && polling != Polling::Park {
            let answered = held.is_over(waiter);
            held.patience.has_spun(answered, started.elapsed());
        }
        held.stop_spinning();
        held
    }

    fn look_on(&self, waiter: Waiter<'_>, polling: Polling, started: Instant) -> Held<'_> {
        let looks = if polling == Polling::Park { 1 } else { SPINS_PER_CLOCK };
        loop {
            for _ in 0..looks {
                // A moment in which others find the lock free.
                std::hint::spin_loop();
                if let Waiter::OverChannel(call) = waiter {
                    // Its channel alone is polled, without the attachment's lock, which is taken from time to time below.
                    if call.channel().has_news() && call.channel().look(call) {
                        return self.lock();
                    }
                    continue;
                }
                let Some(mut held) = self.try_lock() else { continue };
                held.pump();
                if held.is_over(waiter) {
                    return held;
                }
            }
            let mut held = self.lock();
            match polling {
                Polling::Park => return held,
                Polling::SpinThenPark { idle_spin } if started.elapsed() >= idle_spin => return held,
                Polling::SpinThenPark { .. } | Polling::Spin => {}
            }
            let now = Tick::now();
            held.check_life(now);
            held.chores();
            held.look_after_lanes(now);
            held.expire(waiter);
            let ended = match waiter {
                Waiter::Caller(_) => false,
                Waiter::OverChannel(_) => {
                    held.pump();
                    !matches!(held.line, Line::Up(_))
                }
                Waiter::Host => true,
                // Two threads that poll the same rings find no more than one.
                Waiter::Driver => held.attending > 0 || held.has_unplaced() || held.wants_lanes(),
                Waiter::Attendant(attendant) => attendant.is_late(),
            };
            if ended || held.is_over(waiter) {
                return held;
            }
        }
    }

    /// Sleeps until something happens that may concern the waiter, which then has to check again.
    pub(super) fn sleep<'a>(&'a self, mut held: Held<'a>, waiter: Waiter<'_>) -> Held<'a> {
        held.pump();
        held.chores();
        if !held.driver.is_there() {
            held.look_after_lanes(Tick::now());
        }
        held.expire(waiter);
        if !matches!(waiter, Waiter::Driver | Waiter::Host) {
            held.listening.naps += 1;
        }
        match &held.line {
            Line::Up(_) if held.is_over(waiter) => held,
            Line::Up(_) if held.listening.thread => self.park(held, waiter),
            Line::Up(_) => self.listen(held, waiter),
            Line::Lost(_) | Line::Ended(_) => held,
        }
    }

    fn listen<'a>(&'a self, mut held: Held<'a>, waiter: Waiter<'_>) -> Held<'a> {
        if !self.may_be_rung_for(&mut held, waiter) {
            let waker = held.listening.end();
            held.aftermath.wakers.extend(waker);
            self.is_awake(&held);
            return held;
        }
        held.listening.thread = true;
        held.listening.is_host = matches!(waiter, Waiter::Host);
        // Nobody rings when there is room again.
        let timeout = held.time_left(waiter).into_iter().chain(held.look_again()).min();
        let timeout = timeout.into_iter().chain(held.lanes_due(waiter)).min();
        let (serial, ear, others) = (held.link().serial, held.link().ear.clone(), held.link().direct.ear());
        let mut may_listen = true;
        match waiter {
            Waiter::Caller(call) => {
                // Another thread that polls the rings may find this call's answer: no bell rings for it.
                let state = &mut *held;
                state.calls.wake_at_end(call, &self.nudge_waker, false, &mut state.aftermath);
            }
            Waiter::OverChannel(call) => held.wake_at_end(call, &self.nudge_waker),
            Waiter::Driver | Waiter::Host => {}
            Waiter::Attendant(attendant) => may_listen = attendant.may_listen(),
        }
        drop(held);

        let woken = if may_listen { self.nudge.listen(&ear, others.as_deref(), timeout) } else { Woken::Rung };

        if let Waiter::Attendant(attendant) = waiter {
            attendant.has_listened();
        }
        let mut held = self.lock();
        let waker = held.listening.end();
        held.aftermath.wakers.extend(waker);
        self.asleep.store(false, Ordering::SeqCst);
        if let Line::Up(link) = &held.line
            && link.serial == serial
        {
            link.awake();
            if woken == Woken::HungUp {
                held.hung_up();
            }
        }
        held.pump();
        held.wake_nobody(waiter);
        held
    }

    /// Has everyone who has something to say ring for the waiter, which is about to listen; false if something has been said already.
    pub(super) fn may_be_rung_for(&self, held: &mut Held<'_>, waiter: Waiter<'_>) -> bool {
        // ASLEEP: see `Area::has_piled`.
        self.asleep.store(true, Ordering::SeqCst);
        if matches!(&held.line, Line::Up(link) if link.has_chores()) {
            held.chores();
        }
        let sleep = match held.wants_answers_alone(waiter) {
            true if matches!(waiter, Waiter::Host) => Sleep::Idle,
            true => Sleep::Deep,
            false => Sleep::Light,
        };
        held.listening.is_idle = sleep == Sleep::Idle;
        match &mut held.line {
            Line::Up(link) => link.may_sleep(sleep),
            Line::Lost(_) | Line::Ended(_) => false,
        }
    }

    /// The waiter is awake: nobody has to ring.
    pub(super) fn is_awake(&self, held: &Held<'_>) {
        if let Line::Up(link) = &held.line {
            link.awake();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Sleeps while another thread listens.
    fn park<'a>(&'a self, mut held: Held<'a>, waiter: Waiter<'_>) -> Held<'a> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let ticket = held.next_parked;
        held.next_parked += 1;
        let mut timeout = held.time_left(waiter);
        if matches!(waiter, Waiter::Driver | Waiter::Host) {
            timeout = timeout.into_iter().chain(held.look_again()).chain(held.lanes_due(waiter)).min();
            held.driver.rests();
        }
        if let Waiter::Caller(call) = waiter {
            let state = &mut *held;
            state.calls.wake_at_end(call, &waker, false, &mut state.aftermath);
        }
        if let Waiter::OverChannel(call) = waiter {
            held.wake_at_end(call, &waker);
        }
        held.parked.push((ticket, waker));
        // The listener may have waited for nothing so far.
        held.have_all_rung_for();
        drop(held);

        match timeout {
            Some(timeout) => std::thread::park_timeout(timeout),
            None => std::thread::park(),
        }

        let mut held = self.lock();
        held.parked.retain(|(parked, _)| *parked != ticket);
        held.pump();
        held.wake_nobody(waiter);
        held
    }
}

impl Held<'_> {
    /// Waits until the daemon hangs up after the goodbye.
    pub(super) fn wait_for_hang_up(&mut self) {
        let until = Instant::now() + LET_GO_MAX;
        while Instant::now() < until {
            let State { line: Line::Up(link), listening, .. } = &mut **self else { return };
            // There may have been no room for the goodbye before.
            link.detach();
            // A listener hears the hang-up anyway.
            if !listening.thread && nudge::now(&link.ear) == Woken::HungUp {
                self.hung_up();
                return;
            }
            self.pump();
            self.pause(|| std::thread::sleep(LET_GO_LOOK));
        }
    }

    /// Waits until the daemon has been told what waits in this process, as far as it reads.
    pub(super) fn wait_for_backlog(&mut self) {
        let until = Instant::now() + LET_GO_MAX;
        while self.has_backlog() && Instant::now() < until {
            self.pause(|| std::thread::sleep(LET_GO_LOOK));
            self.pump();
            self.chores();
        }
    }

    /// Waits until the daemon releases the memory of a recv that was given up, which its caller may write again then: what comes after
    /// that may be torn, and is not kept. Of many that are given up, one waits for a shard that reads nothing.
    pub(super) fn wait_for_release(&mut self, segment: u16, call: u32) {
        let until = Instant::now() + LET_GO_MAX;
        loop {
            self.pump();
            if !self.calls.borrows(call) {
                return;
            }
            if Instant::now() >= until {
                if let Line::Up(link) = &mut self.line {
                    link.note_vain_wait(segment);
                }
                return self.calls.distrust(call);
            }
            if matches!(&self.line, Line::Up(link) if link.stands_still(segment)) {
                return self.calls.distrust(call);
            }
            self.chores();
            self.check_life(Tick::now());
            self.pause(|| std::thread::sleep(LET_GO_LOOK));
        }
    }

    /// A thread polls the rings from now on: as long as it does, nobody need ring for the listener. If that waits for nothing, and the thread
    /// for a channel alone, nobody would.
    pub(super) fn start_spinning(&mut self, waiter: Waiter<'_>) {
        self.spinning += 1;
        if !self.listening.is_there() || matches!(waiter, Waiter::OverChannel(_)) && self.listens_idly() {
            return;
        }
        self.listening.is_idle = false;
        if let Line::Up(link) = &self.line {
            link.awake();
        }
    }

    /// A thread polls no longer: the listener must be rung for again, and told of what came in between.
    pub(super) fn stop_spinning(&mut self) {
        self.spinning -= 1;
        if !self.listens_idly() {
            self.have_all_rung_for();
        }
    }

    /// True if the listener waits for nothing, and neither does anybody whom it would wake, and other clients know that.
    fn listens_idly(&self) -> bool {
        self.listening.is_idle && self.may_idle()
    }

    /// True if a listener that only answers others need not be rung for otherwise.
    fn may_idle(&self) -> bool {
        self.has_nothing_to_drive() && self.wants_answers_alone(Waiter::Host)
    }

    /// True if nobody waits for a send to be released, or a publication to be known, while this waiter listens.
    fn wants_answers_alone(&self, waiter: Waiter<'_>) -> bool {
        let is_answered = match waiter {
            Waiter::Caller(call) => self.calls.is_answered(call),
            Waiter::OverChannel(_) => false,
            Waiter::Driver | Waiter::Attendant(_) => !self.waits_for_acknowledgements(),
            Waiter::Host => true,
        };
        let is_alone = self.parked.is_empty() && self.calls.watched_releases() == 0;
        // A draining daemon waits until this process knows everything.
        let is_settled = !self.has_backlog() && matches!(&self.line, Line::Up(link) if !link.draining);
        is_answered && is_alone && is_settled
    }

    /// Has the daemon ring for everything, if a listener sleeps and nobody polls the rings meanwhile.
    pub(super) fn have_all_rung_for(&mut self) {
        if !self.listening.is_there() || self.spinning > 0 {
            return;
        }
        let sleep = if self.listening.is_host && self.may_idle() { Sleep::Idle } else { Sleep::Light };
        self.listening.is_idle = sleep == Sleep::Idle;
        let State { line: Line::Up(link), .. } = &mut **self else { return };
        if !link.may_sleep(sleep) {
            let nudge = self.attachment.nudge_waker.clone();
            self.aftermath.wakers.push(nudge);
        }
    }

    /// True if the waiter has what it waits for.
    #[inline]
    fn is_over(&self, waiter: Waiter<'_>) -> bool {
        match waiter {
            Waiter::Caller(call) => self.calls.is_owed(call),
            Waiter::OverChannel(call) => call.has_ended(&mut call.channel().lock()),
            Waiter::Driver => self.has_nothing_to_drive() || !matches!(self.line, Line::Up(_)),
            Waiter::Host => !self.has_nothing_to_drive() || self.wants_lanes() || !self.has_channels(),
            Waiter::Attendant(attendant) => attendant.is_woken(),
        }
    }

    /// The waiter is awake again and needs no waker.
    fn wake_nobody(&mut self, waiter: Waiter<'_>) {
        match waiter {
            Waiter::Caller(call) => self.calls.wake_nobody(call),
            Waiter::OverChannel(call) => call.wake_nobody(&mut call.channel().lock()),
            Waiter::Driver | Waiter::Host | Waiter::Attendant(_) => {}
        }
    }

    /// Wakes `waker` when a call over a channel ends.
    fn wake_at_end(&mut self, call: &dyn Awaited, waker: &Waker) {
        let before = call.wake_at_end(&mut call.channel().lock(), waker, false);
        self.aftermath.wakers.extend(before);
    }

    /// How long the driver may sleep before the lanes need attention; other waiters leave the lanes to it if there is one.
    pub(super) fn lanes_due(&mut self, waiter: Waiter<'_>) -> Option<std::time::Duration> {
        if matches!(waiter, Waiter::Driver | Waiter::Host) || !self.driver.is_there() {
            self.attend_lanes_in()
        } else {
            None
        }
    }

    fn time_left(&mut self, waiter: Waiter<'_>) -> Option<std::time::Duration> {
        let now = Tick::now();
        match waiter {
            Waiter::Caller(call) => match self.calls.deadline(call) {
                Tick::NEVER => None,
                deadline => deadline.after(GRACE).from(now),
            },
            // The channel may have to be swept earlier than at the call's deadline: if its step has ended.
            Waiter::OverChannel(call) => {
                let earliest = Tick::of_milliseconds(call.channel().lock().half.earliest());
                call.deadline().min(earliest).from(now)
            }
            Waiter::Driver => Some(SWEEP_INTERVAL),
            Waiter::Host => None,
            Waiter::Attendant(attendant) => Some(attendant.time_left()),
        }
    }

    /// Ends calls that the daemon should have ended long ago.
    fn expire(&mut self, waiter: Waiter<'_>) {
        match waiter {
            Waiter::Caller(call) => {
                if self.calls.deadline(call).after(GRACE) < Tick::now() {
                    let error = self.silent();
                    let state = &mut **self;
                    state.calls.overdue(call, error, &mut state.aftermath);
                }
            }
            Waiter::OverChannel(call) => {
                let channel = call.channel();
                let mut inner = channel.lock();
                inner.half.sweep(Tick::now().milliseconds());
                channel.finish_held(inner, &mut self.aftermath.wakers);
            }
            Waiter::Driver | Waiter::Host | Waiter::Attendant(_) => self.sweep(),
        }
    }

    /// True if a future waits until a peer has taken a tensor.
    fn waits_for_acknowledgements(&self) -> bool {
        matches!(&self.line, Line::Up(link) if link.direct.has_send_waiters())
    }

    /// The error of a call that the daemon does not end.
    pub(super) fn silent(&self) -> Error {
        let daemon = match &self.line {
            Line::Up(link) => &link.daemon,
            Line::Lost(_) | Line::Ended(_) => "the daemon",
        };
        Error::unavailable(daemon, format!("it does not answer: the call's deadline passed {GRACE:?} ago"))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
