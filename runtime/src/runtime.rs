//! The runtime: starts the shards' threads, hands out handles to them, and stops them. Any thread may hold it;
//! bounded by the number of shards.

use std::{
    fmt, io,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    cpus::{CpuClaim, Wanted, allowed_cpus, claim_cpus, near_cpus},
    error::RuntimeError,
    executor::{Executor, ExecutorChoice, ExecutorKind},
    join::{JoinHandle, join_pair},
    load::ShardLoad,
    mailbox::{Job, ShardRef},
    polling::Polling,
    settings::{Pin, RuntimeSettings},
    shard::Shard,
    task,
    turn::Reactor,
};

/// The running shards. When the last clone is dropped, they are stopped.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    shards: Arc<[ShardRef]>,
    executor: ExecutorKind,
    cpus: Vec<Option<usize>>,
    /// Claims of the running shards.
    claims: Vec<Weak<CpuClaim>>,
    /// In the order of the shards; `None` once joined.
    threads: Mutex<Vec<Option<thread::JoinHandle<()>>>>,
    endings: Arc<Endings>,
    stop_within: Duration,
}

/// Which threads are done. A thread cannot be joined with a time limit, so each reports its own end.
struct Endings {
    done: Mutex<Vec<bool>>,
    changed: Condvar,
}

/// What one shard's thread needs to start.
struct Start {
    index: usize,
    peers: Arc<[ShardRef]>,
    claim: Option<Arc<CpuClaim>>,
    /// True while another process still uses the CPU.
    is_shared: bool,
    executor: ExecutorKind,
    polling: Polling,
    stall_report: Duration,
    endings: Arc<Endings>,
}

impl Runtime {
    /// Claims CPUs, starts the shards, and returns when all of them take turns.
    ///
    /// Each shard has its thread and an epoll set; on io_uring three small rings, too, and one more thread that the
    /// executor keeps for blocking file operations and that sleeps.
    ///
    /// # Errors
    /// [`RuntimeError::Setting`] for settings that cannot work, [`RuntimeError::CpuNotAllowed`] or
    /// [`RuntimeError::CpuClaimed`] for [`Pin::Cpus`], [`RuntimeError::IoUring`] for
    /// [`ExecutorChoice::IoUring`] where it cannot be used, and [`RuntimeError::System`] where the kernel refuses anything else.
    /// The shards that had started are stopped.
    pub fn start(settings: RuntimeSettings) -> Result<Self, RuntimeError> {
        Self::start_with(&settings, &[])
    }

    /// Like [`start`](Self::start), but next to a runtime of another process that is about to stop and shares its claims, which are
    /// used first. Until [`pin`](Self::pin) each thread runs on any CPU of the NUMA node of its future CPU: so its setup does not
    /// disturb the other process there, and still allocates memory on the right node.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_beside(settings: RuntimeSettings, shared: Vec<CpuClaim>) -> Result<Self, RuntimeError> {
        Self::start_with(&settings, &shared)
    }

    fn start_with(settings: &RuntimeSettings, shared: &[CpuClaim]) -> Result<Self, RuntimeError> {
        settings.check()?;
        match settings.executor {
            ExecutorChoice::IoUring => Self::start_on(ExecutorKind::IoUring, settings, shared),
            ExecutorChoice::Epoll => Self::start_on(ExecutorKind::Epoll, settings, shared),
            ExecutorChoice::Auto => match Self::start_on(ExecutorKind::IoUring, settings, shared) {
                Err(RuntimeError::IoUring { reason }) => {
                    tracing::info!(reason, "io_uring cannot be used, so the shards wait in epoll");
                    Self::start_on(ExecutorKind::Epoll, settings, shared)
                }
                outcome => outcome,
            },
        }
    }

    fn start_on(executor: ExecutorKind, settings: &RuntimeSettings, shared: &[CpuClaim]) -> Result<Self, RuntimeError> {
        executor.probe()?;
        let mut claims = claims(settings, shared)?.into_iter().map(Arc::new);
        let shards = (0..settings.shards)
            .map(|index| ShardRef::new(index, settings.mailbox_slots))
            .collect::<Result<Arc<[_]>, _>>()?;
        let mut runtime = Inner {
            cpus: Vec::with_capacity(settings.shards),
            claims: Vec::with_capacity(settings.shards),
            threads: Mutex::default(),
            endings: Arc::new(Endings { done: Mutex::new(vec![false; settings.shards]), changed: Condvar::new() }),
            stop_within: settings.stop_within,
            executor,
            shards,
        };
        let (up, started) = mpsc::channel();
        for index in 0..settings.shards {
            let claim = claims.next();
            runtime.cpus.push(claim.as_deref().map(CpuClaim::cpu));
            runtime.claims.extend(claim.as_ref().map(Arc::downgrade));
            let start = Start {
                index,
                peers: Arc::clone(&runtime.shards),
                is_shared: claim.as_ref().is_some_and(|claim| shared.iter().any(|shared| shared.cpu() == claim.cpu())),
                claim,
                executor,
                polling: settings.polling,
                stall_report: settings.stall_report,
                endings: Arc::clone(&runtime.endings),
            };
            let up = up.clone();
            // If a thread cannot be made, dropping `runtime` stops those that were.
            let handle = thread::Builder::new()
                .name(format!("{}-{index}", settings.thread_name))
                .spawn(move || run_shard(start, up))
                .map_err(|source| RuntimeError::System { operation: "starting a shard's thread", source })?;
            let threads = runtime.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
            threads.push(Some(handle));
        }
        drop(up);
        for _ in 0..settings.shards {
            started.recv().unwrap_or(Err(RuntimeError::ShardPanicked { shard: 0 }))?;
        }
        Ok(Self(Arc::new(runtime)))
    }

    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    pub fn executor(&self) -> ExecutorKind {
        self.0.executor
    }

    /// The CPU that each shard is pinned to, in the order of the shards.
    pub fn cpus(&self) -> Vec<Option<usize>> {
        self.0.cpus.clone()
    }

    /// The claims on the CPUs of the shards that run, to be shared with another process.
    pub fn claims(&self) -> Vec<Arc<CpuClaim>> {
        self.0.claims.iter().filter_map(Weak::upgrade).collect()
    }

    /// Pins the shards of a runtime that was [started beside](Self::start_beside) another, which has stopped or is about to.
    ///
    /// # Errors
    /// [`RuntimeError::System`] where the kernel refuses, [`RuntimeError::ShardGone`] if the runtime has stopped.
    pub fn pin(&self) -> Result<(), RuntimeError> {
        self.claims().iter().for_each(|claim| claim.take_over());
        let pinned = self.0.cpus.iter().zip(self.0.shards.iter());
        let pinned: Vec<_> =
            pinned.filter_map(|(cpu, shard)| cpu.map(|cpu| shard.run_always(async move |_| pin(cpu)))).collect();
        pinned.into_iter().try_for_each(|pinned| pinned.wait()?)
    }

    /// A handle to one shard, for any thread.
    ///
    /// # Panics
    /// Where there is no shard of that number.
    pub fn shard(&self, index: usize) -> ShardRef {
        self.0.shards[index].clone()
    }

    /// How one shard spends its time; any thread may read it at any time.
    ///
    /// # Panics
    /// Where there is no shard of that number.
    pub fn load(&self, index: usize) -> Arc<ShardLoad> {
        self.0.shards[index].load()
    }

    /// Runs `f` as a task on a shard and returns a handle to its result.
    ///
    /// The handle reports a panic of the task, a shard that stopped first, and a full mailbox; nobody is left waiting.
    ///
    /// # Panics
    /// Where there is no shard of that number.
    pub fn on_shard<T, F>(&self, index: usize, f: F) -> JoinHandle<T>
    where
        F: AsyncFnOnce(Shard) -> T + Send + 'static,
        T: Send + 'static,
    {
        self.0.shards[index].run(f)
    }

    /// Stops every shard: its tasks are dropped wherever they wait, its sources are dropped, its thread ends.
    ///
    /// Waits for that as long as `RuntimeSettings::stop_within` says; on a shard's own thread it only asks. Calling it
    /// again does nothing.
    ///
    /// # Errors
    /// [`RuntimeError::StopTimedOut`] where a task does not return, [`RuntimeError::ShardPanicked`] where a reactor
    /// has failed.
    pub fn stop(&self) -> Result<(), RuntimeError> {
        self.0.stop()
    }
}

impl ShardRef {
    /// Runs `f` as a task on the shard, as [`Runtime::on_shard`] does.
    pub fn run<T, F>(&self, f: F) -> JoinHandle<T>
    where
        F: AsyncFnOnce(Shard) -> T + Send + 'static,
        T: Send + 'static,
    {
        let (job, handle) = self.task(f);
        if let Err(full) = self.submit(job)
            && !full.stopped
        {
            // Before the job, whose end would say that the shard is gone.
            handle.settle(RuntimeError::MailboxFull { shard: self.index(), slots: self.slots() });
        }
        handle
    }

    /// Like `run`, but works even if the mailbox is full: for callers that wait for the handle, whose number is bounded by that of
    /// threads. See [`submit_always`](Self::submit_always).
    pub fn run_always<T, F>(&self, f: F) -> JoinHandle<T>
    where
        F: AsyncFnOnce(Shard) -> T + Send + 'static,
        T: Send + 'static,
    {
        let (job, handle) = self.task(f);
        self.submit_always(job);
        handle
    }

    fn task<T, F>(&self, f: F) -> (Job, JoinHandle<T>)
    where
        F: AsyncFnOnce(Shard) -> T + Send + 'static,
        T: Send + 'static,
    {
        let (sender, handle) = join_pair(self.index());
        let job = move |shard: &Shard| {
            let run = {
                let shard = shard.clone();
                async move { f(shard).await }
            };
            task::spawn(shard, run, |result| sender.send(result));
        };
        (Box::new(job), handle)
    }
}

impl Inner {
    fn stop(&self) -> Result<(), RuntimeError> {
        self.shards.iter().for_each(|shard| shard.0.stop());
        let is_ours = |here: Shard| self.shards.iter().any(|shard| shard.is(here.mailbox()));
        if Shard::current().is_some_and(is_ours) {
            return Ok(());
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + self.stop_within;
        for (shard, place) in threads.iter_mut().enumerate() {
            if !self.endings.wait(shard, deadline) {
                return Err(RuntimeError::StopTimedOut { shard, waited: self.stop_within });
            }
            // The thread has reported its end, so this does not wait for long.
            if let Some(thread) = place.take() {
                thread.join().map_err(|_panic| RuntimeError::ShardPanicked { shard })?;
            }
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "the runtime did not stop cleanly");
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("executor", &self.0.executor)
            .field("cpus", &self.0.cpus)
            .finish_non_exhaustive()
    }
}

impl Endings {
    /// Waits until the shard's thread is done; false if it is not by `deadline`.
    fn wait(&self, shard: usize, deadline: Instant) -> bool {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let (done, _) =
            self.changed.wait_timeout_while(done, left, |done| !done[shard]).unwrap_or_else(PoisonError::into_inner);
        done[shard]
    }

    fn end(&self, shard: usize) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)[shard] = true;
        self.changed.notify_all();
    }
}

fn claims(settings: &RuntimeSettings, shared: &[CpuClaim]) -> Result<Vec<CpuClaim>, RuntimeError> {
    let directory = &settings.claim_directory;
    // The caller keeps the shared claims and may try again.
    let held = || -> Result<Vec<CpuClaim>, RuntimeError> {
        shared.iter().map(|claim| CpuClaim::share(directory, claim.cpu(), claim.duplicate()?)).collect()
    };
    match &settings.pin {
        Pin::Off => Ok(Vec::new()),
        Pin::Cpus(cpus) => claim_cpus(directory, Wanted::These(cpus), held()?),
        Pin::IfFree => {
            let claims = held().and_then(|held| claim_cpus(directory, Wanted::Any(settings.shards), held));
            Ok(claims.unwrap_or_else(|error| {
                tracing::warn!(%error, shards = settings.shards, "the shards run unpinned");
                Vec::new()
            }))
        }
    }
}

/// Runs when a shard's thread ends, in whatever way: nobody may wait for it in vain.
struct LastWords {
    shard: ShardRef,
    claim: Option<Arc<CpuClaim>>,
    endings: Arc<Endings>,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        Shard::set_current(None);
        self.shard.0.close();
        drop(self.claim.take());
        self.endings.end(self.shard.index());
    }
}

fn run_shard(start: Start, up: mpsc::Sender<Result<(), RuntimeError>>) {
    let Start { index, peers, claim, is_shared, executor, polling, stall_report, endings } = start;
    let cpu = claim.as_deref().map(CpuClaim::cpu);
    let _last_words = LastWords { shard: peers[index].clone(), claim, endings };
    let made = (|| {
        // Before the executor is made, so that its memory is near the CPU.
        cpu.map_or(Ok(()), |cpu| if is_shared { stay_near(cpu) } else { pin(cpu) })?;
        let executor = Executor::make(executor)?;
        let shard = Shard::new(index, cpu, peers, executor.spawner())?;
        let reactor = Reactor::new(shard.clone(), executor.wait(), polling, stall_report)?;
        Shard::set_current(Some(shard));
        Ok((executor, reactor))
    })();
    match made {
        Ok((executor, reactor)) => {
            // If another shard has failed, nobody listens any more; then a stop is on its way as well.
            let _ = up.send(Ok(()));
            drop(up);
            executor.run(reactor.run());
        }
        Err(error) => {
            let _ = up.send(Err(error));
        }
    }
}

/// Lets the calling thread run on any CPU that is as near to memory as this one.
fn stay_near(cpu: usize) -> Result<(), RuntimeError> {
    let mut set = CpuSet::new();
    let failed = || RuntimeError::system("keeping a shard's thread near its CPU");
    near_cpus(cpu, &allowed_cpus()?).into_iter().try_for_each(|cpu| set.set(cpu)).map_err(failed())?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(failed())
}

fn pin(cpu: usize) -> Result<(), RuntimeError> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(RuntimeError::System { operation: "pinning a shard's thread", source })
}
