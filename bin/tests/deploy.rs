//! The files in `deploy/` and the page on installing agree with the program: it accepts every command line, knows every
//! setting, and names that appear in several places are the same.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use sealane_cli::cli::Cli;
use sealane_cli::settings::{Environment, Settings, Sources, TABLE};
use yaml_rust2::{Yaml, YamlLoader};

/// How long a drain takes at most, unless configured otherwise.
const DRAIN_SECONDS: i64 = 10;

/// The port that the metrics are served at in a pod.
const METRICS_PORT: i64 = 9490;

const PROGRAM: &str = "/usr/bin/sealane";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn deployed(name: &str) -> String {
    let path = workspace().join("deploy").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Splits a command line into words as a shell does: quotes hold words together, `${NAME:-WORD}` is WORD, other variables
/// are some word.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut begun) = (Vec::new(), String::new(), None, false);
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        match (char, quote) {
            ('\'' | '"', None) => (quote, begun) = (Some(char), true),
            (char, Some(open)) if char == open => quote = None,
            ('$', None | Some('"')) if chars.peek() == Some(&'{') => {
                let inner: String = chars.by_ref().take_while(|char| *char != '}').collect();
                word.push_str(inner.split_once(":-").map_or("x", |(_, default)| default));
                begun = true;
            }
            ('$', None | Some('"')) if chars.peek() == Some(&'(') => {
                chars.by_ref().take_while(|char| *char != ')').for_each(drop);
                word.push('x');
                begun = true;
            }
            ('$', None | Some('"')) => {
                while chars.next_if(|char| char.is_alphanumeric() || *char == '_').is_some() {}
                word.push('x');
                begun = true;
            }
            (char, None) if char.is_whitespace() => {
                words.extend(begun.then(|| std::mem::take(&mut word)));
                begun = false;
            }
            // From here on it is shell syntax.
            ('&' | ';' | '|' | '>' | '<' | '#', None) if !begun => break,
            (char, _) => {
                word.push(char);
                begun = true;
            }
        }
    }
    words.extend(begun.then_some(word));
    words
}

/// The command lines in a text that run the program: what follows its name, on one line or several.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().flat_map(|line| line.split("&& ")).map(str::trim);
    let calls = lines.filter_map(|line| {
        let line = line.strip_prefix("ExecStart=").unwrap_or(line);
        let line = line.strip_prefix("exec ").unwrap_or(line);
        let at = line.find("sealane ").filter(|at| is_program(&line[..*at]))?;
        Some(words(&line[at..]))
    });
    calls.collect()
}

/// Whether this may precede the program's name: nothing, its folder, or a command that starts it.
fn is_program(before: &str) -> bool {
    ["", "/usr/bin/", "sudo "].contains(&before) || before.starts_with("srun ")
}

fn must_parse(place: &str, call: &[String]) {
    if let Err(error) = Cli::try_parse_from(call) {
        let help = matches!(error.kind(), clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
        assert!(help, "{place}: {}: {error}", call.join(" "));
    }
}

fn manifest(name: &str) -> Vec<Yaml> {
    let place = format!("kubernetes/{name}");
    YamlLoader::load_from_str(&deployed(&place)).unwrap_or_else(|error| panic!("{place}: {error}"))
}

/// The items of a list, as texts.
fn texts(list: &Yaml) -> Vec<String> {
    list.as_vec().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn containers(pod: &Yaml) -> impl Iterator<Item = &Yaml> {
    ["initContainers", "containers"].into_iter().flat_map(|list| pod[list].as_vec().into_iter().flatten())
}

/// The command line of a container that runs the program; its image runs the program by default.
fn call_of(container: &Yaml) -> Option<Vec<String>> {
    let (command, arguments) = (texts(&container["command"]), texts(&container["args"]));
    match command.first().map(String::as_str) {
        None if !arguments.is_empty() => Some([vec!["sealane".to_owned()], arguments].concat()),
        Some(PROGRAM) => Some(command),
        Some("/bin/sh") => command_lines(&command[2]).pop(),
        _ => None,
    }
}

fn pods(manifest: &[Yaml]) -> Vec<&Yaml> {
    let with_pods =
        manifest.iter().filter(|object| matches!(object["kind"].as_str(), Some("DaemonSet" | "StatefulSet")));
    with_pods.map(|object| &object["spec"]["template"]["spec"]).collect()
}

#[test]
fn a_shells_words_are_told_apart() {
    let found =
        words(r#"sealane map generate --ps "${N:-1}" --out "$F/map" 'a b' --task "$(hostname -f):2222" & # not this"#);
    assert_eq!(found, ["sealane", "map", "generate", "--ps", "1", "--out", "x/map", "a b", "--task", "x:2222"]);
    let text = "srun --overlap \\\n  sealane drain --socket x\ncd sealane && sealane check > out\n# sealane of old\n";
    assert_eq!(command_lines(text), [vec!["sealane", "drain", "--socket", "x"], vec!["sealane", "check"]]);
}

#[test]
fn every_command_line_is_one_that_the_program_takes() {
    let mut count = 0;
    for name in ["systemd/sealane.service", "systemd/sealane-forward@.service", "slurm/prolog.sh", "slurm/epilog.sh"] {
        // With the arguments that its file sets.
        for call in command_lines(&deployed(name).replace("$ARGUMENTS", "--target 127.0.0.1:50051")) {
            must_parse(name, &call);
            count += 1;
        }
    }
    for name in ["daemonset.yaml", "forward.yaml", "job.yaml"] {
        let manifest = manifest(name);
        for pod in pods(&manifest) {
            let of_lifecycle = |container: &Yaml| texts(&container["lifecycle"]["preStop"]["exec"]["command"]);
            let calls = containers(pod).flat_map(|container| [call_of(container), Some(of_lifecycle(container))]);
            for call in calls.flatten().filter(|call| !call.is_empty()) {
                must_parse(name, &call);
                count += 1;
            }
        }
    }
    let page = fs::read_to_string(workspace().join("docs/install.md")).unwrap();
    for call in command_lines(&page) {
        must_parse("docs/install.md", &call);
        count += 1;
    }
    assert!(count >= 19, "{count} command lines were found");
}

#[test]
fn the_packages_settings_are_read_and_those_in_comments_are_known() {
    let (path, text) = (workspace().join("deploy/etc/sealane.toml"), deployed("etc/sealane.toml"));
    let environment: Environment = [("XDG_RUNTIME_DIR", "/nowhere")].into_iter().collect();
    let settings = Settings::load(&Sources {
        environment: &environment,
        working_directory: Path::new("/"),
        config: Some(&path),
        role: None,
        overrides: &[],
    });
    let settings = settings.unwrap();
    assert_eq!(
        settings.daemon.socket.value,
        Path::new("/run/sealane/sealane.sock"),
        "where clients look by themselves"
    );
    assert_eq!(settings.daemon.drain_timeout.value.as_secs(), DRAIN_SECONDS.unsigned_abs());
    let (mut section, mut count) = ("", 0);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((name, _)) = line.trim_start_matches("# ").split_once(" = ")
            && name.chars().all(|char| char.is_ascii_lowercase() || char == '_')
        {
            count += 1;
            let full = format!("{section}.{name}");
            assert!(TABLE.iter().any(|setting| setting.name == full), "{full} is no setting");
        }
    }
    assert!(count > 10, "{count} settings were found");
}

#[test]
fn the_service_says_what_the_settings_and_the_program_say() {
    let unit = deployed("systemd/sealane.service");
    let value = |name: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("the service has no {name}"))
    };
    let settings = deployed("etc/sealane.toml");
    assert!(value("TimeoutStopSec").parse::<i64>().unwrap() > DRAIN_SECONDS);
    let folders: Vec<String> = value("RuntimeDirectory").split(' ').map(|folder| format!("\"/run/{folder}")).collect();
    assert!(settings.contains(&format!("socket = {}/sealane.sock\"", folders[0])));
    assert!(settings.contains(&format!("claim_directory = {}\"", folders[1])));
    assert!(settings.contains(&format!("endpoint_map = \"{}\"", value("ConditionPathExists"))));
    assert!(deployed("systemd/sealane.sysusers").contains(&format!("\nu {} ", value("User"))));
}

#[test]
fn pods_are_asked_at_the_port_and_the_paths_that_daemons_serve() {
    let version = format!("sealane:{}", env!("CARGO_PKG_VERSION"));
    let mut daemons = 0;
    for name in ["daemonset.yaml", "job.yaml"] {
        let manifest = manifest(name);
        for pod in pods(&manifest) {
            assert!(pod["terminationGracePeriodSeconds"].as_i64().unwrap() > DRAIN_SECONDS, "{name}");
            for container in containers(pod) {
                let is_own = container["name"].as_str() != Some("task");
                assert!(!is_own || container["image"].as_str() == Some(&version), "{name}: {container:?}");
                let Some(call) = call_of(container).filter(|call| call[1] == "daemon") else { continue };
                daemons += 1;
                let metrics = call.iter().position(|word| word == "--metrics").map(|at| call[at + 1].clone());
                assert_eq!(metrics.unwrap(), format!("0.0.0.0:{METRICS_PORT}"));
                assert_eq!(container["ports"][0]["containerPort"].as_i64(), Some(METRICS_PORT));
                let ready =
                    ["readinessProbe", "startupProbe"].map(|probe| container[probe]["httpGet"]["path"].as_str());
                assert!(ready.contains(&Some("/readyz")), "{name}");
                assert_eq!(container["livenessProbe"]["httpGet"]["path"].as_str(), Some("/healthz"));
                for probe in ["readinessProbe", "startupProbe", "livenessProbe"] {
                    let port = container[probe]["httpGet"]["port"].as_str();
                    assert!(port.is_none() || port == Some("metrics"), "{name}: {probe}");
                }
            }
        }
    }
    assert_eq!(daemons, 3);
    let daemonset = manifest("daemonset.yaml");
    let settings = daemonset[0]["data"]["sealane.toml"].as_str().unwrap();
    let map = daemonset[1]["data"]["endpoint_map"].as_str().unwrap();
    sealane_transport::endpoint_map::EndpointMap::parse(map, "daemonset.yaml").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sealane.toml");
    fs::write(&file, settings).unwrap();
    let sources = Sources {
        environment: &Environment::default(),
        working_directory: folder.path(),
        config: Some(&file),
        role: None,
        overrides: &[],
    };
    let settings = Settings::load(&sources).unwrap();
    assert_eq!(settings.daemon.socket.value, Path::new("/run/sealane/sealane.sock"));
}

#[test]
fn the_jobs_map_has_the_names_of_its_pods() {
    let job = manifest("job.yaml");
    let service = &job[0];
    let (name, namespace) = (&service["metadata"]["name"], &service["metadata"]["namespace"]);
    let sets: Vec<&Yaml> = job.iter().filter(|object| object["kind"].as_str() == Some("StatefulSet")).collect();
    for set in &sets {
        assert_eq!((&set["spec"]["serviceName"], &set["metadata"]["namespace"]), (name, namespace));
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&labels["job"], &service["spec"]["selector"]["job"]);
        let map =
            containers(&set["spec"]["template"]["spec"]).find(|container| container["name"].as_str() == Some("map"));
        let call = texts(&map.unwrap()["command"]);
        for (flag, text) in [("service", name.as_str().unwrap()), ("namespace", namespace.as_str().unwrap())] {
            assert!(call.contains(&format!("--{flag}={text}")), "{call:?}");
        }
        for other in &sets {
            let (part, replicas) =
                (other["metadata"]["name"].as_str().unwrap(), other["spec"]["replicas"].as_i64().unwrap());
            assert!(call.contains(&format!("--{part}={part}:{replicas}")), "{call:?}");
        }
    }
    assert_eq!(sets.len(), 2);
    // Both pods are the same except for their role.
    let specs = sets.iter().map(|set| &set["spec"]["template"]["spec"]);
    assert!(specs.clone().all(|spec| spec == specs.clone().next().unwrap()));
}

#[test]
fn the_containers_program_and_settings_are_where_it_says() {
    let file = deployed("container/Containerfile");
    let json = |name: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        serde_json::from_str::<Vec<String>>(line).unwrap()
    };
    let call = [json("ENTRYPOINT"), json("CMD")].concat();
    must_parse("Containerfile", &call);
    for copied in [PROGRAM, call.last().unwrap()] {
        assert!(
            file.lines().any(|line| line.starts_with("COPY ") && line.ends_with(&format!(" {copied}"))),
            "{copied}"
        );
    }
    assert!(file.contains("\nUSER sealane\n"));
}
