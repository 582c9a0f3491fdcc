//! Other users of the system, for tests that root runs.

/// A user who is nobody else in a test's system.
pub const STRANGER: u32 = 54_321;

/// Runs `f` on a thread that acts as another user.
pub fn as_user<T: Send>(uid: u32, f: impl FnOnce() -> T + Send) -> T {
    let act = || {
        // SAFETY: the system call takes numbers alone. Unlike the C library's function of that name it changes the user
        // of this thread only, which ends soon.
        let changed = unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(changed, 0);
        f()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}
