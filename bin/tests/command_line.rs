//! The command line as a script sees it: standard output, standard error, exit code.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;
use tempfile::TempDir;

/// An empty working directory, and only the environment variables that a test sets.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_sealane"))
            .current_dir(&self.directory)
            .env_clear()
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .envs(variables.iter().copied())
            .args(arguments)
            .output()
            .unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(&[], arguments)
    }

    /// Standard output of a command that must succeed and say nothing else.
    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(stderr(&output), "");
        assert_eq!(output.status.code(), Some(0));
        stdout(&output)
    }

    /// Standard error of a command that must refuse its arguments or files and print nothing.
    fn refuse(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(stdout(&output), "");
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Writes a map with two tasks at a held port of this host, and one task on another host.
fn write_map(place: &Place, name: &str) -> (OwnedFd, u16) {
    let [(held, port)] = refusing_ports();
    place.write(name, &MAP.replace("127.0.0.1:7000", &format!("127.0.0.1:{port}")));
    (held, port)
}

const MAP: &str = "# two on one host\nps0:2222=127.0.0.1:7000\nps1:2222=127.0.0.1:7000\n\
                   worker0:2222=[fd00::7]:7000\n";

#[test]
fn lint_counts_tasks_and_addresses() {
    let place = Place::new();
    place.write("map", MAP);
    let answer = place.succeed(&["map", "lint", "map"]);
    assert_eq!(answer, "ok: 3 tasks at 2 transport addresses\n");
}

#[test]
fn lint_shows_every_problem_and_refuses() {
    let place = Place::new();
    place.write("jobs/.endpoint_map", "a:1=h:7\nb:1=h:0\na:1=h:7\nc\n");
    let error = place.refuse(&["map", "lint", "jobs/.endpoint_map"]);
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines[0], "jobs/.endpoint_map:2:7: the port is 0; write a port from 1 to 65535 (error)");
    assert!(lines[1].starts_with("jobs/.endpoint_map:3:1: task a:1 is given the same way"));
    assert!(lines[1].ends_with("(warning)"));
    assert!(lines[2].starts_with("jobs/.endpoint_map:4:2: there is no `=`"));
    assert_eq!(lines[3], "error: jobs/.endpoint_map has 2 errors and 1 warning; correct the lines shown above");
}

#[test]
fn lint_warns_and_accepts() {
    let place = Place::new();
    place.write("map", "a:1=h:7\na:1=h:7\n");
    let output = place.run(&["map", "lint", "map"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), "ok: 1 task at 1 transport address\n");
    assert!(stderr(&output).contains("map:2:1: "));
}

#[test]
fn a_map_without_a_task_is_refused() {
    let place = Place::new();
    for text in ["", "# all of them are commented out\n\n"] {
        place.write("map", text);
        let error = place.refuse(&["map", "lint", "map"]);
        assert!(error.starts_with("map:1:1: there is no task; write `host:port=transport_host:port`"), "{error}");
    }
}

#[test]
fn a_missing_map_is_refused() {
    let place = Place::new();
    for arguments in [&["map", "lint", "none"][..], &["map", "resolve", "none", "a:1"]] {
        let error = place.refuse(arguments);
        assert!(error.starts_with("error: none: no such file; "), "{error}");
    }
}

#[test]
fn resolve_prints_the_address_or_near_names() {
    let place = Place::new();
    place.write("map", MAP);
    assert_eq!(place.succeed(&["map", "resolve", "map", "worker0:2222"]), "[fd00::7]:7000\n");
    let near = place.refuse(&["map", "resolve", "map", "ps2:2222"]);
    assert_eq!(near, "error: task ps2:2222 is not in map; did you mean ps0:2222 or ps1:2222?\n");
    let far = place.refuse(&["map", "resolve", "map", "nobody.at.all:1"]);
    assert!(far.contains("is not in map; add a line for it"), "{far}");
}

#[test]
fn wrong_arguments_are_one_sentence() {
    let place = Place::new();
    let error = place.refuse(&["map", "resolve", "map"]);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("<TASK>"), "{error}");
    assert!(place.refuse(&[]).starts_with("error: no command given; "));
    let error = place.refuse(&["check", "--role", "boss"]);
    assert!(error.contains("write ps, worker or chief"), "{error}");
    let error = place.refuse(&["check", "--set", "runtime.shards"]);
    assert!(error.contains("has no `=`"), "{error}");
}

#[test]
fn check_prints_every_setting_with_its_source() {
    let place = Place::new();
    place.write("sealane.toml", "[transport]\nwindow = 64\n");
    let (_held, port) = write_map(&place, ".endpoint_map");
    let output = place.run_with(
        &[("WORKER_ENABLE_POLLING", "True"), ("TF_CONFIG", r#"{"task":{"type":"worker"}}"#)],
        &["check", "--settings", "--set", "fusion.fuse=off"],
    );
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.trim().starts_with("$ ")), "{text}");
    // An entry's words joined into one line, from the name to the end of its description.
    let line = |name: &str| {
        let from = text.find(&format!("  {name} ")).unwrap_or_else(|| panic!("no {name} in {text}"));
        let mut lines = text[from..].lines();
        let mut words = lines.next().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        for more in lines.take_while(|line| line.starts_with("          ")) {
            words.extend([" ", more.trim()]);
        }
        words
    };
    assert_eq!(line("runtime.polling"), "runtime.polling true (variable WORKER_ENABLE_POLLING)");
    assert!(line("transport.window").ends_with("sealane.toml:2)"));
    assert_eq!(line("fusion.fuse"), "fusion.fuse \"off\" (flag --set)");
    assert_eq!(line("fusion.lease_ms"), "fusion.lease_ms 120000 ms (default)");
    // One for each task of this host, if there are CPUs for them.
    let shards = 2.min(sealane_runtime::usable_cpus().unwrap());
    assert!(line("shards").starts_with(&format!("shards {shards} for ")));
    assert!(text.contains(&format!("\n  127.0.0.1:{port}  loopback: the same transport address as ours")), "{text}");
    // Other hosts of the map would call themselves there.
    assert!(line("reach").starts_with(&format!("reach 127.0.0.1:{port} is a loopback address, where the other hosts")));
    if !Path::new("/sys/class/infiniband").exists() {
        assert!(line("[fd00::7]:7000").contains("tcp: no verbs here: "));
        assert!(line("memory lock").contains(&format!("with verbs, {shards} shards register ")));
    }
}

fn check_json(place: &Place, variables: &[(&str, &str)], arguments: &[&str]) -> (Json, Output) {
    let arguments = [&["check", "--json"], arguments].concat();
    let output = place.run_with(variables, &arguments);
    let json = serde_json::from_str(&stdout(&output)).unwrap();
    (json, output)
}

#[test]
fn check_prints_json_alone() {
    let place = Place::new();
    let (_held, port) = write_map(&place, "job.map");
    let variables = [("NETWORK_PS_CORE_NUMBER", "2")];
    let arguments = ["--endpoint-map", "job.map", "--role", "ps", "--task", "ps0:2222"];
    let (json, output) = check_json(&place, &variables, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(json["schema"], "sealane-check/1");
    assert_eq!((&json["role"], &json["role_source"]), (&"ps".into(), &"--role".into()));
    assert_eq!(json["shards"], 2);
    assert!(!json["cpus"]["allowed"].as_array().unwrap().is_empty());
    assert!(json["io_uring"]["available"].is_boolean());
    assert!(json["rdma"].is_array());
    let verbs = &json["verbs"];
    assert!(verbs["built_in"] == true && verbs["library"].is_boolean(), "{verbs}");
    assert!(!verbs["reason"].as_str().unwrap().is_empty());
    let lock = &json["memory_lock"];
    assert!(lock["lifted"].is_boolean() && lock["error"].is_null(), "{lock}");
    // Two shards, each with two slabs of 64 MiB and 20 MiB of messages.
    assert_eq!(lock["needed"]["bytes"], Json::from((2 * (128 + 20)) << 20));
    let settings = json["settings"].as_array().unwrap();
    let named = |name: &str| settings.iter().find(|setting| setting["name"] == name).unwrap();
    assert_eq!(named("runtime.shards")["value"], 2);
    assert_eq!(named("runtime.shards")["source"]["kind"], "variable");
    assert_eq!(named("runtime.shards")["source"]["name"], "NETWORK_PS_CORE_NUMBER");
    assert_eq!(named("runtime.pin")["value"], Json::Null);
    assert_eq!(json["endpoint_map"]["file"], "job.map");
    assert_eq!(json["endpoint_map"]["source"], "--endpoint-map");
    assert_eq!(json["endpoint_map"]["tasks"], 3);
    let paths = json["paths"].as_array().unwrap();
    let links: Vec<_> = paths.iter().map(|path| (&path["transport_address"], &path["link"])).collect();
    assert_eq!(
        links,
        [(&format!("127.0.0.1:{port}").into(), &"loopback".into()), (&"[fd00::7]:7000".into(), &Json::from("tcp")),]
    );
}

#[test]
fn check_gives_everything_a_verdict_and_fails_where_something_will_not_work() {
    let place = Place::new();
    let [(_held, port)] = refusing_ports();
    place.write(".endpoint_map", &format!("a:1=127.0.0.1:{port}\n").repeat(2));
    let names = |json: &Json, verdict: &str| -> Vec<String> {
        let findings = json["findings"].as_array().unwrap().iter();
        let those = findings.filter(|finding| finding["verdict"] == verdict);
        those.map(|finding| finding["name"].as_str().unwrap().to_owned()).collect()
    };
    let (json, output) = check_json(&place, &[], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(names(&json, "will_not_work"), Vec::<String>::new());
    assert!(names(&json, "could_be_better").contains(&"endpoint map".to_owned()), "{json}");
    assert_eq!(json["endpoint_map"]["lint"][0]["line"], 2);
    let text = stdout(&place.run(&["check"]));
    assert!(text.contains("\nlint of .endpoint_map\n  2:1       task a:1 is given the same way in line 1; "), "{text}");
    assert!(json["findings"].as_array().unwrap().len() >= 20);
    assert!(json["topology"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(json["probes"], Json::Null);

    // No congestion control has that name.
    let (json, output) = check_json(&place, &[], &["--set", "transport.tcp.congestion=sealane"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(names(&json, "will_not_work"), ["congestion", "daemon"]);
    assert_eq!(stderr(&output), "error: congestion, daemon will not work here; follow the remedy below each of them\n");
    let text = stdout(&place.run(&["check", "--set", "transport.tcp.congestion=sealane"]));
    assert!(text.contains("  fails   congestion       transport.tcp.congestion is sealane; "), "{text}");
    assert!(text.contains("$ sudo modprobe tcp_sealane\n"), "{text}");
    assert!(text.contains("\n2 will not work, "), "{text}");
}

/// Ports on which nobody listens, held by their sockets; `sealane` may still listen on them.
fn refusing_ports<const N: usize>() -> [(OwnedFd, u16); N] {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
    };
    use std::os::fd::AsRawFd;
    [(); N].map(|()| {
        let held = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        setsockopt(&held, sockopt::ReuseAddr, &true).unwrap();
        bind(held.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let port = getsockname::<SockaddrIn>(held.as_raw_fd()).unwrap().port();
        (held, port)
    })
}

#[test]
fn check_probes_every_peer() {
    let place = Place::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let [(_held, gone)] = refusing_ports();
    let server = std::thread::spawn(move || {
        use std::io::Write;
        other.accept().unwrap().0.write_all(b"220 mail ESMTP\r\n").unwrap();
    });
    place.write(".endpoint_map", &format!("a:1=127.0.0.1:{port}\nb:1=127.0.0.1:{gone}\n"));
    let (json, output) = check_json(&place, &[], &["--probe", "--task", "b:1"]);
    server.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with(&format!("error: 127.0.0.1:{port} will not work here; ")),
        "{}",
        stderr(&output)
    );
    let probes = json["probes"].as_array().unwrap();
    let of = |address: u16| {
        let named = format!("127.0.0.1:{address}");
        probes.iter().find(|probe| probe["transport_address"] == named.as_str()).unwrap()
    };
    assert!(of(port)["says"].as_str().unwrap().contains("not a Sealane peer"), "{probes:?}");
    assert_eq!(of(port)["reachable"], false);
    assert_eq!(
        (&of(gone)["verdict"], &of(gone)["remedy"]["command"]),
        (&"could_be_better".into(), &"sealane daemon".into())
    );
}

#[test]
fn check_fails_where_a_daemon_refuses_to_start_and_in_its_words() {
    let place = Place::new();
    let (taken, [port]) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), refusing_ports());
    place.write("good", &format!("a:1=127.0.0.1:{}\n", port.1));
    place.write("taken", &format!("a:1={}\n", taken.local_addr().unwrap()));
    place.write("foreign", "a:1=192.0.2.1:7000\n");
    place.write("empty", "# a:1=127.0.0.1:7000\n");
    place.write("file", "");
    let metrics = taken.local_addr().unwrap().to_string();
    let of = |map: &'static str| vec!["--endpoint-map", map, "--set", "daemon.metrics=off"];
    for (arguments, expected) in [
        (vec!["--set", "daemon.metrics=off"], ".endpoint_map: no such file"),
        (of("empty"), "empty:1:1: there is no task"),
        (of("foreign"), "no task of foreign has a transport address of this host: "),
        ([&of("good")[..], &["--task", "b:1"]].concat(), "task b:1 is not in good"),
        ([&of("good")[..], &["--set", "daemon.socket=none/there/s"]].concat(), "none/there cannot be used ("),
        ([&of("good")[..], &["--set", "daemon.socket=file/s"]].concat(), "file cannot be used ("),
        ([&of("good")[..], &["--set", "daemon.socket=file"]].concat(), "file is not a socket"),
        (of("taken"), "cannot listen on 127.0.0.1:"),
        ([&of("good")[..], &["--set", &format!("daemon.metrics={metrics}")]].concat(), "metrics cannot be served at"),
        ([&of("good")[..], &["--set", "security.secret_file=absent"]].concat(), "the shared secret cannot be read"),
    ] {
        let daemon = place.run(&[&["daemon"], &arguments[..]].concat());
        let sentence = stderr(&daemon).lines().last().unwrap().strip_prefix("error: ").unwrap().to_owned();
        assert!(sentence.starts_with(expected), "{sentence}");
        let check = place.run(&[&["check"], &arguments[..]].concat());
        assert!(matches!(check.status.code(), Some(1 | 2)), "{arguments:?}: {}", stdout(&check));
        let words = stdout(&check).split_whitespace().collect::<Vec<_>>().join(" ");
        let wrong = sentence.split("; ").next().unwrap();
        assert!(words.contains(wrong), "{wrong} in {words}");
        assert!(!place.directory.path().join("none").exists());
    }
    let (json, output) = check_json(&place, &[], &of("good"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let daemon = json["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == "daemon").unwrap();
    let says = daemon["says"].as_str().unwrap();
    assert!(says.starts_with(&format!("would serve a:1 at 127.0.0.1:{}; clients attach at ", port.1)), "{says}");
}

#[test]
fn check_reports_and_then_refuses_a_bad_map_or_task() {
    let place = Place::new();
    place.write("bad/.endpoint_map", "a:1=h:0\n");
    place.write("good", MAP);
    let bad = [("TF_SEASTAR_ENDPOINT_MAP_PATH", "bad")];
    let none = [("TF_SEASTAR_ENDPOINT_MAP_PATH", "none")];
    for (variables, arguments, expected) in [
        (&bad[..], &[][..], "bad/.endpoint_map:1:7: the port is 0"),
        (&none, &[], "none/.endpoint_map: no such file"),
        (&[], &["--endpoint-map", "good", "--task", "ps3:2222"], "task ps3:2222 is not in good"),
    ] {
        let (json, output) = check_json(&place, variables, arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with(&format!("error: {expected}")), "{}", stderr(&output));
        let error = json["endpoint_map"]["error"].as_str().unwrap();
        assert!(error.starts_with(expected), "{error}");
        assert!(!json["settings"].as_array().unwrap().is_empty());
    }
}

#[test]
fn check_serves_the_task_of_tf_config() {
    let place = Place::new();
    place.write(".endpoint_map", MAP);
    let config = r#"{"cluster":{"worker":["worker0:2222"]},"task":{"type":"worker","index":0}}"#;
    let (json, _) = check_json(&place, &[("TF_CONFIG", config)], &[]);
    assert_eq!(json["role_source"], "TF_CONFIG");
    let reason = json["paths"][1]["reason"].as_str().unwrap();
    assert!(reason.ends_with("TF_CONFIG names a task there"), "{reason}");
    assert_eq!(json["paths"][0]["link"], "tcp");
}

#[test]
fn a_log_filter_that_cannot_be_read_names_what_gave_it() {
    let place = Place::new();
    let output = place.run_with(&[("RUST_LOG", "a=b=c")], &["check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: RUST_LOG=\"a=b=c\" cannot be read ("));
    assert!(place.refuse(&["--log", "a=b=c", "check"]).starts_with("error: --log \"a=b=c\" cannot be read ("));
}

#[test]
fn a_variable_that_the_role_does_not_read_is_said_and_must_be_readable_all_the_same() {
    let place = Place::new();
    let _held = write_map(&place, ".endpoint_map");
    let unread = [("WORKER_ENABLE_POLLING", "1"), ("PS_ENABLE_POLLING", "0")];
    let (json, output) = check_json(&place, &unread, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let finding = |json: &Json| {
        let findings = json["findings"].as_array().unwrap().iter();
        findings.clone().find(|finding| finding["name"] == "variables").cloned()
    };
    let found = finding(&json).unwrap();
    let says = "WORKER_ENABLE_POLLING is set and not read: the role is other (default)";
    assert_eq!((&found["verdict"], &found["says"]), (&"could_be_better".into(), &says.into()));
    let (json, _) = check_json(&place, &unread[..1], &["--role", "worker"]);
    assert_eq!(finding(&json), None);
    // The daemon reports it before it checks anything else.
    let daemon = place.run_with(&unread, &["daemon", "--task", "nobody:1"]);
    assert!(stderr(&daemon).lines().any(|line| line.contains("WARN") && line.contains(says)), "{}", stderr(&daemon));
    for command in ["check", "daemon"] {
        let output = place.run_with(&[("WORKER_ENABLE_POLLING", "maybe")], &[command]);
        let expected = "error: WORKER_ENABLE_POLLING=\"maybe\" (which sets runtime.polling) cannot be read; ";
        assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(2)));
    }
}

#[test]
fn check_shows_the_settings_that_differ_from_their_defaults_or_all() {
    let place = Place::new();
    let _held = write_map(&place, ".endpoint_map");
    let text = place.succeed(&["check", "--set", "transport.window=64"]);
    assert!(text.contains("  transport.window  64  (flag --set)\n"), "{text}");
    assert!(!text.contains("fusion.lease_ms") && text.contains("all others have their defaults"), "{text}");
    let text = place.succeed(&["check", "--settings"]);
    assert!(text.contains("fusion.lease_ms ") && text.contains("transport.window "), "{text}");
}

#[test]
fn a_mistyped_command_is_told_the_nearest_that_is_shown() {
    let place = Place::new();
    let told = place.refuse(&["deamon"]);
    assert!(told.contains("a similar subcommand exists: 'daemon'"), "{told}");
    assert!(!told.contains("demo-task") && !told.contains("demo'"), "{told}");
}

#[test]
fn check_leaves_nothing_behind() {
    let place = Place::new();
    let _held = write_map(&place, "map");
    place.succeed(&["check", "--endpoint-map", "map", "--set", "daemon.socket=made/sealane.sock"]);
    let left: Vec<_> = std::fs::read_dir(Path::new(place.directory.path())).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn bench_is_a_program_of_its_own_that_may_be_missing() {
    let place = Place::new();
    // In a directory where nothing else lies beside the program. Another process makes the copy: children of other tests would inherit a
    // file that this process has open for writing, and then nobody could execute it.
    let program = place.directory.path().join("sealane");
    let make = |script: &str, path: &Path| {
        let made = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_sealane")]).arg(path).status();
        assert!(made.unwrap().success(), "{script}");
    };
    make("ln \"$0\" \"$1\" 2>/dev/null || cp \"$0\" \"$1\"", &program);
    let run = || {
        let mut command = Command::new(&program);
        command.env_clear().env("PATH", place.directory.path().join("programs"));
        command.args(["--log", "info", "bench", "latency", "--json", "-"]).output().unwrap()
    };
    let missing = run();
    assert_eq!((missing.status.code(), stdout(&missing).as_str()), (Some(2), ""));
    let expected = "error: sealane-bench is neither beside this program nor in PATH; ";
    assert!(stderr(&missing).starts_with(expected), "{}", stderr(&missing));

    let script = place.directory.path().join("programs/sealane-bench");
    std::fs::create_dir(place.directory.path().join("programs")).unwrap();
    make(r#"printf '#!/bin/sh\necho "$@"\nexit 7\n' > "$1""#, &script);
    let unusable = run();
    assert!(stderr(&unusable).contains("cannot be started (Permission denied"), "{}", stderr(&unusable));
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ran = run();
    assert_eq!((ran.status.code(), stdout(&ran).as_str()), (Some(7), "--log info latency --json -\n"));
}
