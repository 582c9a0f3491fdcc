//! Plans: a pull owns the plan while it lasts, and returns it when it ends.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sealane::{Plan, PullOptions};

use crate::{
    call::{Done, check_place, numbered, sealane_call, sealane_done},
    error::sealane_error,
    executor::Executor,
    fork::Process,
    guard::{Outcome, close, entry, given},
    input::{sealane_text, text, timeout},
    publish::keys,
    task::{place, sealane_task, task},
    tensor::{sealane_view, view},
};

/// A set of keys published by a peer that are pulled together repeatedly, into the same memory each time. Usable from any
/// thread; one pull at a time.
pub struct sealane_plan {
    home: Arc<Home>,
    group: u64,
    executor: Arc<Executor>,
    process: Process,
}

struct Home(Mutex<Standing>);

enum Standing {
    /// With the dimensions of the tensors that C code has looked at.
    Here(Box<Contents>),
    /// A pull is in progress.
    Lent,
    Closed,
}

struct Contents {
    plan: Plan,
    dims: Vec<Box<[u64]>>,
}

impl Home {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(self: &Arc<Self>) -> Outcome<Lease> {
        let mut standing = self.standing();
        match std::mem::replace(&mut *standing, Standing::Lent) {
            Standing::Here(contents) => Ok(Lease { contents: Some(contents), home: self.clone() }),
            other => {
                *standing = other;
                Err(sealane_error::invalid("another pull of this plan is in progress"))
            }
        }
    }
}

/// What a pull borrows from its plan.
struct Lease {
    /// `None` only while it is dropped.
    contents: Option<Box<Contents>>,
    home: Arc<Home>,
}

impl Lease {
    fn plan(&mut self) -> &mut Plan {
        &mut self.contents.as_mut().expect("only drop takes it").plan
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut standing = self.home.standing();
        if matches!(*standing, Standing::Lent)
            && let Some(contents) = self.contents.take()
        {
            *standing = Standing::Here(contents);
        }
    }
}

/// Creates a plan of keys that the task `from` publishes. The keys are sent once; after that a pull is one small message. Close
/// it with sealane_plan_close, even if its task was detached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_plan_open(
    task: *mut sealane_task,
    from: sealane_text,
    keys: *const sealane_text,
    count: usize,
    plan: *mut *mut sealane_plan,
) -> *mut sealane_error {
    entry(|| {
        let place = place(plan, "plan")?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (from, keys) = (text(from, "from")?, self::keys(keys, count)?);
            let contents = Contents { plan: task.task.plan(from, keys), dims: vec![Box::default(); count] };
            let home = Arc::new(Home(Mutex::new(Standing::Here(Box::new(contents)))));
            let (group, executor) = (task.executor.number(), task.executor.clone());
            place.write(Box::into_raw(Box::new(sealane_plan { home, group, executor, process: task.process })));
        }
        Ok(())
    })
}

/// Pulls every tensor of the plan at `min_version` or newer, and waits for those that are older. `done` is called when all have
/// arrived or failed, with the first error if any failed; sealane_plan_get returns each.
///
/// `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. Earlier
/// results of sealane_plan_get become invalid. `call` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_plan_pull(
    plan: *mut sealane_plan,
    min_version: i64,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { pull(plan, min_version, timeout_ms, false, (done, context, call)) }
}

/// sealane_plan_pull that does not wait for what a task has not published whose process has left, or leaves: that ends with
/// SEALANE_CODE_UNAVAILABLE then, at once if it had left before. A task that was never there is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_plan_pull_fail_if_gone(
    plan: *mut sealane_plan,
    min_version: i64,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as this function's caller promises.
    unsafe { pull(plan, min_version, timeout_ms, true, (done, context, call)) }
}

/// # Safety
/// As the header asks of C code.
unsafe fn pull(
    plan: *mut sealane_plan,
    min_version: i64,
    timeout_ms: i64,
    fail_if_gone: bool,
    (done, context, call): (sealane_done, *mut c_void, *mut *mut sealane_call),
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        let plan = unsafe { given(plan, "plan") }?;
        plan.process.check()?;
        plan.executor.ready()?;
        let mut lease = plan.home.lend()?;
        // SAFETY: as the header asks of C code.
        let number = unsafe { numbered(&plan.executor, plan.process, call) };
        // The plan is returned before the callback runs.
        let pull = async move { lease.plan().pull_with(min_version, PullOptions { timeout, fail_if_gone }).await };
        let done = Done::new(done, context);
        plan.executor.start([Executor::call(number, plan.group, pull, move |outcome| done.tell_end(outcome))]);
        Ok(())
    })
}

/// Returns the tensor of that index, starting at 0, from the last pull, or an error that says why it did not arrive. Valid
/// until the next pull is started, or the plan is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_plan_get(
    plan: *mut sealane_plan,
    index: usize,
    tensor: *mut sealane_view,
) -> *mut sealane_error {
    entry(|| {
        let place = place(tensor, "tensor")?;
        // SAFETY: as the header asks of C code.
        let plan = unsafe { given(plan, "plan") }?;
        plan.process.check()?;
        let mut standing = plan.home.standing();
        let Standing::Here(contents) = &mut *standing else {
            return Err(sealane_error::invalid("a pull of this plan is in progress"));
        };
        let Contents { plan, dims } = &mut **contents;
        let count = dims.len();
        let Some(dims) = dims.get_mut(index) else {
            return Err(sealane_error::invalid(format!("the plan has {count} keys, and none of number {index}")));
        };
        let tensor = plan.get(index)?;
        let shape = tensor.shape();
        if shape[..] != dims[..] {
            *dims = shape.into_vec().into();
        }
        // SAFETY: the place was checked.
        unsafe { place.write(view(tensor, dims, plan.version(index))) };
        Ok(())
    })
}

/// Closes a plan, and frees it here and at its peer; does nothing with NULL. A pull in progress ends with
/// SEALANE_CODE_CANCELLED. No other function may be using the plan, now or afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_plan_close(plan: *mut sealane_plan) {
    let end = |plan: Box<sealane_plan>| {
        plan.executor.give_up_group(plan.group, sealane_error::cancelled("the plan was closed"));
        let closed = std::mem::replace(&mut *plan.home.standing(), Standing::Closed);
        drop(closed);
    };
    // SAFETY: null, or made by `sealane_plan_open` and closed once.
    unsafe { close(plan, |plan| plan.process, end) };
}
