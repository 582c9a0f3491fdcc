//! `sealane keys`, and commands that use the keys it makes, as separate processes.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use sealane_cli::files;
use sealane_fusion::{DType, Tensor, TensorMeta};
use tempfile::TempDir;

/// Attempts with fresh ports: another program may take a port between its choice and its use.
const ATTEMPTS: usize = 10;
const PS: &str = "ps0:2222";
const WORKER: &str = "worker0:2222";

/// A working directory with an endpoint map of two tasks on loopback.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.choose_ports();
        let meta = TensorMeta::new(DType::U8, &[5]).unwrap();
        let tensor = ("w".to_owned(), Tensor::new(meta, vec![1, 2, 3, 4, 5]).unwrap());
        files::write(&place.path("w.npy"), &[tensor]).unwrap();
        place
    }

    fn choose_ports(&self) {
        let ports = [PS, WORKER].map(|task| (task, TcpListener::bind("127.0.0.1:0").unwrap()));
        let line = |(task, port): &(&str, TcpListener)| format!("{task}={}\n", port.local_addr().unwrap());
        fs::write(self.path(".endpoint_map"), ports.iter().map(line).collect::<String>()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str], set: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command.current_dir(&self.0).env_clear().env("XDG_RUNTIME_DIR", self.0.path());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        set.iter().for_each(|set| {
            command.args(["--set", set]);
        });
        command
    }

    fn run(&self, arguments: &[&str], set: &[String]) -> Output {
        self.command(arguments, set).output().unwrap()
    }

    fn succeed(&self, arguments: &[&str], set: &[String]) -> String {
        let output = self.run(arguments, set);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        text(&output.stdout)
    }

    /// Sends a tensor from the ps to the worker, each with its own settings; the worker's output.
    fn transfer(&self, ps: &[String], worker: &[String]) -> Output {
        for _ in 0..ATTEMPTS {
            let send = ["send", "w.npy", "--from", PS, "--to", WORKER];
            let mut sending = self.command(&send, ps).spawn().unwrap();
            let recv = ["recv", "--from", PS, "--to", WORKER, "--key", "w", "--out", "got.npy", "--timeout-s", "20"];
            let output = self.run(&recv, worker);
            let _ = sending.kill();
            let sent = sending.wait_with_output().unwrap();
            if !(text(&sent.stderr).contains("cannot listen") || text(&output.stderr).contains("cannot listen")) {
                return output;
            }
            self.choose_ports();
        }
        panic!("no port stays free");
    }

    fn assert_it_arrived(&self, received: &Output) {
        assert_eq!(received.status.code(), Some(0), "{}", text(&received.stderr));
        assert_eq!(fs::read(self.path("w.npy")).unwrap(), fs::read(self.path("got.npy")).unwrap());
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o777
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn secret(file: &str) -> Vec<String> {
    vec![format!("security.secret_file={file}")]
}

fn tls(directory: &str, authorities: &str) -> Vec<String> {
    let set = |name: &str, file: String| format!("security.tls_{name}={file}");
    vec![
        set("certificate", format!("{directory}/certificate.pem")),
        set("key", format!("{directory}/key.pem")),
        set("authorities", authorities.into()),
    ]
}

#[test]
fn a_secret_that_was_made_opens_and_another_does_not() {
    let place = Place::new();
    let told = place.succeed(&["keys", "secret", "job.secret"], &[]);
    assert!(told.contains("[security]\nsecret_file = \"job.secret\""), "{told}");
    assert_eq!((place.mode("job.secret"), fs::read(place.path("job.secret")).unwrap().len()), (0o600, 65));
    place.succeed(&["keys", "secret", "other.secret"], &[]);
    place.assert_it_arrived(&place.transfer(&secret("job.secret"), &secret("job.secret")));
    let denied = place.transfer(&secret("job.secret"), &secret("other.secret"));
    let said = text(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1), "{said}");
    assert!(said.contains("permission denied") && said.contains("security.secret_file"), "{said}");

    let again = place.run(&["keys", "secret", "job.secret"], &[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("name a file that does not exist yet"), "{}", text(&again.stderr));
}

#[test]
fn certificates_that_were_made_open_for_their_tasks_alone() {
    let place = Place::new();
    // The directories' names contain the ports, which change when one is taken: the keys are made for the current map.
    for _ in 0..ATTEMPTS {
        let keys = place.path("keys");
        let _ = fs::remove_dir_all(&keys);
        let told = place.succeed(&["keys", "tls", "keys"], &[]);
        assert!(told.contains("for ps0:2222") && told.contains("tls_authorities = "), "{told}");
        let map = fs::read_to_string(place.path(".endpoint_map")).unwrap();
        let directory = |line: &str| format!("keys/{}", line.split_once('=').unwrap().1.replace(':', "_"));
        let [ps, worker] = map.lines().map(directory).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(place.mode(&format!("{ps}/key.pem")), 0o600);
        let authorities = "keys/authorities.pem";
        let received = place.transfer(&tls(&ps, authorities), &tls(&worker, authorities));
        if fs::read_to_string(place.path(".endpoint_map")).unwrap() != map {
            continue;
        }
        place.assert_it_arrived(&received);
        // The worker's certificate does not let its owner act as the ps.
        let denied = place.transfer(&tls(&worker, authorities), &tls(&worker, authorities));
        let said = text(&denied.stderr);
        assert_eq!(denied.status.code(), Some(1), "{said}");
        assert!(said.contains("permission denied") && said.contains("does not cover task ps0:2222"), "{said}");
        return;
    }
    panic!("no port stays free");
}

#[test]
fn a_host_is_added_later_and_those_before_keep_what_they_have() {
    let place = Place::new();
    let map = |lines: &str| fs::write(place.path(".endpoint_map"), lines).unwrap();
    map(&format!("{PS}=10.0.0.1:7000\n{WORKER}=10.0.0.2:7000\n"));
    let told = place.succeed(&["keys", "tls", "keys"], &[]);
    assert!(told.contains("keys/authority.key"), "{told}");
    assert_eq!(place.mode("keys/authority.key"), 0o600);
    let read = |name: &str| fs::read_to_string(place.path(&format!("keys/{name}"))).unwrap();
    let before = ["authorities.pem", "10.0.0.1_7000/certificate.pem", "10.0.0.2_7000/certificate.pem"].map(read);
    // One more host, and one more task on the second host.
    map(&format!("{PS}=10.0.0.1:7000\n{WORKER}=10.0.0.2:7000\nworker1:2222=10.0.0.2:7000\nps1:2222=10.0.0.3:7000\n"));
    let told = place.succeed(&["keys", "tls", "keys"], &[]);
    assert!(told.contains("keys/10.0.0.1_7000: kept") && told.contains("keys/10.0.0.3_7000: for ps1:2222"), "{told}");
    let after = ["authorities.pem", "10.0.0.1_7000/certificate.pem", "10.0.0.2_7000/certificate.pem"].map(read);
    assert_eq!((&after[..2], after[2] == before[2]), (&before[..2], false));
    // Hosts that trusted the first certificates trust the new one.
    let files = tls("keys/10.0.0.3_7000", "keys/authorities.pem");
    let ours = sealane_fusion::TlsFiles {
        certificate: place.path("keys/10.0.0.3_7000/certificate.pem"),
        key: place.path("keys/10.0.0.3_7000/key.pem"),
        authorities: place.path("keys/authorities.pem"),
    };
    assert_eq!((files.len(), place.mode("keys/10.0.0.3_7000/key.pem")), (3, 0o600));
    let days = |files: &sealane_fusion::TlsFiles| sealane_fusion::Authentication::tls(files).unwrap().ends().unwrap();
    assert!(days(&ours) > std::time::SystemTime::now());
    // Without the authority's key, or with another authority's key, nothing is added.
    let refused = |because: &str| {
        let output = place.run(&["keys", "tls", "keys"], &[]);
        assert!(text(&output.stderr).contains(because), "{}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(2));
    };
    place.succeed(&["keys", "tls", "others"], &[]);
    fs::copy(place.path("others/authority.key"), place.path("keys/authority.key")).unwrap();
    refused("is not the key of the authority");
    fs::remove_file(place.path("keys/authority.key")).unwrap();
    refused("name a directory that does not exist yet");
}

#[test]
fn a_certificate_is_made_anew_where_a_task_has_left_or_a_file_is_missing() {
    let place = Place::new();
    let map = |lines: &str| fs::write(place.path(".endpoint_map"), lines).unwrap();
    let [first, second] = ["10.0.0.1_7000", "10.0.0.2_7000"].map(|name| format!("keys/{name}"));
    let make = || place.succeed(&["keys", "tls", "keys"], &[]);
    let read = |directory: &str| {
        ["certificate.pem", "key.pem"]
            .map(|name| fs::read_to_string(place.path(&format!("{directory}/{name}"))).unwrap())
    };
    map(&format!("{PS}=10.0.0.1:7000\n{WORKER}=10.0.0.1:7000\nps1:2222=10.0.0.2:7000\n"));
    make();
    let (before, others) = (read(&first), read(&second));
    // The worker has moved: its old host must no longer act for it.
    map(&format!("{PS}=10.0.0.1:7000\n{WORKER}=10.0.0.2:7000\nps1:2222=10.0.0.2:7000\n"));
    let told = make();
    assert!(told.contains(&format!("{first}: for {PS}\n")), "{told}");
    let after = read(&first);
    assert!(after[0] != before[0] && after[1] != before[1] && read(&second) != others);
    assert_eq!(place.mode(&format!("{first}/key.pem")), 0o600);
    assert_eq!(place.mode(&format!("{first}/certificate.pem")), 0o644);
    let told = make();
    assert_eq!((told.matches(": kept").count(), read(&first)), (2, after), "{told}");

    fs::remove_file(place.path(&format!("{first}/key.pem"))).unwrap();
    let told = make();
    assert!(told.contains(&format!("{first}: for {PS}\n")) && told.contains(&format!("{second}: kept")), "{told}");
    // A failed write leaves the old file as it was.
    let kept = read(&first);
    fs::remove_file(place.path(&format!("{second}/key.pem"))).unwrap();
    fs::create_dir(place.path(&format!("{second}/key.pem"))).unwrap();
    map(&format!("{PS}=10.0.0.1:7000\n{WORKER}=10.0.0.2:7000\n"));
    let certificate = fs::read(place.path(&format!("{second}/certificate.pem"))).unwrap();
    let output = place.run(&["keys", "tls", "keys"], &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("key.pem: cannot be written"), "{said}");
    assert_eq!(fs::read(place.path(&format!("{second}/certificate.pem"))).unwrap(), certificate);
    assert_eq!((read(&first), fs::read_dir(place.path(&second)).unwrap().count()), (kept, 2));
}

#[test]
fn certificates_are_valid_for_a_while_and_no_longer_than_their_authority() {
    let place = Place::new();
    for days in ["0", "3651"] {
        let output = place.run(&["keys", "tls", "keys", "--days", days], &[]);
        assert!(!output.status.success() && text(&output.stderr).contains("3650"), "{}", text(&output.stderr));
        assert!(!place.path("keys").exists());
    }
    place.succeed(&["keys", "tls", "keys", "--days", "3650"], &[]);
}

#[test]
fn settings_that_do_not_go_together_are_refused_with_the_remedy() {
    let place = Place::new();
    place.succeed(&["keys", "secret", "job.secret"], &[]);
    let refused = |set: &[String]| {
        let output = place.run(&["daemon", "--metrics", "off", "--task", PS], set);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let both = [secret("job.secret"), tls("keys", "authorities.pem")].concat();
    assert!(refused(&both).contains("not both"));
    assert!(refused(&tls("keys", "authorities.pem")[..2]).contains("needs security.tls_authorities too"));
    let open = [secret("job.secret"), vec!["security.insecure=true".into()]].concat();
    assert!(refused(&open).contains("omit security.insecure"));
    fs::set_permissions(place.path("job.secret"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&secret("job.secret")).contains("chmod 600"));
}

#[test]
fn check_says_who_may_talk_and_whether_a_daemon_would_start() {
    let place = Place::new();
    // The line and those below it, joined, and whether check finds that all works. Another program may have taken the port.
    let told = |set: &[String]| {
        let attempt = |_| place.run(&["check", "--task", PS], set);
        let is_free = |output: &Output| !text(&output.stdout).contains("cannot listen on");
        let output = (0..ATTEMPTS).map(attempt).find(is_free).unwrap();
        let report = text(&output.stdout);
        let lines = report.lines().skip_while(|line| !line.contains("who may talk"));
        let lines: Vec<_> = lines.enumerate().take_while(|(at, line)| *at == 0 || line.starts_with("     ")).collect();
        let words = lines.iter().flat_map(|(_, line)| line.split_whitespace()).collect::<Vec<_>>().join(" ");
        (words, output.status.code())
    };
    let line = |set: &[String]| {
        let (words, code) = told(set);
        assert_eq!(code, Some(i32::from(words.starts_with("fails "))), "{words}");
        words
    };
    assert!(line(&[]).contains("only this host can connect"));
    place.succeed(&["keys", "secret", "job.secret"], &[]);
    assert!(line(&secret("job.secret")).contains("the shared secret; not encrypted"));
    assert!(line(&secret("absent")).contains("a daemon would not start: the shared secret cannot be read from absent"));
    let open = "transport.listen=0.0.0.0".to_owned();
    assert!(line(std::slice::from_ref(&open)).contains("a daemon would not start: 0.0.0.0:"));
    assert!(line(std::slice::from_ref(&open)).contains("can be reached from other hosts"));
    assert!(line(&[open, "security.insecure=true".into()]).contains("anyone who can connect (security.insecure)"));
}

#[test]
fn a_daemon_that_other_hosts_reach_starts_only_if_told_who_may_talk() {
    let place = Place::new();
    let start = |set: &[String]| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let map = format!("{PS}=127.0.0.1:{}\n", listener.local_addr().unwrap().port());
        fs::write(place.path(".endpoint_map"), map).unwrap();
        let mut command = place
            .command(&["daemon", "--metrics", "off", "--socket", "s.sock", "--listener-on-stdin", "--task", PS], set);
        command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let output = start(&[]).wait_with_output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    assert!(said.contains("can be reached from other hosts") && said.contains("sealane keys --help"), "{said}");

    let mut daemon = start(&["security.insecure=true".into(), "runtime.shards=1".into()]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(daemon.stderr.take().unwrap()));
    let mut told = String::new();
    while !told.contains("clients attach at ") {
        told += &lines.next().expect("it starts").unwrap();
    }
    assert!(told.contains("security.insecure: anyone who can reach this address may talk"), "{told}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
