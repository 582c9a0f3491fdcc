//! The demo as a user sees it: what it prints, how it ends, and what it leaves behind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value as Json;
use tempfile::TempDir;

/// Tensors of each kind of size: empty, odd, eager, large.
const TINY: &str = r#"{"name": "tiny", "tensors": [
    {"name": "empty", "shape": [0, 3]},
    {"name": "scalar", "shape": [], "dtype": "i64"},
    {"name": "odd", "shape": [7, 11], "dtype": "u8"},
    {"name": "dense/kernel", "shape": [300, 40]},
    {"name": "dense/bias", "shape": [40], "dtype": "bf16"}]}"#;
const TINY_BYTES: u64 = 8 + 77 + 48_000 + 80;

/// A workload whose pulls and pushes differ.
const UNEVEN: &str = r#"{"pull": [{"name": "rows", "shape": [64, 4]}],
    "push": [{"name": "rows", "shape": [64, 4]}, {"name": "ids", "shape": [64], "dtype": "i64"}]}"#;

/// The ways to run a demo: through two daemons, in every task, through one daemon.
const SETUPS: [&[&str]; 3] = [&[], &["--embedded"], &["--link", "shm"]];

/// A working directory with workloads in it, and a directory for temporary files.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.temporary()).unwrap();
        place.write("tiny.json", TINY);
        place.write("uneven.json", UNEVEN);
        place
    }

    fn temporary(&self) -> std::path::PathBuf {
        self.directory.path().join("tmp")
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command
            .current_dir(&self.directory)
            .env_clear()
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("TMPDIR", self.temporary())
            .env("RUST_LOG", "error")
            .arg("demo")
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        self.assert_nothing_is_left(&String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Runs a demo that must succeed; its JSON.
    fn json(&self, arguments: &[&str]) -> Json {
        let output = self.run(&[arguments, &["--json", "-"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The error message of a demo that must fail with that exit code.
    fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert_eq!(output.status.code(), Some(code));
        error(&String::from_utf8(output.stderr).unwrap())
    }

    /// None of the processes that the demo named is left, no temporary file, and no named shared memory.
    fn assert_nothing_is_left(&self, stderr: &str) {
        for (name, process) in processes(stderr) {
            assert!(!Path::new(&format!("/proc/{process}")).exists(), "{name} runs on as {process}");
        }
        let left: Vec<_> = std::fs::read_dir(self.temporary()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        let named = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let shared: Vec<_> = std::fs::read_dir("/dev/shm").into_iter().flatten().map(named).collect();
        assert!(!shared.iter().any(|name| name.contains("sealane")), "{shared:?}");
    }
}

/// The names and process ids of the tasks and daemons that a demo prints on standard error.
fn processes(stderr: &str) -> Vec<(String, i32)> {
    let named = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let (_, process) = rest.strip_suffix(')')?.rsplit_once(" (process ")?;
        Some((name.to_owned(), process.parse().ok()?))
    };
    stderr.lines().filter_map(named).collect()
}

fn error(stderr: &str) -> String {
    let line = stderr.lines().last().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or_else(|| panic!("{stderr}")).to_owned()
}

/// A demo that would run for hours, from the moment its tasks move tensors.
struct Running {
    demo: Child,
    stderr: BufReader<std::process::ChildStderr>,
    told: String,
}

impl Running {
    fn start(place: &Place, setup: &[&str]) -> Running {
        let arguments = ["--workload", "tiny.json", "--steps", "1000000", "--set", "runtime.idle_spin_us=0"];
        let mut command = place.command(&[&arguments, setup].concat());
        let mut demo = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(demo.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("a tensor's way: ") {
            assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
        }
        Running { demo, stderr, told }
    }

    fn process(&self, name: &str) -> Pid {
        let processes = processes(&self.told);
        let (_, process) = processes.iter().find(|(known, _)| known == name).unwrap();
        Pid::from_raw(*process)
    }

    fn end(mut self, place: &Place) -> (Option<i32>, String) {
        self.stderr.read_to_string(&mut self.told).unwrap();
        let status = self.demo.wait().unwrap();
        place.assert_nothing_is_left(&self.told);
        (status.code(), error(&self.told))
    }
}

#[test]
fn tensors_move_and_are_verified() {
    let place = Place::new();
    let expected = [
        ("tcp", "task --shm--> daemon --tcp--> daemon --shm--> task", 5),
        ("tcp", "task --tcp--> task", 3),
        ("shm", "task --shm--> daemon --shm--> task", 4),
    ];
    for (setup, (link, way, count)) in SETUPS.into_iter().zip(expected) {
        let output = place.run(&[&["--workload", "tiny.json", "--workers", "2", "--steps", "2"], setup].concat());
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(stdout.starts_with(&format!("tiny: 2 workers and 1 ps over {link}, 2 steps; ")), "{stdout}");
        assert!(stdout.contains(&format!("\na tensor's way: {way}\n")), "{stdout}");
        assert!(stdout.contains("\nlinks between engines: 0 verbs, "), "{stdout}");
        for row in ["worker0:2222", "worker1:2222", "total"] {
            assert!(stdout.lines().any(|line| line.starts_with(row)), "{stdout}");
        }
        // Two workers, five tensors in each direction, two steps and one to connect.
        assert!(stdout.contains("every byte of 60 tensors verified ("), "{stdout}");
        assert_eq!(processes(&stderr).len(), count, "{stderr}");
        let first = "moves 577.98 kB between 2 workers and 1 ps on ";
        assert!(stderr.starts_with(first), "{stderr}");
        assert!(stderr.contains("; 2 measured steps take about "), "{stderr}");
        assert!(stderr.contains("step 1 of 2: pull "), "{stderr}");
    }
}

#[test]
fn demo_ends_with_the_command_that_compares() {
    let place = Place::new();
    place.write("it's.json", TINY);
    let end = |workload: &str, cargo: Option<&str>| {
        let mut command = place.command(&["--workload", workload, "--workers", "3", "--ps", "2", "--steps", "1"]);
        let output = command.envs(cargo.map(|cargo| ("CARGO", cargo))).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().last().unwrap().trim().to_owned()
    };
    assert_eq!(end("tiny.json", None), "sealane bench ps --workload tiny.json --workers 3 --ps 2 --baseline grpc");
    let expected =
        r"cargo run --release -p sealane-bench -- ps --workload 'it'\''s.json' --workers 3 --ps 2 --baseline grpc";
    assert_eq!(end("it's.json", Some("/usr/bin/cargo")), expected);
}

#[test]
fn json_has_the_figures() {
    let place = Place::new();
    let expected = [("daemons", "tcp"), ("embedded", "tcp"), ("daemons", "shm")];
    for (setup, (mode, link)) in SETUPS.into_iter().zip(expected) {
        let json = place.json(&[&["--workload", "tiny.json", "--steps", "2"], setup].concat());
        assert_eq!(json["schema"], "sealane-demo/1");
        assert_eq!((&json["workload"], &json["mode"], &json["link"]), (&"tiny".into(), &mode.into(), &link.into()));
        let links = &json["links"];
        assert_eq!((links["tcp"].as_u64() > Some(0), &links["verbs"]), (link == "tcp", &0.into()), "{links}");
        let peers = json["peers"].as_array().unwrap();
        // One for each direction of each path.
        assert_eq!(
            peers.len(),
            if mode == "embedded" {
                4
            } else if link == "tcp" {
                2
            } else {
                0
            },
            "{peers:?}"
        );
        for peer in peers {
            assert!(peer["link"] == "tcp" && !peer["reason"].as_str().unwrap().is_empty(), "{peer}");
            assert!(peer["tensors"].as_u64() > Some(0) && peer["messages"].as_u64() > Some(0), "{peer}");
        }
        assert_eq!(json["parameters"]["steps"], 2);
        assert_eq!(json["parameters"]["window"], 40);
        let workers = json["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2);
        for worker in workers {
            assert_eq!((&worker["tensors"], &worker["bytes"]), (&20.into(), &(4 * TINY_BYTES).into()));
            assert!(worker["pull_gigabytes_per_s"].as_f64().unwrap() > 0.0);
            assert!(worker["push_gigabytes_per_s"].as_f64().unwrap() > 0.0);
        }
        assert_eq!(json["total"]["bytes"], 8 * TINY_BYTES);
        assert_eq!(json["pull_latency_us"]["count"], 20);
        assert_eq!(json["verified"]["bytes"], 12 * TINY_BYTES);
    }
}

#[test]
fn json_can_go_to_a_file_beside_the_table() {
    let place = Place::new();
    let output = place.run(&["--workload", "tiny.json", "--steps", "1", "--json", "demo.json"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("every byte of 40 tensors verified"));
    let json: Json = serde_json::from_slice(&std::fs::read(place.directory.path().join("demo.json")).unwrap()).unwrap();
    assert_eq!(json["schema"], "sealane-demo/1");
    let failure = place.run(&["--workload", "tiny.json", "--steps", "1", "--json", "none/demo.json"]);
    assert_eq!(failure.status.code(), Some(2));
    assert!(error(&String::from_utf8_lossy(&failure.stderr)).starts_with("--json none/demo.json cannot be written ("));
}

/// A workload whose name would break a page if it were inserted without escaping.
const NASTY: &str =
    r#"{"name": "<script>alert('tiny')</script>&", "tensors": [{"name": "odd", "shape": [7, 11], "dtype": "u8"}]}"#;

/// The text parts of a report, which must be one well-formed page that loads nothing else.
fn report(place: &Place, name: &str) -> String {
    let html = std::fs::read_to_string(place.directory.path().join(name)).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let asks =
        |node: roxmltree::Node| node.has_attribute("src") || node.has_attribute("href") || node.has_tag_name("script");
    assert!(!document.descendants().any(asks));
    let texts = document.descendants().filter(roxmltree::Node::is_text);
    texts.filter_map(|node| node.text()).flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_report_has_the_figures_the_links_and_the_command() {
    let place = Place::new();
    place.write("nasty.json", NASTY);
    let expected = [
        ("two daemons.html", ["0 verbs, 1 tcp", "task --shm--> daemon --tcp--> daemon --shm--> task"]),
        ("embedded.html", ["0 verbs, 2 tcp", "task --tcp--> task"]),
        ("shm.html", ["0 verbs, 0 tcp", "task --shm--> daemon --shm--> task"]),
    ];
    for (setup, (name, words)) in SETUPS.into_iter().zip(expected) {
        let output = place.run(&[&["--workload", "nasty.json", "--steps", "3", "--report", name], setup].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = report(&place, name);
        let everywhere = [
            "<script>alert('tiny')</script>&: 2 workers and 1 ps over ",
            "Every byte of 16 tensors (1.23 kB) arrived as it was sent. In 3 steps the workers together pulled ",
            "sealane demo --workload nasty.json --steps 3 --report ",
            "worker1:2222 6 462 B",
            "p99 ",
            "\"cpu_model\": ",
        ];
        for expected in everywhere.into_iter().chain(words) {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
    assert!(report(&place, "two daemons.html").contains("--report 'two daemons.html'"));
}

#[test]
fn a_demo_that_fails_has_a_report_that_says_why_first() {
    let place = Place::new();
    let running = Running::start(&place, &["--report", "interrupted.html"]);
    kill(Pid::from_raw(running.demo.id() as i32), Signal::SIGINT).unwrap();
    let (code, error) = running.end(&place);
    assert_eq!(code, Some(1));
    let text = report(&place, "interrupted.html");
    assert!(
        text.contains(&format!("It failed. {error} Until then ")) && text.contains("\"schema\": \"sealane-demo/1\"")
    );
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_starts() {
    let place = Place::new();
    let cases = [
        (
            "none/report.html",
            "--report none/report.html cannot be written (No such file or directory (os error 2)); name a file ",
        ),
        ("tmp", "--report tmp is not a file; name the file to write"),
    ];
    for (file, expected) in cases {
        let output = place.run(&["--workload", "tiny.json", "--steps", "1", "--report", file]);
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(error(&stderr).starts_with(expected), "{stderr}");
        assert!(processes(&stderr).is_empty(), "{stderr}");
    }
}

#[test]
fn tensors_are_dealt_out_to_several_ps_and_shards() {
    let place = Place::new();
    for setup in SETUPS {
        let several = ["--workload", "tiny.json", "--steps", "1", "--ps", "3", "--workers", "1"];
        assert_eq!(place.json(&[&several, setup].concat())["verified"]["tensors"], 20);
        let uneven = ["--workload", "uneven.json", "--steps", "1", "--ps", "2", "--set", "runtime.shards=2"];
        let json = place.json(&[&uneven, setup].concat());
        assert_eq!(json["workload"], "uneven");
        assert_eq!((&json["parameters"]["pull_tensors"], &json["parameters"]["push_tensors"]), (&1.into(), &2.into()));
        assert_eq!(json["verified"]["tensors"], 12);
    }
}

#[test]
fn a_process_that_is_killed_ends_the_demo() {
    let place = Place::new();
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &["ps-daemon", "worker-daemon", "worker1:2222", "ps0:2222"]),
        (&["--embedded"], &["worker1:2222", "ps0:2222"]),
        (&["--link", "shm"], &["daemon", "ps0:2222"]),
    ];
    for (setup, names) in cases {
        for name in names {
            let running = Running::start(&place, setup);
            kill(running.process(name), Signal::SIGKILL).unwrap();
            let (code, error) = running.end(&place);
            assert_eq!(code, Some(1));
            assert!(error.starts_with(&format!("{name} (process ")), "{error}");
            assert!(error.contains("signal: 9"), "{error}");
        }
    }
}

/// A task's memory is overwritten all the time, so that the comparison finds wrong bytes.
#[test]
fn a_wrong_byte_fails_the_demo() {
    let place = Place::new();
    for (setup, name) in [(SETUPS[0], "worker0:2222"), (SETUPS[0], "ps0:2222"), (SETUPS[2], "ps0:2222")] {
        let mut running = Running::start(&place, setup);
        let process = running.process(name);
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        let arena = maps.lines().find(|line| line.contains("memfd:sealane-arena")).unwrap_or_else(|| panic!("{maps}"));
        let (start, end) = arena.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let memory = File::options().write(true).open(format!("/proc/{process}/mem")).unwrap();
        let wrong = vec![0x5a; (end - start) as usize];
        while running.demo.try_wait().unwrap().is_none() {
            // Fails once the task has ended, since its memory is gone.
            let _ = memory.write_all_at(&wrong, start);
        }
        let (code, error) = running.end(&place);
        assert_eq!(code, Some(1), "{error}");
        let says = [" failed in step ", ": byte ", " in step ", " is 0x5a, not 0x"];
        assert!(says.iter().all(|words| error.contains(words)), "{error}");
    }
}

#[test]
fn a_daemon_that_cannot_start_is_quoted() {
    let place = Place::new();
    let failure =
        place.fail(1, &["--workload", "tiny.json", "--set", "runtime.shards=1024", "--set", "runtime.pin=true"]);
    assert!(failure.starts_with("ps-daemon (process "), "{failure}");
    assert!(failure.contains("its last output: error: runtime.pin is required by --set, but "), "{failure}");
}

#[test]
fn an_interrupted_demo_ends_its_tasks() {
    let place = Place::new();
    for setup in SETUPS {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let running = Running::start(&place, setup);
            kill(Pid::from_raw(running.demo.id() as i32), signal).unwrap();
            let (code, error) = running.end(&place);
            assert_eq!(code, Some(1));
            assert!(error.starts_with(&format!("{signal} was received ")), "{error}");
        }
    }
}

#[test]
fn tasks_and_daemons_end_with_a_demo_that_is_killed() {
    let place = Place::new();
    let ended = |process: i32| {
        let state = std::fs::read_to_string(format!("/proc/{process}/stat"));
        state.is_err() || state.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    };
    for setup in SETUPS {
        let mut running = Running::start(&place, setup);
        kill(Pid::from_raw(running.demo.id() as i32), Signal::SIGKILL).unwrap();
        running.demo.wait().unwrap();
        // The tasks share standard error, so it ends with the last of them.
        running.stderr.read_to_string(&mut running.told).unwrap();
        for (name, process) in processes(&running.told) {
            // An ending process closes its files a moment before it counts as ended; a daemon finishes its work first.
            while !ended(process) {
                std::thread::yield_now();
            }
            assert!(!name.is_empty());
        }
    }
}

#[test]
fn wrong_arguments_and_files_are_refused() {
    let place = Place::new();
    place.write("bad.json", "{\"tensors\": 3}");
    // More memory than any machine has.
    let huge: Vec<_> = (0..100).map(|i| format!(r#"{{"name": "{i}", "shape": [1000000000]}}"#)).collect();
    place.write("huge.json", &format!(r#"{{"tensors": [{}]}}"#, huge.join(",")));
    let cases: [(&[&str], &str); 9] = [
        (&["--workload", "resnet51"], "there is no workload resnet51; name resnet50, "),
        (&["--workload", "none.json"], "none.json: cannot be read ("),
        (&["--workload", "bad.json"], "bad.json: invalid type: integer `3`, expected a sequence at line 1 column 13"),
        (
            &["--workload", "huge.json", "--workers", "64", "--embedded"],
            "huge with 64 workers needs 77.20 TB of memory and ",
        ),
        (&["--workload", "huge.json", "--workers", "64"], "huge with 64 workers needs "),
        (&["--workload", "tiny.json", "--set", "transport.window=0"], "--set transport.window=0 cannot be read; "),
        (&["--workers", "0"], "invalid value '0' for '--workers <N>'"),
        (&["--link", "shm", "--embedded"], "--embedded gives every task its own engine, "),
        (&["--link", "rdma"], "invalid value 'rdma' for '--link <LINK>'"),
    ];
    for (arguments, expected) in cases {
        let error = place.fail(2, arguments);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn verbs_that_cannot_be_had_are_an_error_and_never_tcp() {
    let place = Place::new();
    let demo = ["--workload", "tiny.json", "--steps", "1", "--link", "verbs"];
    let embedded = [&demo[..], &["--embedded"]].concat();
    for arguments in [&demo[..], &embedded] {
        if !Path::new("/sys/class/infiniband").exists() {
            let failed = place.fail(1, arguments);
            assert!(failed.contains("verbs are required (transport.require), but "), "{failed}");
        }
    }
}

#[test]
fn a_link_that_is_named_has_the_last_word() {
    let place = Place::new();
    let tcp = ["--workload", "tiny.json", "--steps", "1", "--set", "transport.require=auto", "--link", "tcp"];
    assert_eq!(place.json(&tcp)["link"], "tcp");
}

#[test]
fn a_task_that_is_told_nonsense_says_so_and_ends_with_its_input() {
    use std::io::Write;
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
    command.current_dir(&place.directory).arg("demo-task").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut task = command.spawn().unwrap();
    let mut lines = task.stdin.take().unwrap();
    writeln!(lines, "what").unwrap();
    let mut report = String::new();
    BufReader::new(task.stdout.take().unwrap()).read_line(&mut report).unwrap();
    let report: Json = serde_json::from_str(&report).unwrap();
    assert!(report["Err"].as_str().unwrap().starts_with("a job cannot be read ("), "{report}");
    drop(lines);
    assert_eq!(task.wait().unwrap().code(), Some(1));
}

#[test]
fn a_daemon_of_the_demo_needs_its_socket_and_its_parent() {
    let place = Place::new();
    let daemon = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command.current_dir(&place.directory).env_clear().env("XDG_RUNTIME_DIR", place.directory.path());
        command.args(["daemon", "--metrics", "off", "--set", "runtime.shards=1"]);
        command.args(["--set", "runtime.idle_spin_us=0"]).args(arguments);
        command
    };
    let no_socket = daemon(&["--listener-on-stdin"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(no_socket.status.code(), Some(2));
    assert_eq!(error(&String::from_utf8_lossy(&no_socket.stderr)), "standard input is not a listening socket");

    // Process 1 is not the parent, so the daemon concludes that its starter is gone, and ends as soon as it serves.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    place.write(".endpoint_map", &format!("ps0:2222={}\n", listener.local_addr().unwrap()));
    let mut orphan = daemon(&["--listener-on-stdin", "--end-with", "1"]);
    let ended = orphan.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener))).output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("sealane daemon: serves ps0:2222 at 127.0.0.1:"), "{stderr}");
    assert!(!place.directory.path().join("sealane.sock").exists());
}
