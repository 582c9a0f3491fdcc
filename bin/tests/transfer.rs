//! `sealane send` and `sealane recv` as two processes on real ports, with their own engines and through daemons.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use sealane_cli::files;
use sealane_fusion::{DType, Tensor, TensorMeta};
use tempfile::TempDir;

/// Attempts with fresh ports: another program may take a port between its choice and its use.
const ATTEMPTS: usize = 10;

const FROM: &str = "ps0:2222";
const TO: &str = "worker0:2222";

/// The default socket in a test's directory.
const SOCKET: &str = "sealane.sock";

/// A working directory with an endpoint map of two tasks, each on its own port.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        let port = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (from, to) = (port(), port());
        let line = |task, listener: &TcpListener| format!("{task}={}\n", listener.local_addr().unwrap());
        let map = line(FROM, &from) + &line(TO, &to) + &line("neighbour0:2222", &from);
        std::fs::write(place.path(".endpoint_map"), map).unwrap();
        place
    }

    /// Like [`Place::new`], with a daemon at the given socket for each group of tasks.
    fn with_daemons(groups: &[(&str, &[&str])]) -> (Place, Vec<Daemon>) {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        let listeners: Vec<_> = groups.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut map = String::new();
        for ((_, tasks), listener) in groups.iter().zip(&listeners) {
            tasks.iter().for_each(|task| map += &format!("{task}={}\n", listener.local_addr().unwrap()));
        }
        std::fs::write(place.path(".endpoint_map"), map).unwrap();
        let groups = groups.iter().zip(listeners);
        let daemons =
            groups.map(|((socket, tasks), listener)| Daemon::start(&place, socket, tasks, listener)).collect();
        (place, daemons)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self, task: &str) -> String {
        let map = std::fs::read_to_string(self.path(".endpoint_map")).unwrap();
        map.lines().find_map(|line| line.strip_prefix(task)?.strip_prefix('=')).unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command.current_dir(&self.directory).env_clear().env("XDG_RUNTIME_DIR", self.directory.path());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).args(["--from", FROM, "--to", TO]).spawn().unwrap()
    }

    /// What a command prints when it finds no daemon.
    fn alone(&self) -> String {
        let (own, host, uid) = (self.path(SOCKET), "/run/sealane/sealane.sock", nix::unistd::geteuid());
        let user = format!("/tmp/sealane-{uid}/sealane.sock");
        let others = if uid.is_root() {
            format!(" or {host}")
        } else if sealane::daemon_socket(None).starts_with("/tmp") {
            format!(", {user} or {host}")
        } else {
            format!(", {host} or {user}")
        };
        format!("no daemon at {}{others}: engine in this process\n", own.display())
    }

    /// Standard error of a command that must end with that code and print nothing on standard output.
    fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.start(arguments).wait_with_output().unwrap();
        assert_eq!(stdout(&output), "");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        stderr(&output)
    }
}

/// A daemon that serves. Killed when dropped.
struct Daemon {
    process: Child,
    path: PathBuf,
    _stderr: BufReader<ChildStderr>,
}

impl Daemon {
    fn start(place: &Place, socket: &str, tasks: &[&str], listener: TcpListener) -> Daemon {
        let mut command = place.command(&["daemon", "--metrics", "off", "--socket", socket, "--listener-on-stdin"]);
        command.args(tasks.iter().flat_map(|task| ["--task", task])).stdin(Stdio::from(OwnedFd::from(listener)));
        for set in
            ["runtime.shards=1", "runtime.idle_spin_us=0", "daemon.area_bytes=1MiB", "runtime.slab_send_bytes=1MiB"]
        {
            command.args(["--set", set]);
        }
        let mut process = command.stdout(Stdio::null()).spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("clients attach at ") {
            assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
        }
        Daemon { process, path: place.path(socket), _stderr: stderr }
    }

    /// How a command that was given the socket as `shown` names this daemon.
    fn named(&self, shown: &str) -> String {
        format!("the daemon at {shown} (pid {})", self.process.id())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a test, again with other ports each time a port turns out to be in use.
fn with_ports(test: impl Fn(&Place) -> Vec<Output>) -> Vec<Output> {
    for _ in 0..ATTEMPTS {
        let outputs = test(&Place::new());
        if !outputs.iter().any(|output| stderr(output).contains("cannot listen on")) {
            return outputs;
        }
    }
    panic!("other programs took the ports of {ATTEMPTS} attempts");
}

/// The output of a program that finds its port in use.
fn in_use() -> Output {
    let status = std::os::unix::process::ExitStatusExt::from_raw(1 << 8);
    Output { status, stdout: Vec::new(), stderr: b"cannot listen on the port".to_vec() }
}

/// Runs a send of `file` and a recv of `keys` into `out` at the same time.
fn transfer(place: &Place, send: &[&str], recv: &[&str]) -> Vec<Output> {
    let (sender, receiver) = (place.start(send), place.start(recv));
    [receiver, sender].map(|child| child.wait_with_output().unwrap()).into()
}

/// Both succeeded, and reported that no daemon carried the tensors.
fn assert_succeeded(outputs: &[Output]) {
    for output in outputs {
        let stderr = stderr(output);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stderr.starts_with("no daemon at ") && stderr.ends_with(": engine in this process\n"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

/// Both succeeded, and reported which daemons carried the tensors.
fn assert_went_through(outputs: &[Output], whom: [&str; 2]) {
    for (output, whom) in outputs.iter().zip(whom) {
        assert_eq!(stderr(output), format!("through {whom}\n"));
        assert_eq!(output.status.code(), Some(0));
    }
}

/// Tensors of all kinds of sizes: empty, within a ring slot, within a client's area, larger than that.
fn sized_tensors() -> Vec<(String, Tensor)> {
    let sized = |(key, len): (&str, usize)| {
        let bytes = (0..len).map(|i| (i % 251) as u8).collect();
        (key.to_owned(), tensor(DType::U8, &[len as u64], bytes))
    };
    [("empty", 0), ("large", 3 << 20), ("middle", 300_000), ("small", 100)].map(sized).into()
}

const RECV_SIZED: [&str; 11] =
    ["recv", "--key", "empty", "--key", "large", "--key", "middle", "--key", "small", "--out", "got.safetensors"];

fn tensor(dtype: DType, shape: &[u64], data: Vec<u8>) -> Tensor {
    Tensor::new(TensorMeta::new(dtype, shape).unwrap(), data).unwrap()
}

fn read(path: &Path) -> Vec<(String, DType, Vec<u64>, Vec<u8>)> {
    let tensors = files::read(path, None).unwrap();
    let parts = tensors
        .into_iter()
        .map(|(key, tensor)| (key, tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()));
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by(|one, other| one.0.cmp(&other.0));
    parts
}

#[test]
fn an_npy_file_arrives_as_it_was() {
    let outputs = with_ports(|place| {
        let data: Vec<u8> = (0..96).collect();
        files::write(&place.path("dense.npy"), &[("any".to_owned(), tensor(DType::C128, &[3, 2], data))]).unwrap();
        let recv = ["recv", "--key", "dense", "--out", "got.npy", "--step", "-7"];
        let outputs = transfer(place, &["send", "dense.npy", "--step", "-7"], &recv);
        if outputs[0].status.success() {
            let bytes = |name| std::fs::read(place.path(name)).unwrap();
            assert_eq!(bytes("got.npy"), bytes("dense.npy"));
        }
        outputs
    });
    assert_succeeded(&outputs);
    assert_eq!(stdout(&outputs[0]), "received 1 tensor, 96 bytes, from ps0:2222 into got.npy\n");
    assert_eq!(stdout(&outputs[1]), "sent 1 tensor, 96 bytes, to worker0:2222\n");
}

#[test]
fn a_safetensors_file_arrives_as_it_was() {
    let outputs = with_ports(|place| {
        let tensors = [
            ("a/bf16".to_owned(), tensor(DType::BF16, &[2], vec![1, 2, 3, 4])),
            ("b/empty".to_owned(), tensor(DType::F32, &[0, 9], Vec::new())),
            ("c/large".to_owned(), tensor(DType::U8, &[3 << 20], vec![9; 3 << 20])),
        ];
        files::write(&place.path("all.safetensors"), &tensors).unwrap();
        let recv = ["recv", "--key", "c/large", "--key", "a/bf16", "--key", "b/empty", "--out", "got.safetensors"];
        // The large one does not fit into the slab.
        let recv = [&recv[..], &["--set", "runtime.slab_receive_bytes=1MiB"]].concat();
        let outputs = transfer(place, &["send", "all.safetensors"], &recv);
        if outputs[0].status.success() {
            assert_eq!(read(&place.path("got.safetensors")), read(&place.path("all.safetensors")));
        }
        outputs
    });
    assert_succeeded(&outputs);
}

#[test]
fn who_waits_in_vain_is_told_what_to_do() {
    let outputs = with_ports(|place| {
        files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
        let send = place.start(&["send", "w.npy", "--timeout-s", "1"]).wait_with_output().unwrap();
        // A tenth of the timeout is left for reporting which peer was not found.
        let recv = place.start(&["recv", "--key", "w", "--out", "w2.npy", "--timeout-s", "5"]);
        vec![send, recv.wait_with_output().unwrap()]
    });
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)));
    let (send, recv) = (stderr(&outputs[0]), stderr(&outputs[1]));
    assert!(
        send.contains(
            "nobody requested it: run `sealane recv --from ps0:2222 --to worker0:2222 --step 0 --key KEY --out FILE`"
        ),
        "{send}"
    );
    assert!(recv.contains("is unavailable: "), "{recv}");
    assert!(recv.contains("start `sealane send FILE --from ps0:2222 --to worker0:2222 --step 0` there"), "{recv}");
}

#[test]
fn a_key_that_nobody_sends_is_named() {
    let outputs = with_ports(|place| {
        files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
        let mut sender = place.start(&["send", "w.npy"]);
        // The timeout is short, so it must not start before the sender listens.
        while sender.try_wait().unwrap().is_none() && TcpStream::connect(place.address(FROM)).is_err() {
            std::thread::yield_now();
        }
        let recv = ["recv", "--key", "other", "--out", "w2.npy", "--timeout-s", "2"];
        let receiver = place.start(&recv).wait_with_output().unwrap();
        sender.kill().unwrap();
        vec![receiver, sender.wait_with_output().unwrap()]
    });
    let recv = stderr(&outputs[0]);
    assert_eq!(outputs[0].status.code(), Some(1));
    assert!(recv.contains("key 'other'") && recv.contains("connected, but nobody there has sent it"), "{recv}");
}

#[test]
fn wrong_arguments_and_files_are_refused() {
    let place = Place::new();
    let one = tensor(DType::U8, &[1], vec![1]);
    files::write(&place.path("w.npy"), &[("w".to_owned(), one)]).unwrap();
    std::fs::write(place.path("bad.npy"), b"\x93NUMPY\x01\x00").unwrap();
    let out = ["--key", "a", "--out"];
    let recv = |name| ["recv", out[0], out[1], out[2], name];
    let cases: [(&[&str], &str); 8] = [
        (&["send", "none.npy"], "none.npy: cannot be read ("),
        (&["send", "bad.npy"], "bad.npy: the file ends within its header"),
        (&["send", "w.txt"], "w.txt: the name ends in neither .npy nor .safetensors"),
        (&["send", "w.npy", "--timeout-s", "0"], "invalid value '0' for '--timeout-s <S>'"),
        (&recv("w.pt"), "w.pt: the name ends in neither .npy nor .safetensors"),
        (&recv("none/w.npy"), "none/w.npy: there is no directory none; "),
        (&["recv", "--key", "a", "--key", "b", "--out", "x.npy"], "x.npy: an .npy file holds one tensor and 2 keys"),
        (&["recv", "--key", "a", "--key", "a", "--out", "x.safetensors"], "--key a is named twice"),
    ];
    for (arguments, expected) in cases {
        let error = place.fail(2, arguments);
        assert!(error.starts_with(&format!("error: {expected}")), "{error}");
    }
}

#[test]
fn wrong_tasks_are_refused() {
    let place = Place::new();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        let output = command.current_dir(&place.directory).env_clear().arg("recv").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let rest = ["--key", "k", "--out", "k.npy"];
    let unknown = run(&[&["--from", FROM, "--to", "worker1:2222"], &rest[..]].concat());
    assert!(
        unknown.starts_with("error: task worker1:2222 is not in .endpoint_map; did you mean worker0:2222"),
        "{unknown}"
    );
    let same = run(&[&["--from", FROM, "--to", "neighbour0:2222"], &rest[..]].concat());
    assert!(same.contains("have the same transport address 127.0.0.1:"), "{same}");
    let no_map = run(&[&["--from", FROM, "--to", TO, "--endpoint-map", "none"], &rest[..]].concat());
    assert!(no_map.starts_with("error: none: no such file"), "{no_map}");
}

#[test]
fn two_tasks_of_one_daemon_exchange_tensors() {
    let (place, daemons) = Place::with_daemons(&[(SOCKET, &[FROM, TO])]);
    files::write(&place.path("all.safetensors"), &sized_tensors()).unwrap();
    let outputs = transfer(&place, &["send", "all.safetensors"], &RECV_SIZED);
    let daemon = daemons[0].named(daemons[0].path.to_str().unwrap());
    assert_went_through(&outputs, [&daemon; 2]);
    assert_eq!(read(&place.path("got.safetensors")), read(&place.path("all.safetensors")));
}

#[test]
fn two_daemons_carry_tensors_between_hosts() {
    let (place, daemons) = Place::with_daemons(&[("from.sock", &[FROM]), ("to.sock", &[TO])]);
    files::write(&place.path("all.safetensors"), &sized_tensors()).unwrap();
    let send = ["send", "all.safetensors", "--socket", "from.sock"];
    let outputs = transfer(&place, &send, &[&RECV_SIZED[..], &["--set", "daemon.socket=to.sock"]].concat());
    assert_went_through(&outputs, [&daemons[1].named("to.sock"), &daemons[0].named("from.sock")]);
    assert_eq!(read(&place.path("got.safetensors")), read(&place.path("all.safetensors")));
}

#[test]
fn a_daemon_and_an_engine_understand_each_other() {
    let outputs = with_ports(|place| {
        let Ok(listener) = TcpListener::bind(place.address(FROM)) else {
            // Another program has the port, so an engine would find it in use too.
            return vec![in_use()];
        };
        let daemon = Daemon::start(place, SOCKET, &[FROM], listener);
        files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[4], vec![1, 2, 3, 4]))]).unwrap();
        let outputs = transfer(place, &["send", "w.npy"], &["recv", "--key", "w", "--out", "got.npy"]);
        let shown = place.path(SOCKET).display().to_string();
        let receiver = format!("{} does not serve {TO}: engine in this process\n", daemon.named(&shown));
        if !stderr(&outputs[0]).contains("cannot listen on") {
            assert_eq!(stderr(&outputs[0]), receiver);
            assert_went_through(&outputs[1..], [&daemon.named(&shown); 2]);
            assert_eq!(read(&place.path("got.npy"))[0].3, [1, 2, 3, 4]);
        }
        outputs
    });
    assert!(outputs.iter().all(|output| output.status.success()));
}

#[test]
fn a_daemon_that_was_named_must_be_there_and_serve_the_task() {
    let (place, daemons) = Place::with_daemons(&[(SOCKET, &[FROM]), ("other.sock", &[TO])]);
    files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
    let nobody = place.fail(1, &["send", "w.npy", "--socket", "none.sock"]);
    let expected = "error: no daemon at none.sock; start `sealane daemon` there, or omit --socket to run without it\n";
    assert_eq!(nobody, expected);
    let foreign = place.fail(1, &["recv", "--key", "w", "--out", "w2.npy", "--socket", SOCKET]);
    assert!(foreign.starts_with("error: task worker0:2222 is not known: this daemon serves ps0:2222; "), "{foreign}");
    let both = place.fail(2, &["send", "w.npy", "--socket", SOCKET, "--embedded"]);
    assert!(both.contains("'--socket <PATH>' cannot be used with '--embedded'"), "{both}");
    drop(daemons);
    let gone = place.fail(1, &["send", "w.npy", "--timeout-s", "1"]);
    // Another program may have taken the port by now.
    assert!(gone.starts_with(&place.alone()) || gone.contains("cannot listen on"), "{gone}");
}

#[test]
fn an_engine_can_be_asked_for() {
    let outputs = with_ports(|place| {
        files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
        let recv = ["recv", "--key", "w", "--out", "got.npy", "--embedded"];
        transfer(place, &["send", "w.npy", "--embedded"], &recv)
    });
    for output in outputs {
        assert_eq!(stderr(&output), "--embedded: engine in this process\n");
    }
}

#[test]
fn a_task_that_another_process_is_names_that() {
    let (place, _daemons) = Place::with_daemons(&[(SOCKET, &[FROM, TO])]);
    files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
    let mut first = place.start(&["send", "w.npy"]);
    let mut told = BufReader::new(first.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.starts_with("through the daemon at "), "{line}");
    let second = place.fail(1, &["send", "w.npy"]);
    let expected = format!(
        "error: {FROM} is unavailable: process {} is already attached as this task, and only one process may \
         be; if it is left over, end it, or attach with replace=True\n",
        first.id()
    );
    assert_eq!(second, expected);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(told.read_to_string(&mut line).unwrap(), 0, "{line}");
}

#[test]
fn who_waits_in_vain_through_a_daemon_is_told_what_to_do() {
    let (place, _daemons) = Place::with_daemons(&[(SOCKET, &[FROM, TO])]);
    files::write(&place.path("w.npy"), &[("w".to_owned(), tensor(DType::U8, &[1], vec![1]))]).unwrap();
    let send = place.fail(1, &["send", "w.npy", "--timeout-s", "1"]);
    assert!(send.contains("nobody requested it: run `sealane recv --from ps0:2222"), "{send}");
    let recv = place.fail(1, &["recv", "--key", "w", "--out", "w2.npy", "--timeout-s", "1"]);
    assert!(recv.contains("run `sealane send FILE --from ps0:2222"), "{recv}");
}
