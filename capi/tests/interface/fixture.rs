//! What C code would have: callbacks that record their arguments, texts, sources.

use std::{
    ffi::{CStr, CString, c_void},
    path::Path,
    ptr::{null, null_mut},
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::{self, ThreadId},
};

use sealane_c::*;
use tempfile::TempDir;

use crate::daemon::{Daemon, LONG, Settings};

pub const PS: &str = "ps0.train:2222";
pub const WORKER: &str = "worker0.train:2222";
/// A task that [`world`] does not attach as.
pub const THIRD: &CStr = c"worker1.train:2222";

pub fn text(text: &str) -> sealane_text {
    sealane_text { start: text.as_ptr().cast(), bytes: text.len() }
}

/// The code and message of a function's error.
pub fn code(error: *mut sealane_error) -> (sealane_code, String) {
    // SAFETY: the error is null or new, and is freed once.
    unsafe {
        let code = sealane_error_code(error);
        let message = CStr::from_ptr(sealane_error_message(error)).to_str().unwrap().to_owned();
        sealane_error_free(error);
        (code, message)
    }
}

#[track_caller]
pub fn ok(error: *mut sealane_error) {
    assert_eq!(code(error), (sealane_code::Ok, String::new()));
}

#[track_caller]
pub fn refused(error: *mut sealane_error, expected: sealane_code) -> String {
    let (code, message) = code(error);
    assert_eq!(code, expected, "{message}");
    assert!(!message.is_empty());
    message
}

/// A tensor, freed when dropped.
pub struct Held(pub *mut sealane_tensor);

// SAFETY: tensors are for any thread.
unsafe impl Send for Held {}

impl Held {
    pub fn view(&self) -> sealane_view {
        // SAFETY: it is freed when this is dropped.
        unsafe { sealane_tensor_view(self.0) }
    }

    pub fn bytes(&self) -> &[u8] {
        let view = self.view();
        // SAFETY: the view is valid as long as the tensor.
        unsafe { std::slice::from_raw_parts(view.data.cast(), view.bytes) }
    }

    pub fn from(&self) -> Option<&str> {
        // SAFETY: null, or valid as long as the tensor.
        unsafe {
            let from = sealane_tensor_from(self.0);
            (!from.is_null()).then(|| CStr::from_ptr(from).to_str().unwrap())
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: it was the callback's, and is freed here alone.
        unsafe { sealane_tensor_free(self.0) }
    }
}

/// The arguments of one callback.
pub struct Told {
    pub code: sealane_code,
    pub message: String,
    pub tensors: Vec<Held>,
    pub thread: ThreadId,
    pub released: bool,
}

/// The context of callbacks, which records their calls.
pub struct Ear {
    /// Never freed, so that a failed test leaves no callback without its context.
    sender: &'static Sender<Told>,
    told: Receiver<Told>,
}

impl Ear {
    pub fn new() -> Ear {
        let (sender, told) = channel();
        Ear { sender: Box::leak(Box::new(sender)), told }
    }

    pub fn context(&self) -> *mut c_void {
        std::ptr::from_ref(self.sender).cast_mut().cast()
    }

    /// Memory for a recv; this records its release.
    pub fn destination(&self, memory: &mut [u8]) -> sealane_destination {
        let (start, bytes) = (memory.as_mut_ptr().cast(), memory.len());
        sealane_destination { memory: start, bytes, release: Some(release), release_context: self.context() }
    }

    #[track_caller]
    pub fn told(&self) -> Told {
        self.told.recv_timeout(LONG).expect("the callback comes")
    }

    pub fn try_told(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }

    #[track_caller]
    pub fn ok(&self) -> Told {
        let told = self.told();
        assert_eq!((told.code, told.message.as_str()), (sealane_code::Ok, ""));
        told
    }

    #[track_caller]
    pub fn tensor(&self) -> Held {
        let mut tensors = self.ok().tensors;
        assert_eq!(tensors.len(), 1);
        tensors.remove(0)
    }

    #[track_caller]
    pub fn nothing(&self) {
        assert!(matches!(self.told.try_recv(), Err(TryRecvError::Empty)), "nothing is told twice");
    }
}

unsafe fn tell(context: *mut c_void, error: *const sealane_error, tensors: &[*mut sealane_tensor], released: bool) {
    // SAFETY: the context is an `Ear`'s, which the test keeps; the error is null or valid for this call.
    unsafe {
        let told = Told {
            code: sealane_error_code(error),
            message: CStr::from_ptr(sealane_error_message(error)).to_str().unwrap().to_owned(),
            tensors: tensors.iter().map(|tensor| Held(*tensor)).collect(),
            thread: thread::current().id(),
            released,
        };
        // A failed test no longer receives.
        let _ = (*context.cast::<Sender<Told>>()).send(told);
    }
}

pub unsafe extern "C" fn done(context: *mut c_void, error: *const sealane_error) {
    // SAFETY: as in `tell`.
    unsafe { tell(context, error, &[], false) }
}

pub unsafe extern "C" fn received(context: *mut c_void, error: *const sealane_error, tensor: *mut sealane_tensor) {
    let tensors = [tensor];
    assert_eq!(error.is_null(), !tensor.is_null());
    // SAFETY: as in `tell`.
    unsafe { tell(context, error, &tensors[..usize::from(!tensor.is_null())], false) }
}

pub unsafe extern "C" fn accepted(
    context: *mut c_void,
    error: *const sealane_error,
    tensors: *const *mut sealane_tensor,
    count: usize,
) {
    // SAFETY: so many tensors are there; as in `tell`.
    unsafe {
        let tensors = if count == 0 { &[] } else { std::slice::from_raw_parts(tensors, count) };
        tell(context, error, tensors, false);
    }
}

pub unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: as in `tell`.
    unsafe { tell(context, null(), &[], true) }
}

/// Bytes to send; the library copies them.
pub fn source(bytes: &[u8], dims: &[u64; 1]) -> sealane_source {
    let meta =
        sealane_meta { code: SEALANE_UINT, bits: 8, lanes: 1, flags: 0, rank: 1, reserved: 0, dims: dims.as_ptr() };
    sealane_source { meta, data: bytes.as_ptr().cast(), bytes: bytes.len(), release: None, release_context: null_mut() }
}

pub const NOWHERE: sealane_destination =
    sealane_destination { memory: null_mut(), bytes: 0, release: None, release_context: null_mut() };

/// A task, detached when dropped.
pub struct Task(pub *mut sealane_task);

// SAFETY: tasks are for any thread.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

impl Task {
    pub fn detach(self) {
        drop(self);
    }

    pub fn knows(&self, other: &str) -> bool {
        let mut known = false;
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_knows_task(self.0, text(other), &mut known) });
        known
    }

    pub fn send(&self, to: &str, step: i64, key: &str, bytes: &[u8], ear: &Ear) {
        let dims = [bytes.len() as u64];
        let source = source(bytes, &dims);
        // SAFETY: everything lives until the function returns, the ear longer.
        ok(unsafe {
            sealane_send(self.0, text(to), step, text(key), &source, 0, Some(done), ear.context(), null_mut())
        });
    }

    pub fn recv(&self, from: &str, step: i64, key: &str, ear: &Ear) {
        self.recv_within(from, step, key, 0, ear);
    }

    pub fn recv_within(&self, from: &str, step: i64, key: &str, timeout_ms: i64, ear: &Ear) {
        // SAFETY: everything lives until the function returns, the ear longer.
        ok(unsafe {
            let (from, key) = (text(from), text(key));
            sealane_recv(self.0, from, step, key, null(), timeout_ms, Some(received), ear.context(), null_mut())
        });
    }

    /// A recv that can be cancelled.
    pub fn recv_call(&self, from: &str, step: i64, key: &str, ear: &Ear) -> Call {
        let mut call = null_mut();
        // SAFETY: everything lives until the function returns, the ear longer.
        ok(unsafe {
            let (from, key) = (text(from), text(key));
            sealane_recv(self.0, from, step, key, null(), 0, Some(received), ear.context(), &mut call)
        });
        assert!(!call.is_null());
        Call(call)
    }

    pub fn publish(&self, version: i64, items: &[(&str, &[u8])]) {
        let ear = Ear::new();
        let dims: Vec<[u64; 1]> = items.iter().map(|(_, bytes)| [bytes.len() as u64]).collect();
        let items: Vec<sealane_item> = items
            .iter()
            .zip(&dims)
            .map(|((key, bytes), dims)| sealane_item {
                key: text(key),
                source: source(bytes, dims),
                context: null_mut(),
            })
            .collect();
        let (start, count) = (items.as_ptr(), items.len());
        // SAFETY: everything lives until the function returns, the ear until it is told.
        ok(unsafe { sealane_publish(self.0, version, start, count, Some(done), ear.context(), null_mut()) });
        ear.ok();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sealane_detach(self.0) }
    }
}

pub struct Call(*mut sealane_call);

impl Call {
    pub fn cancel(&self) {
        // SAFETY: it is freed when this is dropped.
        ok(unsafe { sealane_call_cancel(self.0) });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: it is freed here alone.
        unsafe { sealane_call_free(self.0) }
    }
}

pub struct World {
    pub ps: Task,
    pub worker: Task,
    pub daemon: Daemon,
    pub _directory: TempDir,
}

/// The defaults.
pub const DEFAULTS: sealane_attach_options = sealane_attach_options {
    size: size_of::<sealane_attach_options>(),
    socket: null(),
    arena_bytes: 0,
    idle_spin_us: 0,
    attach_timeout_ms: 0,
    restart_timeout_ms: 0,
    backlog_calls_max: 0,
    backlog_bytes_max: 0,
    job: null(),
    replace: 0,
};

pub fn attach(daemon: &Daemon, task: &str) -> Task {
    attach_with(&daemon.socket, task, sealane_attach_options { arena_bytes: 4 << 20, ..DEFAULTS })
}

/// Attaches at `socket` with all other options given, and waits as long as a loaded machine may take.
pub fn attach_with(socket: &Path, task: &str, options: sealane_attach_options) -> Task {
    let socket = CString::new(socket.to_str().unwrap()).unwrap();
    let options = sealane_attach_options { socket: socket.as_ptr(), attach_timeout_ms: 60_000, ..options };
    let mut attached = null_mut();
    let task = CString::new(task).unwrap();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_attach(task.as_ptr(), &options, &mut attached) });
    Task(attached)
}

/// Two tasks of one daemon.
pub fn world() -> World {
    let directory = TempDir::new().unwrap();
    let daemon = Daemon::start(
        &directory,
        Settings { shards: 2, tasks: [PS, WORKER, THIRD.to_str().unwrap()].map(str::to_owned).to_vec() },
    );
    World { ps: attach(&daemon, PS), worker: attach(&daemon, WORKER), daemon, _directory: directory }
}
