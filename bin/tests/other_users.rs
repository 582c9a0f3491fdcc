//! Users other than the daemon's, and a file system that does not respond. Only root can act as these users and mount: for anybody
//! else these tests are listed as ignored, with the reason.

#[path = "daemon/fixture.rs"]
#[expect(dead_code, reason = "the tests of daemons use the rest")]
mod fixture;

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use libtest_mimic::{Arguments, Trial};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};
use sealane::{Keys, Payload, Task, Tensor};
use sealane_transport::Code;
use sealane_transport::shm::attach::{Attach, AttachError, HAND_OVER_VERSION, Request, VERSION, attach, drain, show};
use sealane_transport::shm::group::{Bootstrap, Neighbour};

use fixture::{ARENA_BYTES, Daemon, IDLE_CONNECTIONS, PS, Place, STUCK, WORKER, connection};

/// User ids that a test system does not use.
const STRANGER: u32 = 54_321;
const FRIEND: u32 = 54_322;

fn main() -> ExitCode {
    let refused = try_as_user(STRANGER, || ()).err();
    let needs = refused.map_or(String::new(), |_| "needs root".to_owned());
    let trial = |name, test: fn()| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_kind(needs.clone()).with_ignored_flag(refused.is_some())
    };
    let trials = vec![
        trial("other_users_are_kept_out_unless_they_are_allowed", other_users_are_kept_out_unless_they_are_allowed),
        trial("request_is_refused_without_its_permission", request_is_refused_without_its_permission),
        trial("a_stranger_is_told_what_to_do", a_stranger_is_told_what_to_do),
        trial("another_users_memory_is_not_shown", another_users_memory_is_not_shown),
        trial("process_of_another_user_is_not_replaced", process_of_another_user_is_not_replaced),
        trial("user_without_a_runtime_directory_has_a_socket", user_without_a_runtime_directory_has_a_socket),
        trial("daemon_serves_while_a_file_system_hangs", daemon_serves_while_a_file_system_hangs),
        trial("ranks_meet_while_strangers_connect", ranks_meet_while_strangers_connect),
        trial("check_fails_where_a_socket_is_not_ours_to_use", check_fails_where_a_socket_is_not_ours_to_use),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Runs `f` on a thread that acts as another user, if this process may do that.
fn try_as_user<T: Send>(uid: u32, f: impl FnOnce() -> T + Send) -> nix::Result<T> {
    let act = || {
        // SAFETY: the system call takes numbers alone. Unlike the C library's function of that name it changes the user
        // of this thread only, which ends soon.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        Errno::result(changed).map(|_| f())
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

fn as_user<T: Send>(uid: u32, f: impl FnOnce() -> T + Send) -> T {
    try_as_user(uid, f).unwrap()
}

fn other_users_are_kept_out_unless_they_are_allowed() {
    let wish = Attach::new(PS, ARENA_BYTES);
    let try_as = |uid, path: &Path| as_user(uid, || attach(path, &wish, false, Instant::now() + STUCK));
    let (place, daemon) = Daemon::start(&[]);
    let kept_out = try_as(STRANGER, &place.socket()).unwrap_err();
    assert!(matches!(kept_out, AttachError::Connect { .. }), "{kept_out}");
    daemon.stop();

    let friends = format!("daemon.allowed_uids={FRIEND}");
    let (place, _daemon) = Daemon::start(&["--set", &friends]);
    // Strangers take no connection slots, however many of them wait.
    let _idle: Vec<OwnedFd> =
        (0..IDLE_CONNECTIONS).map(|_| as_user(STRANGER, || connection(&place.socket()))).collect();
    let Err(AttachError::Refused(error)) = try_as(STRANGER, &place.socket()) else { panic!("a stranger is let in") };
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(error.to_string().contains(&format!("user id {STRANGER} may not attach")), "{error}");
    let drained = as_user(FRIEND, || drain(&place.socket(), Instant::now() + STUCK));
    let Err(AttachError::Refused(error)) = drained else { panic!("who may attach may not drain") };
    assert_eq!(error.code(), Code::PermissionDenied);
    try_as(FRIEND, &place.socket()).unwrap();
}

/// Returns the request after `request` in declaration order, and whether a user in `daemon.allowed_uids` may make that request.
/// The match is exhaustive, so that a request added to the protocol must be added here.
fn next_request(request: Option<&Request>) -> Option<(Request, bool)> {
    let (version, task, peer) = (VERSION, || PS.to_owned(), || WORKER.to_owned());
    Some(match request {
        None => (Request::Attach(Attach::new(PS, ARENA_BYTES)), true),
        Some(Request::Attach(_)) => (Request::Drain { version }, false),
        Some(Request::Drain { .. }) => (Request::Arena { version, arena: 1 }, true),
        Some(Request::Arena { .. }) => (Request::Lane { version, task: task(), peer: peer() }, true),
        Some(Request::Lane { .. }) => (Request::Connect { version, task: task(), peer: peer() }, true),
        Some(Request::Connect { .. }) => (Request::Connection { version, task: task(), peer: peer(), number: 1 }, true),
        Some(Request::Connection { .. }) => (Request::Show { version }, true),
        Some(Request::Show { .. }) => (Request::Measure { version }, true),
        Some(Request::Measure { .. }) => (Request::TakeOver { version: HAND_OVER_VERSION, job: None }, false),
        Some(Request::TakeOver { .. }) => (Request::HandOver { version: HAND_OVER_VERSION }, false),
        Some(Request::HandOver { .. }) => (Request::Taken { version: HAND_OVER_VERSION }, false),
        Some(Request::Taken { .. }) => return None,
    })
}

/// Makes a request as another user, and returns the first answer as text.
fn answer_to(uid: u32, path: &Path, request: &Request) -> String {
    let socket = as_user(uid, || connection(path));
    // A refused connection may be closed before the request is sent.
    let _ = send(socket.as_raw_fd(), &serde_json::to_vec(request).unwrap(), MsgFlags::MSG_NOSIGNAL);
    let mut answer = vec![0; 1 << 16];
    let mut receive = || recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty());
    // An answer that was sent before the daemon closed the connection can be read after this error.
    let bytes = match receive() {
        Err(Errno::ECONNRESET) => receive(),
        received => received,
    };
    let bytes = bytes.unwrap();
    String::from_utf8(answer[..bytes].to_vec()).unwrap()
}

fn request_is_refused_without_its_permission() {
    let (place, daemon) = Daemon::start(&["--set", &format!("daemon.allowed_uids={FRIEND}")]);
    let mut last = None;
    while let Some((request, friend_may)) = next_request(last.as_ref()) {
        for (uid, may) in [(STRANGER, false), (FRIEND, friend_may)] {
            let answer = answer_to(uid, &place.socket(), &request);
            let is_refused = answer.contains("\"refused\"") && answer.contains(&format!("user id {uid} may not "));
            assert_eq!(is_refused, !may, "user id {uid}, {request:?}: {answer}");
        }
        last = Some(request);
    }
    assert!(!daemon.log().contains("the daemon drains"), "{}", daemon.log());
    as_user(FRIEND, || place.attach(WORKER)).unwrap();
    // The owner must prepare before it takes over.
    for (request, error) in [
        (Request::HandOver { version: HAND_OVER_VERSION }, "hand_over must follow take_over"),
        (Request::Taken { version: HAND_OVER_VERSION }, "nothing was handed over"),
    ] {
        let answer = answer_to(0, &place.socket(), &request);
        assert!(answer.contains("refused") && answer.contains(error), "{request:?}: {answer}");
    }
    assert_eq!(daemon.stop().code, Some(0));
}

fn a_stranger_is_told_what_to_do() {
    let refused = |socket| as_user(STRANGER, || sealane::Attach::new(PS).socket(socket).attach().unwrap_err());
    let (place, daemon) = Daemon::start(&[]);
    let error = refused(place.socket());
    assert_eq!(error.code(), Code::PermissionDenied);
    let text = error.to_string();
    let remedy =
        format!("belongs to another user: run as the daemon's user, or add user id {STRANGER} to daemon.allowed_uids");
    assert!(text.contains(&remedy), "{text}");
    let program = Program::of(&place);
    let socket = place.socket();
    for command in [&["stat"][..], &["forward", "--task", WORKER, "--to", PS, "--listen", "127.0.0.1:0"]] {
        let output = program.run(STRANGER, &[command, &["--socket", socket.to_str().unwrap()]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&remedy) && !said.contains("start one"), "{said}");
    }
    daemon.stop();

    // Where some other users are allowed, the daemon itself checks who connects.
    let (place, _daemon) = Daemon::start(&["--set", &format!("daemon.allowed_uids={}", STRANGER + 1)]);
    let error = refused(place.socket());
    assert_eq!(error.code(), Code::PermissionDenied);
    let text = error.to_string();
    assert!(text.contains(&format!("user id {STRANGER} may not attach")), "{text}");
    assert!(text.contains("add it to daemon.allowed_uids"), "{text}");
}

fn process_of_another_user_is_not_replaced() {
    let (place, _daemon) = Daemon::start(&["--set", &format!("daemon.allowed_uids={FRIEND}")]);
    let attach = |uid| {
        let options = sealane::Attach::new(PS).socket(place.socket()).replace(true);
        as_user(uid, || options.attach())
    };
    let first = attach(FRIEND).unwrap();
    let error = attach(0).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert!(
        error.to_string().contains(&format!("of user id {FRIEND} is attached as {PS}; only a process of that user")),
        "{error}"
    );
    first.publish("w", 1, Tensor::from_elements(&[1], &[7_u8]).unwrap()).wait().unwrap();
    let _second = attach(FRIEND).unwrap();
}

/// Pulls a tensor that may be viewed, on a thread of that user; whether it is viewed.
fn views(consumer: &Task, uid: u32) -> bool {
    let pull = || consumer.view_many(PS, Keys::new(["w"]).unwrap(), 1, None).wait().pop().unwrap().unwrap().tensor;
    let tensor = as_user(uid, pull);
    assert_eq!(tensor.bytes(), [7; 1 << 17]);
    matches!(tensor.payload(), Payload::Bytes(_))
}

fn another_users_memory_is_not_shown() {
    let (place, _daemon) = Daemon::start(&["--set", &format!("daemon.allowed_uids={FRIEND}")]);
    let attach = |task, uid| as_user(uid, || sealane::Attach::new(task).socket(place.socket()).attach().unwrap());
    let publisher = attach(PS, FRIEND);
    publisher.publish("w", 1, Tensor::from_elements(&[1 << 17], &[7_u8; 1 << 17]).unwrap()).wait().unwrap();
    let root = attach(WORKER, 0);
    assert!(!views(&root, 0), "it is another user's");
    drop(root);
    let consumer = loop {
        // The daemon notices a little later that the other one has gone.
        let attached = as_user(FRIEND, || sealane::Attach::new(WORKER).socket(place.socket()).attach());
        if let Ok(task) = attached {
            break task;
        }
    };
    // The user who asks for the memory is checked too, not only the user who attached.
    assert!(!views(&consumer, 0));
    assert!(views(&consumer, FRIEND));
}

/// The program, where other users may execute it.
struct Program<'a> {
    place: &'a Place,
    path: PathBuf,
}

impl Program<'_> {
    fn of(place: &Place) -> Program<'_> {
        // Another process makes the copy: if this one wrote it, a child might still have it open for writing when it is executed.
        let path = place.path("sealane");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sealane")).arg(&path).status();
        assert!(copied.unwrap().success());
        Program { place, path }
    }

    /// The program run by a user whose environment is empty.
    fn command(&self, uid: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.place.directory).env_clear().stdin(Stdio::null()).uid(uid).args(arguments);
        command
    }

    fn run(&self, uid: u32, arguments: &[&str]) -> Output {
        self.command(uid, arguments).output().unwrap()
    }
}

fn user_without_a_runtime_directory_has_a_socket() {
    /// Removed with all that is in it.
    struct Directory(PathBuf);
    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    // The directory's path follows from the user id, so no other test may use the same.
    let uid = 1_000_000 + std::process::id();
    let directory = Directory(format!("/tmp/sealane-{uid}").into());
    let socket = directory.0.join("sealane.sock");
    let find = || as_user(uid, || sealane::default_socket().ok());
    let place = Place::new();
    let program = Program::of(&place);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    place.replace_map(&format!("{PS}={}\n", listener.local_addr().unwrap()));
    let arguments =
        ["daemon", "--task", PS, "--metrics", "off", "--set", "runtime.pin=false", "--set", "runtime.shards=1"];
    // Another user has made the directory first.
    DirBuilder::new().mode(0o777).create(&directory.0).unwrap();
    let planted = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(&directory.0, Permissions::from_mode(0o777)).unwrap();
    assert_ne!(find().as_deref(), Some(&*socket), "it would attach to another user's program");
    drop(planted);
    fs::remove_file(&socket).unwrap();
    let output = program.run(uid, &arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is a directory, of user id 0 and mode 777, but must be a directory of user id"), "{said}");
    fs::remove_dir(&directory.0).unwrap();

    let mut command = program.command(uid, &arguments);
    // The daemon gets the port as a socket, so that no other program can take it first.
    let command = command.arg("--listener-on-stdin").stdin(OwnedFd::from(listener));
    let mut daemon = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let begins = format!("clients attach at {}", socket.display());
    assert!(lines.any(|line| line.unwrap().contains(&begins)), "it does not serve there");
    assert_eq!(fs::metadata(&directory.0).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(find().as_deref(), Some(&*socket));
    as_user(uid, || sealane::Attach::new(PS).attach()).unwrap();
    let shown = program.run(uid, &["stat"]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let drained = program.run(uid, &["drain"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    daemon.wait().unwrap();
}

/// A directory whose file system never answers, as that of a server that is gone. Unmounted when dropped.
struct HungDirectory {
    path: PathBuf,
    /// Accesses fail once this is closed.
    _server: File,
}

impl HungDirectory {
    /// Mounts at `path`, for this thread and for processes that it starts.
    fn mount(path: &Path) -> HungDirectory {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount(Some("hung"), path, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        HungDirectory { path: path.to_owned(), _server: server }
    }
}

impl Drop for HungDirectory {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn daemon_serves_while_a_file_system_hangs() {
    // A thread of its own, which alone is in the mount namespace.
    let test = || {
        let make = || {
            let place = Place::new();
            fs::create_dir(place.path("hung")).unwrap();
            let hung = HungDirectory::mount(&place.path("hung"));
            (place, hung)
        };
        let ((place, _hung), mut daemon) = Daemon::start_in(make, |(place, _)| Daemon::start_at(place, &[]));
        symlink("hung/map", place.path("new")).unwrap();
        fs::rename(place.path("new"), place.path(".endpoint_map")).unwrap();
        daemon.wait_for("RELOADING=1");
        place.attach(PS).unwrap();
        assert!(!show(&place.socket(), Instant::now() + STUCK).unwrap().is_empty());
        // The daemon is ready again although the files are not read, and says so.
        daemon.wait_for("READY=1");
        assert!(daemon.log().contains("does their file system respond?"), "{}", daemon.log());
        assert_eq!(daemon.stop().code, Some(0));
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

/// Connects to the sockets of two ranks and hangs up, again and again; returns whether `over` ended that.
fn connect_as_stranger(names: &[String], over: &AtomicBool) -> bool {
    let stuck = Instant::now() + STUCK;
    let places = names.iter().map(|name| UnixAddr::new_abstract(name.as_bytes()).unwrap());
    let places: Vec<UnixAddr> = places.collect();
    while !over.load(Ordering::Relaxed) {
        if Instant::now() > stuck {
            return false;
        }
        for place in &places {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
            let _ = connect(socket.as_raw_fd(), place);
        }
    }
    true
}

fn ranks_meet_while_strangers_connect() {
    let ranks = [Bootstrap::new().unwrap(), Bootstrap::new().unwrap()];
    let names = ranks.each_ref().map(|rank| rank.name().to_owned());
    let neighbours: Vec<Neighbour> =
        names.iter().cloned().enumerate().map(|(rank, name)| Neighbour { rank, name }).collect();
    let (over, names, neighbours) = (AtomicBool::new(false), &names, &neighbours);
    std::thread::scope(|scope| {
        let attack = || as_user(STRANGER, || connect_as_stranger(names, &over));
        let strangers = [(); 4].map(|()| scope.spawn(attack));
        let join = |(rank, bootstrap): (usize, Bootstrap)| {
            scope.spawn(move || bootstrap.join(rank, neighbours, STUCK).unwrap())
        };
        let joined: Vec<_> = ranks.into_iter().enumerate().map(join).collect();
        let joined: Vec<_> = joined.into_iter().map(|rank| rank.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(joined.len(), 2);
        assert!(strangers.map(|stranger| stranger.join().unwrap()).iter().all(|first| *first));
    });
}

fn check_fails_where_a_socket_is_not_ours_to_use() {
    let place = Place::new();
    let closed = place.path("closed");
    DirBuilder::new().mode(0o700).create(&closed).unwrap();
    let stale = place.path("stale");
    drop(UnixListener::bind(&stale).unwrap());
    fs::set_permissions(&stale, Permissions::from_mode(0o600)).unwrap();
    let program = Program::of(&place);
    let run = |arguments: &[&str]| program.run(STRANGER, arguments);
    // Whatever is wrong with the socket, the ports are checked too.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    for (socket, wrong) in [
        (closed.join("s"), format!("{} cannot be used (Permission denied", closed.display())),
        (stale.clone(), format!("{} is another user's, whose daemon may serve there", stale.display())),
    ] {
        let flags = ["--socket", socket.to_str().unwrap(), "--metrics", &metrics];
        let daemon = run(&[&["daemon"], &flags[..]].concat());
        let said = String::from_utf8(daemon.stderr).unwrap();
        assert_eq!(daemon.status.code(), Some(1), "{said}");
        assert!(said.contains(&wrong), "{said}");
        let check = run(&[&["check", "--json"], &flags[..]].concat());
        let told = String::from_utf8(check.stdout).unwrap();
        assert_eq!(check.status.code(), Some(1), "{told}");
        assert!(told.contains(&wrong) && told.contains("metrics cannot be served at"), "{told}");
    }
}
