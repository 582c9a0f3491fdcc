//! `sealane send` and `sealane recv` as two processes with real ports.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use sealane_cli::files;
use sealane_fusion::{DType, Tensor, TensorMeta};
use tempfile::TempDir;

/// Another program may take a port between its choice and its use; so often a test chooses again.
const ATTEMPTS: usize = 10;

const FROM: &str = "ps0:2222";
const TO: &str = "worker0:2222";

/// A working directory with an endpoint map of two tasks with ports of their own.
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

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self, task: &str) -> String {
        let map = std::fs::read_to_string(self.path(".endpoint_map")).unwrap();
        map.lines().find_map(|line| line.strip_prefix(task)?.strip_prefix('=')).unwrap().to_owned()
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command.current_dir(&self.directory).env_clear().env("XDG_RUNTIME_DIR", self.directory.path());
        command.args(arguments).args(["--from", FROM, "--to", TO]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Standard error of a command that must end with that code and print nothing.
    fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.start(arguments).wait_with_output().unwrap();
        assert_eq!(stdout(&output), "");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        stderr(&output)
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a test with ports that nobody else took meanwhile: again with others as long as it finds one in use.
fn with_ports(test: impl Fn(&Place) -> Vec<Output>) -> Vec<Output> {
    for _ in 0..ATTEMPTS {
        let outputs = test(&Place::new());
        if !outputs.iter().any(|output| stderr(output).contains("cannot listen on")) {
            return outputs;
        }
    }
    panic!("other programs took the ports of {ATTEMPTS} attempts");
}

/// Sends `file` and receives `keys` into `out` at once.
fn transfer(place: &Place, send: &[&str], recv: &[&str]) -> Vec<Output> {
    let (sender, receiver) = (place.start(send), place.start(recv));
    [receiver, sender].map(|child| child.wait_with_output().unwrap()).into()
}

fn assert_succeeded(outputs: &[Output]) {
    for output in outputs {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        assert_eq!(stderr(output), "");
    }
}

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
    assert_eq!(stdout(&outputs[0]), "received 1 tensors, 96 bytes, from ps0:2222 into got.npy\n");
    assert_eq!(stdout(&outputs[1]), "sent 1 tensors, 96 bytes, to worker0:2222\n");
}

#[test]
fn a_safetensors_file_arrives_as_it_was() {
    let outputs = with_ports(|place| {
        let tensors = [
            ("a/bf16".to_owned(), tensor(DType::BF16, &[2], vec![1, 2, 3, 4])),
            ("b/empty".to_owned(), tensor(DType::F32, &[0, 9], Vec::new())),
            ("c/large".to_owned(), tensor(DType::U8, &[300_000], vec![9; 300_000])),
        ];
        files::write(&place.path("all.safetensors"), &tensors).unwrap();
        let recv = ["recv", "--key", "c/large", "--key", "a/bf16", "--key", "b/empty", "--out", "got.safetensors"];
        let outputs = transfer(place, &["send", "all.safetensors"], &recv);
        if outputs[0].status.success() {
            assert_eq!(read(&place.path("got.safetensors")), read(&place.path("all.safetensors")));
        }
        outputs
    });
    assert_succeeded(&outputs);
}

#[test]
fn a_tensor_that_is_larger_than_the_slab_arrives() {
    let outputs = with_ports(|place| {
        let large = tensor(DType::U8, &[3 << 20], (0..3_u32 << 20).map(|i| (i % 251) as u8).collect());
        files::write(&place.path("large.npy"), &[("large".to_owned(), large)]).unwrap();
        let recv = ["recv", "--key", "k", "--out", "got.npy", "--set", "runtime.slab_receive_bytes=1MiB"];
        let outputs = transfer(place, &["send", "large.npy", "--key", "k"], &recv);
        if outputs[0].status.success() {
            assert_eq!(read(&place.path("got.npy"))[0].3, read(&place.path("large.npy"))[0].3);
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
        let recv = place.start(&["recv", "--key", "w", "--out", "w2.npy", "--timeout-s", "1"]);
        vec![send, recv.wait_with_output().unwrap()]
    });
    assert!(outputs.iter().all(|output| output.status.code() == Some(1)));
    let (send, recv) = (stderr(&outputs[0]), stderr(&outputs[1]));
    assert!(
        send.contains("nobody asked for it: run `sealane recv --from ps0:2222 --to worker0:2222 --step 0`"),
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
        // The time-out is short, so the sender listens before it begins.
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
    assert!(recv.contains("key 'other'") && recv.contains("ps0:2222 answered but did not send it"), "{recv}");
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
        let output = command.current_dir(&place.directory).arg("recv").args(arguments).output().unwrap();
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
