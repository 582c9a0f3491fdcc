//! What a host grants: CPUs shared with other runtimes and processes, io_uring, memory.
//!
//! Some tests need a process of their own: they start this test program again and name the part to play.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use sealane_runtime::{
    CpuClaim, ExecutorChoice, ExecutorKind, Pin, Runtime, RuntimeError, RuntimeSettings, Slab, SlabSettings, Wanted,
    allowed_cpus, claim_cpus, try_io_uring,
};

const PART: &str = "RUNTIME_TEST_PART";
const DIRECTORY: &str = "RUNTIME_TEST_DIRECTORY";

/// A process that is being started has every open file until it is another program, and with the file of a claim the claim. Who asserts
/// that a claim has ended keeps others from starting one.
static OPEN_FILES: RwLock<()> = RwLock::new(());

fn nobody_starts() -> RwLockReadGuard<'static, ()> {
    OPEN_FILES.read().unwrap_or_else(PoisonError::into_inner)
}

fn settings(directory: &Path, shards: usize, pin: Pin) -> RuntimeSettings {
    RuntimeSettings { shards, pin, claim_directory: directory.into(), ..RuntimeSettings::default() }
}

fn play(part: &str, directory: &Path) -> Child {
    let _copied = OPEN_FILES.write().unwrap_or_else(PoisonError::into_inner);
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "another_process", "--ignored", "--nocapture"])
        .env(PART, part)
        .env(DIRECTORY, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The other side of the tests below.
#[test]
#[ignore = "it is the other process of other tests"]
fn another_process() {
    let part = env::var(PART).expect("the part is given");
    let directory = env::var(DIRECTORY).unwrap();
    let directory = Path::new(&directory);
    match &*part {
        "hold" => {
            let claims = claim_cpus(directory, Wanted::Any(1), Vec::new()).unwrap();
            println!("\nholding {}", claims[0].cpu());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "locked memory" => {
            use nix::sys::resource::{Resource, setrlimit};
            setrlimit(Resource::RLIMIT_MEMLOCK, 4096, 4096).unwrap();
            println!("\nerror {}", start_without_io_uring(directory));
        }
        "no io_uring" => {
            forbid(libc::SYS_io_uring_setup);
            println!("\nerror {}", start_without_io_uring(directory));
        }
        "half of io_uring" => {
            // The executor panics over it, which is expected: nobody is to look for a fault there.
            std::panic::set_hook(Box::new(|_| {}));
            forbid(libc::SYS_io_uring_register);
            println!("\nerror {}", start_without_io_uring(directory));
        }
        "little memory" => {
            use nix::sys::resource::{Resource, setrlimit};
            setrlimit(Resource::RLIMIT_AS, 1 << 30, 1 << 30).unwrap();
            let settings = SlabSettings { bytes: 2 << 30, ..SlabSettings::default() };
            println!("\nerror {}", Slab::new(settings).unwrap_err());
        }
        other => panic!("no such part: {other}"),
    }
}

/// The other executor takes over, unless the one on io_uring is asked for: what is said then.
fn start_without_io_uring(directory: &Path) -> RuntimeError {
    let log = directory.join("log");
    tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(File::create(&log).unwrap())).init();
    let settings = settings(directory, allowed_cpus().unwrap().len().min(2), Pin::IfFree);
    let runtime = Runtime::start(settings.clone()).unwrap();
    assert_eq!(runtime.executor(), ExecutorKind::Epoll);
    assert_eq!(runtime.on_shard(0, async |shard| shard.index()).wait().unwrap(), 0);
    runtime.stop().unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(" INFO ") && log.matches("the shards wait in epoll").count() == 1, "{log}");
    assert!(!log.contains("unpinned"), "what a first try had claimed is free for the second: {log}");
    let error = Runtime::start(RuntimeSettings { executor: ExecutorChoice::IoUring, ..settings }).unwrap_err();
    assert!(matches!(error, RuntimeError::IoUring { .. }), "{error}");
    assert_eq!(try_io_uring().unwrap_err().to_string(), error.to_string());
    error
}

/// What the default seccomp profile of containers does with a system call.
#[allow(unsafe_code)]
fn forbid(call: libc::c_long) {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // The number of the system call is the first word of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: 1, k: call as u32 },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to the filter above, which the kernel copies before the call returns; the filter
    // narrows what this process, made for the purpose, may do.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0), 0);
    }
}

/// The rest of the line that starts with `word` in what the process writes, and the pipe, which must stay open.
fn line(child: &mut Child, word: &str) -> (String, BufReader<ChildStdout>) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let found = output
        .by_ref()
        .lines()
        .find_map(|line| Some(line.unwrap().strip_prefix(word)?.trim().to_owned()))
        .expect("the other process has played its part");
    (found, output)
}

#[test]
fn each_shard_runs_on_its_cpu() {
    let _closed = nobody_starts();
    let directory = tempfile::tempdir().unwrap();
    let count = allowed_cpus().unwrap().len().min(2);
    let runtime = Runtime::start(settings(directory.path(), count, Pin::IfFree)).unwrap();
    let mut cpus = runtime.cpus();
    for (index, cpu) in cpus.iter().enumerate() {
        let (seen, allowed) =
            runtime.on_shard(index, async |shard| (shard.cpu(), allowed_cpus().unwrap())).wait().unwrap();
        assert_eq!(seen, *cpu);
        assert_eq!(allowed, [cpu.expect("it could be claimed")]);
    }
    cpus.dedup();
    assert_eq!(cpus.len(), count, "two shards never share a CPU");

    let other = Runtime::start(settings(directory.path(), count, Pin::IfFree)).unwrap();
    if allowed_cpus().unwrap().len() < 2 * count {
        assert_eq!(other.cpus(), vec![None; count], "too few are left, so it runs unpinned");
    }
    drop(other);
    runtime.stop().unwrap();
    let again = Runtime::start(settings(directory.path(), count, Pin::IfFree)).unwrap();
    assert!(again.cpus().iter().all(Option::is_some), "the claims ended with the runtime");
}

#[test]
fn the_executor_is_the_one_that_was_chosen() {
    let directory = tempfile::tempdir().unwrap();
    let runs_on = |executor| {
        let settings = RuntimeSettings { executor, ..settings(directory.path(), 1, Pin::Off) };
        Runtime::start(settings).map(|runtime| (runtime.executor(), runtime.executor().to_string()))
    };
    assert_eq!(runs_on(ExecutorChoice::Epoll).unwrap(), (ExecutorKind::Epoll, "epoll".into()));
    let io_uring = (ExecutorKind::IoUring, "io_uring".into());
    match try_io_uring() {
        Ok(()) => {
            assert_eq!(runs_on(ExecutorChoice::Auto).unwrap(), io_uring);
            assert_eq!(runs_on(ExecutorChoice::IoUring).unwrap(), io_uring);
        }
        Err(reason) => assert_eq!(runs_on(ExecutorChoice::IoUring).unwrap_err().to_string(), reason.to_string()),
    }
}

#[test]
fn a_directory_that_cannot_be_used_only_costs_the_pinning() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let runtime = Runtime::start(settings(&file, 1, Pin::IfFree)).unwrap();
    assert_eq!(runtime.cpus(), [None]);
    let error = Runtime::start(settings(&file, 1, Pin::Cpus(vec![0]))).unwrap_err();
    assert!(matches!(error, RuntimeError::ClaimFile { .. }), "{error}");
}

#[test]
fn a_cpu_of_another_process_is_left_alone_until_that_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = play("hold", directory.path());
    let (cpu, _output) = line(&mut other, "holding ");
    let cpu: usize = cpu.parse().unwrap();
    let error = claim_cpus(directory.path(), Wanted::These(&[cpu]), Vec::new()).unwrap_err();
    let RuntimeError::CpuClaimed { holder, .. } = error else { panic!("{error}") };
    assert_eq!(holder, Some(other.id()));
    for claim in claim_cpus(directory.path(), Wanted::Any(1), Vec::new()).unwrap_or_default() {
        assert_ne!(claim.cpu(), cpu);
    }
    // It cannot clean up, and need not.
    other.kill().unwrap();
    other.wait().unwrap();
    claim_cpus(directory.path(), Wanted::These(&[cpu]), Vec::new()).unwrap();
}

#[test]
fn a_runtime_beside_another_has_its_cpus_and_keeps_them_when_that_stops() {
    let _closed = nobody_starts();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let old = Runtime::start(settings(directory, 1, Pin::IfFree)).unwrap();
    let claim = |claim: &Arc<CpuClaim>| CpuClaim::share(directory, claim.cpu(), claim.duplicate().unwrap()).unwrap();
    let shared: Vec<_> = old.claims().iter().map(claim).collect();
    let (cpu, cpus) = (shared[0].cpu(), allowed_cpus().unwrap());
    let new = Runtime::start_beside(settings(directory, 1, Pin::Cpus(vec![cpu])), shared).unwrap();
    assert_eq!(new.cpus(), [Some(cpu)]);
    let runs_on = || new.on_shard(0, async |_| allowed_cpus().unwrap()).wait().unwrap();
    let near = runs_on();
    assert!(near.contains(&cpu) && near.iter().all(|cpu| cpus.contains(cpu)), "{near:?} of {cpus:?}");
    old.stop().unwrap();
    new.pin().unwrap();
    assert_eq!(runs_on(), [cpu]);
    let error = claim_cpus(directory, Wanted::These(&[cpu]), Vec::new()).unwrap_err();
    assert!(matches!(error, RuntimeError::CpuClaimed { .. }), "{error}");
    new.stop().unwrap();
    claim_cpus(directory, Wanted::These(&[cpu]), Vec::new()).unwrap();
}

#[test]
fn a_host_without_io_uring_has_the_other_executor_and_is_told_what_to_do_for_this_one() {
    let directory = tempfile::tempdir().unwrap();
    for (part, remedy) in [("no io_uring", "seccomp"), ("half of io_uring", ""), ("locked memory", "ulimit -l")] {
        let mut other = play(part, directory.path());
        let (error, mut output) = line(&mut other, "error ");
        assert!(error.contains("io_uring cannot be used") && error.contains("runtime.executor at auto"), "{error}");
        // Where this host has no io_uring to begin with, that is said first.
        assert!(error.contains(remedy) || try_io_uring().is_err(), "{error}");
        output.read_to_end(&mut Vec::new()).unwrap();
        assert!(other.wait().unwrap().success(), "{part}");
    }
}

#[test]
fn a_slab_that_the_host_cannot_give_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = play("little memory", directory.path());
    let (error, mut output) = line(&mut other, "error ");
    assert!(error.contains("mapping the slab failed"), "{error}");
    output.read_to_end(&mut Vec::new()).unwrap();
    assert!(other.wait().unwrap().success());
}
