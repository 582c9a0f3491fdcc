//! A plan of an attached task: the tensors of its last pull, where the daemon put them. Runs on the callers' threads; nobody
//! reads it while a pull writes.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Error, Keys, Payload, PullOptions, Pulled, SendOutcome, Tensor, TensorMeta, shm::BOARD_BYTES_PER_KEY,
    tensor::DType,
};

use crate::{
    attachment::{Attachment, Calls, Gathered, Landed, Placed, PlanOf, Pull, Seat},
    memory::Viewable,
    plan::{Pulls, not_pulled},
};

pub(crate) struct AttachedPlan {
    attachment: Arc<Attachment>,
    from: Box<str>,
    stripe: usize,
    keys: Keys,
    /// Places in the arena where its tensors are to arrive; if there are none, tensors come to the receive area.
    places: Box<[Bytes]>,
    /// Tensors in the arenas of other clients are viewed there.
    views: bool,
    /// Why a tensor that the pull reported could not be viewed: the pull is then repeated, for copies.
    unviewed: Option<Error>,
    copies: bool,
    /// The open plan at the daemon.
    seat: Option<Seat>,
    /// By key number.
    tensors: Vec<Option<Tensor>>,
    /// The versions, as the daemon writes them.
    board: Buffer,
    /// What the last pull did not bring, by key number.
    missed: Vec<(u32, Error)>,
    standing: Standing,
    state: PullState,
    /// The last pull, which may be in progress, and when it began.
    wish: Wish,
    begun: Instant,
    /// Restarts of the daemon before the pull was begun.
    restarts: u64,
}

/// What may be read of the last pull.
enum Standing {
    NotPulled,
    Pulled,
    /// Everything counts as missed.
    Failed(Error),
}

/// The state of a pull.
enum PullState {
    Idle,
    UnderWay(u32),
    /// The daemon drained before the pull ended: it is repeated at the next one.
    Again,
    /// A cancelled pull has to end before the next can begin.
    GivenUp(u32, Option<Wish>),
    Refused(Error),
}

/// Parameters of a pull that is to begin.
#[derive(Clone, Copy)]
struct Wish {
    min_version: i64,
    options: PullOptions,
}

/// Asks how a call ended.
type Ask<'a> = dyn FnMut(&Attachment, u32) -> Poll<Result<SendOutcome, Error>> + 'a;

impl AttachedPlan {
    pub(crate) fn new(attachment: &Arc<Attachment>, from: &str, keys: Keys) -> Self {
        Self {
            attachment: attachment.clone(),
            from: from.into(),
            stripe: 0,
            places: Box::default(),
            views: false,
            unviewed: None,
            copies: false,
            tensors: (0..keys.len()).map(|_| None).collect(),
            keys,
            seat: None,
            board: Buffer::default(),
            missed: Vec::new(),
            standing: Standing::NotPulled,
            state: PullState::Idle,
            wish: Wish { min_version: 0, options: PullOptions::default() },
            begun: Instant::now(),
            restarts: 0,
        }
    }

    /// A plan whose tensors arrive in these places, each of which has room for just its tensor, pulled over the shard `stripe` places
    /// after the one that serves the pair. Drop it once a pull of it has failed or was given up: the daemon may still write there.
    pub(crate) fn with_places(
        attachment: &Arc<Attachment>,
        (from, stripe): (&str, usize),
        keys: Keys,
        places: Vec<Bytes>,
    ) -> Self {
        let here = |place: &Bytes| {
            let meta = TensorMeta::new(DType::U8, &[place.len() as u64]).expect("bytes that there are");
            Some(Tensor::from_parts(meta, Payload::Bytes(place.clone())))
        };
        let mut plan = Self::new(attachment, from, keys);
        (plan.tensors, plan.places, plan.stripe) = (places.iter().map(here).collect(), places.into(), stripe);
        plan
    }

    /// The same plan, but large tensors of other clients of the daemon stay where they are, and are viewed there.
    pub(crate) fn viewing(mut self) -> Self {
        self.views = true;
        self
    }

    fn submit(&mut self, wish: Wish) {
        (self.wish, self.begun, self.copies) = (wish, Instant::now(), false);
        self.pull(wish.options.timeout, wish.options.timeout);
    }

    /// Pulls with so much time, of which a restart of the daemon may take `restart`.
    fn pull(&mut self, timeout: Option<Duration>, restart: Option<Duration>) {
        // From now on the daemon writes to the tensors.
        self.standing = Standing::NotPulled;
        self.restarts = self.attachment.restarts();
        if self.views {
            // Nobody reads what the last pull brought any more, and publishers wait for the memory.
            let is_view = |tensor: &Tensor| matches!(tensor.payload(), Payload::Bytes(_));
            self.tensors.iter_mut().for_each(|place| drop(place.take_if(|tensor| is_view(tensor))));
        }
        let plan = PlanOf { from: &self.from, stripe: self.stripe, keys: &self.keys, places: &self.places };
        let Wish { min_version, options: PullOptions { fail_if_gone, .. } } = self.wish;
        let pull = Pull { min_version, views: self.views && !self.copies, fail_if_gone };
        self.state = match self.attachment.pull(&mut self.seat, plan, pull, timeout, restart) {
            Ok(call) => PullState::UnderWay(call),
            Err(error) => PullState::Refused(error),
        };
    }

    /// True if a pull that a drain has ended is to be repeated at the next daemon, having time left.
    fn goes_on(&self, ended: &Result<(), Error>) -> bool {
        let is_drained = ended.as_ref().is_err_and(|error| error.code() == Code::Unavailable);
        let is_late = self.wish.options.timeout.is_some_and(|timeout| timeout <= self.begun.elapsed());
        is_drained && !is_late && self.places.is_empty() && self.attachment.ended_by_restart(self.restarts)
    }

    /// Advances the pull; `restart` limits the wait for a daemon that is being restarted.
    fn advance(&mut self, restart: Option<Duration>, ask: &mut Ask<'_>) -> Poll<Result<(), Error>> {
        loop {
            match std::mem::replace(&mut self.state, PullState::Idle) {
                PullState::Idle => panic!("the outcome was handed out before"),
                PullState::Refused(error) => return Poll::Ready(self.fail(error)),
                PullState::UnderWay(call) => {
                    self.state = PullState::UnderWay(call);
                    let outcome = ready!(ask(&self.attachment, call));
                    self.state = PullState::Idle;
                    let ended = self.end(outcome);
                    if let Some(error) = self.unviewed.take() {
                        // Unless a publisher has gone, later pulls do not view either.
                        (self.copies, self.views) = (true, error.code() == Code::NotFound);
                    } else if !self.goes_on(&ended) {
                        return Poll::Ready(ended);
                    }
                    self.state = PullState::Again;
                }
                PullState::Again => {
                    let left = self.wish.options.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()));
                    self.pull(left, restart.or(left));
                    if let PullState::Refused(error) = &self.state
                        && restart.is_some()
                        && self.goes_on(&Err(error.clone()))
                    {
                        self.state = PullState::Again;
                        return Poll::Pending;
                    }
                }
                PullState::GivenUp(call, wish) => {
                    self.state = PullState::GivenUp(call, wish);
                    let outcome = ready!(ask(&self.attachment, call));
                    self.state = PullState::Idle;
                    // Aborted means that the daemon gave it up too; it may also have ended before.
                    let ended = match outcome {
                        Ok(Err(error)) if error.code() == Code::Aborted => Ok(()),
                        outcome => outcome.and_then(|outcome| outcome),
                    };
                    // Nobody wants to hear how it ended.
                    let _ = self.settle(ended);
                    self.submit(wish.expect("nobody waits for a pull that was given up"));
                }
            }
        }
    }

    /// Handles a pull's outcome.
    fn end(&mut self, outcome: Result<SendOutcome, Error>) -> Result<(), Error> {
        if let Err(error) = self.settle(outcome.and_then(|outcome| outcome)) {
            return self.fail(error);
        }
        self.standing = Standing::Pulled;
        self.missed.first().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.standing = Standing::Failed(error.clone());
        Err(error)
    }

    /// Takes in what the daemon has reported of the plan. If the pull did not end properly, or the daemon is gone with its reports,
    /// the next pull opens the plan anew: the daemon may still write there.
    fn settle(&mut self, ended: Result<(), Error>) -> Result<(), Error> {
        self.missed.clear();
        let Self { attachment, tensors, board, missed, seat, unviewed, .. } = self;
        let settled = ended.and_then(|()| match *seat {
            Some(seat) => attachment.gathered(seat, |gathered| {
                *unviewed = take_in(gathered, tensors, board, missed, |viewable| attachment.view(seat, viewable));
            }),
            None => Ok(()),
        });
        if settled.is_err() {
            self.close();
        }
        settled
    }

    fn close(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.attachment.close_plan(seat);
        }
        self.tensors.iter_mut().for_each(|tensor| *tensor = None);
        self.board = Buffer::default();
        self.standing = Standing::NotPulled;
    }
}

impl Pulls for AttachedPlan {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn set_destination(&mut self, _index: usize, _memory: Buffer) {}

    fn get(&self, index: usize) -> Result<&Tensor, Error> {
        let tensor = &self.tensors[index];
        match &self.standing {
            Standing::Failed(error) => return Err(error.clone()),
            Standing::Pulled => {
                if let Ok(missed) = self.missed.binary_search_by_key(&index, |(missed, _)| *missed as usize) {
                    return Err(self.missed[missed].1.clone());
                }
            }
            Standing::NotPulled => return Err(not_pulled()),
        }
        tensor.as_ref().ok_or_else(not_pulled)
    }

    fn version(&self, index: usize) -> i64 {
        let bytes = self.board.get(index * BOARD_BYTES_PER_KEY..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }

    fn begin(&mut self, min_version: i64, options: PullOptions) {
        self.give_up();
        let wish = Wish { min_version, options };
        match self.state {
            PullState::GivenUp(call, _) => self.state = PullState::GivenUp(call, Some(wish)),
            _ => self.submit(wish),
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        match self.advance(None, &mut |attachment, call| Poll::Ready(attachment.wait(call, Calls::take_sent))) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => unreachable!("waiting ends with the call"),
        }
    }

    fn look(&mut self) -> Option<Result<(), Error>> {
        let looked = self.advance(Some(Duration::ZERO), &mut |attachment, call| {
            attachment.look(call, Calls::take_sent).transpose().map_or(Poll::Pending, Poll::Ready)
        });
        match looked {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.advance(None, &mut |attachment, call| attachment.poll(call, Calls::take_sent, context.waker()))
    }

    fn give_up(&mut self) {
        match self.state {
            PullState::UnderWay(call) => {
                self.attachment.cancel(call);
                self.state = PullState::GivenUp(call, None);
            }
            PullState::GivenUp(call, _) => self.state = PullState::GivenUp(call, None),
            PullState::Idle | PullState::Again | PullState::Refused(_) => self.state = PullState::Idle,
        }
    }

    fn take(&mut self, index: usize) -> Result<Pulled, Error> {
        let (version, tensor) = (self.version(index), self.get(index)?);
        // A tensor with a place stays there for the next pull.
        let tensor = if self.places.is_empty() { self.tensors[index].take() } else { Some(tensor.share()) };
        Ok(Pulled { tensor: tensor.ok_or_else(not_pulled)?, version })
    }
}

impl Drop for AttachedPlan {
    fn drop(&mut self) {
        if let PullState::UnderWay(call) | PullState::GivenUp(call, _) = self.state {
            // Closing the plan ends the call.
            self.attachment.forsake(call, false);
        }
        self.close();
    }
}

/// Enters what has changed with a pull. Tensors that could not be viewed count as missed; returns why.
fn take_in(
    gathered: Gathered,
    tensors: &mut [Option<Tensor>],
    board: &mut Buffer,
    missed: &mut Vec<(u32, Error)>,
    mut view: impl FnMut(Viewable) -> Result<Bytes, Error>,
) -> Option<Error> {
    let mut unviewed = None;
    let Gathered { board: new_board, placed, missed: now_missed } = gathered;
    *missed = now_missed;
    if let Some(new) = new_board {
        *board = new;
    }
    for Placed { index, meta, memory } in placed {
        let place = &mut tensors[index as usize];
        let payload = match memory {
            Some(Landed::Here(buffer)) => Ok(buffer.into()),
            Some(Landed::Elsewhere(viewable)) => {
                let viewed = view(viewable);
                unviewed = viewed.as_ref().err().cloned().or(unviewed);
                viewed.map(Payload::Bytes)
            }
            None => place.take().map(|tensor| tensor.into_parts().1).ok_or_else(not_pulled),
        };
        match payload.and_then(|payload| Tensor::new(meta, payload)) {
            Ok(tensor) => *place = Some(tensor),
            Err(error) => missed.push((index, error)),
        }
    }
    missed.sort_by_key(|(index, _)| *index);
    unviewed
}
