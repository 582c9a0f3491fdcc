//! Reading all settings together: precedence, provenance, roles, errors.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealane_fusion::Fuse;
use sealane_runtime::ExecutorChoice;
use sealane_transport::verbs::{Registration, Transfer};

use super::*;

/// The sources of a test's settings.
#[derive(Default)]
struct Case {
    variables: Vec<(&'static str, OsString)>,
    overrides: Vec<Override>,
    role: Option<Role>,
    toml: Option<&'static str>,
}

impl Case {
    fn variables(pairs: &[(&'static str, &str)]) -> Case {
        Case { variables: pairs.iter().map(|(name, text)| (*name, text.into())).collect(), ..Case::default() }
    }

    fn set(mut self, name: &str, text: &str) -> Case {
        self.overrides.push(Override::new("--set", name, text));
        self
    }

    fn toml(mut self, text: &'static str) -> Case {
        self.toml = Some(text);
        self
    }

    fn role(mut self, role: Role) -> Case {
        self.role = Some(role);
        self
    }

    /// The settings or the error, and the path of the settings file.
    fn load(self) -> (Result<Settings, Failure>, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE_NAME);
        if let Some(text) = self.toml {
            std::fs::write(&file, text).unwrap();
        }
        let settings = Settings::load(&Sources {
            environment: &self.variables.into_iter().collect(),
            working_directory: directory.path(),
            config: None,
            role: self.role,
            overrides: &self.overrides,
        });
        (settings, file)
    }

    fn settings(self) -> Settings {
        self.load().0.unwrap()
    }

    /// The error, with the settings file's path shortened.
    fn error(self) -> String {
        let (settings, file) = self.load();
        let error = settings.unwrap_err().to_string();
        error.replace(&file.display().to_string(), FILE_NAME)
    }
}

#[test]
fn defaults() {
    let settings = Case::default().settings();
    assert_eq!(settings.role.value, Role::Other);
    let runtime = &settings.runtime;
    assert_eq!(runtime.shards.value, None);
    assert_eq!([0, 1, 5, 16, 900].map(|tasks| runtime.shards_for(tasks, 64)), [1, 1, 5, 16, 16]);
    assert_eq!([0, 1, 4, 900].map(|cpus| runtime.shards_for(41, cpus)), [1, 1, 4, 16]);
    assert_eq!(runtime.shards_for(1, 64), 1);
    assert!(!runtime.polling.value);
    assert_eq!(runtime.idle_spin.value, Duration::from_micros(200));
    assert_eq!(runtime.pin.value, None);
    assert_eq!(runtime.executor.value, ExecutorChoice::Auto);
    assert_eq!(runtime.slab_send_bytes.value, 64 << 20);
    assert_eq!(runtime.mailbox_slots.value, 65_536);
    assert_eq!(runtime.claim_directory.value, Path::new("/tmp/sealane"));
    let transport = &settings.transport;
    assert_eq!(transport.endpoint_map.value, Path::new(".endpoint_map"));
    assert_eq!(transport.connect_timeout.value, Duration::from_secs(120));
    assert_eq!(transport.window.value, 40);
    assert_eq!(transport.tensor_bytes_max.value, 4 << 30);
    assert_eq!(transport.require.value, Require::Auto);
    assert_eq!(settings.tcp.wanted_congestion(), None);
    assert_eq!(settings.tcp.send_buffer_bytes.value, 0);
    assert_eq!(settings.fusion.fuse.value, Fuse::Turn);
    let daemon = &settings.daemon;
    assert_eq!(daemon.socket.value, sealane::daemon_socket(None));
    assert_eq!(daemon.allowed_uids.value, [0; 0]);
    assert_eq!((daemon.clients_max.value, daemon.drain_timeout.value), (1024, Duration::from_secs(10)));
    assert_eq!((daemon.arena_bytes_max.value, daemon.area_bytes.value), (16 << 30, 64 << 20));
    assert_eq!(settings.verbs.queue_depth.value, 1024);
    assert_eq!(settings.verbs.timeout.value, 14);
    assert_eq!(settings.verbs.mtu.value, None);
    assert_eq!(settings.verbs.transfer.value, Transfer::Write);
    assert_eq!(settings.verbs.registration.value, Registration::Static);
    assert_eq!(settings.verbs.retry_after.value, Duration::from_secs(30));
    assert_eq!(settings.entries().len(), TABLE.len());
    assert!(settings.entries().iter().all(|entry| entry.source == Source::Default));
}

#[test]
fn a_flag_wins_over_a_variable_over_the_file_over_the_default() {
    const TOML: &str = "[runtime]\n\nshards = 2\n";
    let variable = || Case::variables(&[("NETWORK_PS_CORE_NUMBER", "3")]);

    let (settings, file) = Case::default().toml(TOML).load();
    let shards = settings.unwrap().runtime.shards;
    assert_eq!(shards.value, Some(2));
    assert_eq!(shards.source, Source::File { path: file, line: 3 });

    let shards = variable().toml(TOML).settings().runtime.shards;
    assert_eq!(shards.value, Some(3));
    assert_eq!(shards.source, Source::Variable("NETWORK_PS_CORE_NUMBER"));

    let case = variable().toml(TOML).set("runtime.shards", "4").set("runtime.shards", "5");
    let settings = case.settings();
    assert_eq!(settings.runtime.shards.value, Some(5));
    assert_eq!(settings.runtime.shards.source, Source::Flag("--set"));
    assert_eq!(settings.runtime.shards_for(1, 1), 5);
}

#[test]
fn empty_variables_count_as_unset_and_are_named() {
    let names: Vec<_> = TABLE.iter().flat_map(|setting| setting.variables.names()).collect();
    let settings = Case::variables(&names.iter().map(|name| (*name, "")).collect::<Vec<_>>()).settings();
    assert!(settings.entries().iter().all(|entry| entry.source == Source::Default));
    assert_eq!(settings.warnings().count(), 0);
    let says = settings.empty_variables().unwrap();
    assert!(says.starts_with("NETWORK_PS_CORE_NUMBER, NETWORK_WORKER_CORE_NUMBER, "), "{says}");
    assert!(says.ends_with("are empty and count as unset"), "{says}");
    let one = Case::variables(&[("RDMA_MTU", "")]).settings().empty_variables();
    assert_eq!(one.unwrap(), "RDMA_MTU is empty and counts as unset");
    assert_eq!(Case::default().settings().empty_variables(), None);
}

#[test]
fn a_former_name_is_read_and_noted() {
    let case = || Case::default().toml("[fusion]\ndeposited_tensors_max = 7\n");
    let (by_file, by_flag) = (case(), case().set("fusion.deposited_tensors_max", "8"));
    for (case, value) in [(by_file, 7), (by_flag, 8)] {
        let settings = case.load().0.unwrap();
        assert_eq!(settings.fusion.pending_sends_max.value, value);
        let says: Vec<String> = settings.warnings().map(|(of, says, _)| format!("{of}: {says}")).collect();
        assert!(says[0].starts_with("settings: renamed: fusion.deposited_tensors_max is fusion.pending_sends_max"));
    }
    let today = Case::default().set("fusion.pending_sends_max", "9").load().0.unwrap();
    assert_eq!(today.warnings().count(), 0);
}

#[test]
fn the_role_picks_the_variables() {
    let pairs =
        [("NETWORK_PS_CORE_NUMBER", "3"), ("NETWORK_WORKER_CORE_NUMBER", "4"), ("WORKER_ENABLE_POLLING", "True")];
    for (role, shards, polling) in
        [(None, 3, false), (Some(Role::Ps), 3, false), (Some(Role::Worker), 4, true), (Some(Role::Chief), 4, true)]
    {
        let case = Case { role, ..Case::variables(&pairs) };
        let settings = case.settings();
        assert_eq!(settings.runtime.shards.value, Some(shards));
        assert_eq!(settings.runtime.polling.value, polling);
    }
    for (job, shards) in [("worker", 4), ("chief", 4), ("ps", 3), ("evaluator", 3)] {
        let config = format!(r#"{{"task":{{"type":"{job}"}}}}"#);
        let mut case = Case::variables(&pairs);
        case.variables.push((TF_CONFIG, config.into()));
        let settings = case.settings();
        assert_eq!(settings.runtime.shards.value, Some(shards), "{job}");
        assert_eq!(settings.role.source, Source::Variable(TF_CONFIG));
    }
    let worker = Case::variables(&[(TF_CONFIG, r#"{"task":{"type":"worker"}}"#)]);
    let role = worker.role(Role::Ps).settings().role;
    assert_eq!((role.value, role.source), (Role::Ps, Source::Flag("--role")));
}

#[test]
fn pinning_has_three_states() {
    for (text, pin) in [("True", false), ("0", true)] {
        let settings = Case::variables(&[("PS_DISABLE_PIN_CORES", text)]).settings();
        assert_eq!(settings.runtime.pin.value, Some(pin));
    }
    // Only the variable has the opposite meaning of its setting.
    let settings = Case::default().toml("runtime.pin = true").settings();
    assert_eq!(settings.runtime.pin.value, Some(true));
    let settings = Case::variables(&[("PS_DISABLE_PIN_CORES", "1")]).set("runtime.pin", "yes");
    assert_eq!(settings.settings().runtime.pin.value, Some(true));
}

#[test]
fn a_file_and_a_directory_can_give_the_endpoint_map() {
    let map = |case: Case| case.settings().transport.endpoint_map;
    let directory = || Case::variables(&[("TF_SEASTAR_ENDPOINT_MAP_PATH", "jobs")]);
    let found = map(directory());
    assert_eq!(found.value, Path::new("jobs/.endpoint_map"));
    assert_eq!(found.source, Source::Variable("TF_SEASTAR_ENDPOINT_MAP_PATH"));
    let empty = Case::variables(&[("TF_SEASTAR_ENDPOINT_MAP_PATH", "")]);
    assert_eq!(map(empty).value, Path::new(".endpoint_map"));
    let file = "transport.endpoint_map = 'mine'";
    assert_eq!(map(Case::default().toml(file)).value, Path::new("mine"));
    let weaker = map(directory().toml(file));
    assert_eq!(weaker.value, Path::new("jobs/.endpoint_map"), "a variable wins over the file");
    let flag = map(directory().set("transport.endpoint_map", "yours"));
    assert_eq!(flag.value, Path::new("yours"));
}

#[test]
fn verbs_variables_are_read_as_tensorflow_reads_them() {
    let settings = Case::variables(&[
        ("RDMA_DEVICE", "mlx5_0"),
        ("RDMA_DEVICE_PORT", "1"),
        ("RDMA_GID_INDEX", "3"),
        ("RDMA_PKEY", ""),
        ("RDMA_QUEUE_DEPTH", "2048"),
        ("RDMA_TIMEOUT", "10"),
        ("RDMA_RETRY_CNT", "5"),
        ("RDMA_SL", "1"),
        ("RDMA_MTU", "512"),
        ("RDMA_TRAFFIC_CLASS", "8"),
    ])
    .settings();
    let verbs = settings.verbs;
    assert_eq!(verbs.device.value.as_deref(), Some("mlx5_0"));
    assert_eq!(verbs.port.value, Some(1));
    assert_eq!(verbs.gid_index.value, Some(3));
    assert_eq!((verbs.pkey_index.value, verbs.pkey_index.source), (0, Source::Default));
    assert_eq!(verbs.queue_depth.value, 2048);
    assert_eq!((verbs.timeout.value, verbs.retry_count.value), (10, 5));
    assert_eq!((verbs.service_level.value, verbs.traffic_class.value), (1, 8));
    assert_eq!(verbs.mtu.value, Some(512));
}

#[test]
fn every_error_names_what_gave_the_value_and_what_is_accepted() {
    for (case, expected) in [
        (
            Case::variables(&[("WORKER_ENABLE_POLLING", "maybe")]).role(Role::Worker),
            "WORKER_ENABLE_POLLING=\"maybe\" (which sets runtime.polling) cannot be read; \
             write 0, 1, true, false, yes or no",
        ),
        (
            Case::variables(&[("NETWORK_PS_CORE_NUMBER", " ")]),
            "NETWORK_PS_CORE_NUMBER=\" \" (which sets runtime.shards) cannot be read; \
             write a whole number from 1 to 1024",
        ),
        (
            // The flag takes precedence, but the variable is still invalid.
            Case::variables(&[("NETWORK_PS_CORE_NUMBER", "0")]).set("runtime.shards", "1"),
            "NETWORK_PS_CORE_NUMBER=\"0\" (which sets runtime.shards) cannot be read; \
             write a whole number from 1 to 1024",
        ),
        (
            Case::variables(&[("RDMA_MTU", "1500")]),
            "RDMA_MTU=\"1500\" (which sets verbs.mtu) cannot be read; \
             write 256, 512, 1024, 2048 or 4096",
        ),
        (
            Case::default().toml("[runtime]\nslab_send_bytes = '64MB'"),
            "sealane.toml:2: runtime.slab_send_bytes = 64MB cannot be read; \
             write a number of bytes from 1 MiB to 1 TiB, plain or as in 64MiB",
        ),
        (
            Case::default().set("transport.window", "0"),
            "--set transport.window=0 cannot be read; write a whole number from 1 to 65536",
        ),
        (Case::default().set("window", "1"), "--set: there is no setting window; did you mean transport.window?"),
        (
            Case::default().toml("transport.require = 'any'"),
            "sealane.toml:1: transport.require = any cannot be read; write auto, tcp or verbs",
        ),
        (
            Case::default().set("verbs.transfer", "send"),
            "--set verbs.transfer=send cannot be read; write write or read",
        ),
        (
            Case::default().set("verbs.registration", "never"),
            "--set verbs.registration=never cannot be read; write static or dynamic",
        ),
        (
            Case::variables(&[("RDMA_DEVICE_PORT", "1")]),
            "RDMA_DEVICE_PORT=\"1\" (which sets verbs.port) names a port without a device; \
             set RDMA_DEVICE too",
        ),
        (
            Case::default().set("transport.heartbeat_ms", "30000"),
            "transport.peer_timeout_ms = 30000 (the default) conflicts with --set transport.heartbeat_ms=30000; \
             make the peer timeout longer than the heartbeat, for example three times",
        ),
        (
            Case::variables(&[(TF_CONFIG, "7")]),
            "TF_CONFIG cannot be read (it is not a JSON object); \
             write TensorFlow's JSON there, or unset it",
        ),
    ] {
        assert_eq!(case.error(), expected);
    }
}

#[test]
fn the_executor_is_one_of_three_words() {
    let load = |word| Case::default().set("runtime.executor", word);
    for (word, executor) in
        [("auto", ExecutorChoice::Auto), ("io_uring", ExecutorChoice::IoUring), ("epoll", ExecutorChoice::Epoll)]
    {
        assert_eq!(load(word).settings().runtime.executor.value, executor);
    }
    let error = load("uring").error();
    assert!(error.contains("auto, io_uring or epoll"), "{error}");
}

#[test]
fn verbs_can_be_ruled_out_and_required() {
    for (word, require) in [("auto", Require::Auto), ("tcp", Require::Tcp), ("verbs", Require::Verbs)] {
        assert_eq!(Case::default().set("transport.require", word).settings().transport.require.value, require);
    }
}

#[test]
fn tls_rules_verbs_out_unless_plain_text_is_allowed() {
    let tls = || {
        ["certificate", "key", "authorities"]
            .into_iter()
            .fold(Case::default(), |case, name| case.set(&format!("security.tls_{name}"), "file.pem"))
    };
    let plaintext = || tls().set("security.plaintext_rdma", "true");
    assert!(tls().settings().security.rules_out_verbs());
    assert!(!plaintext().settings().security.rules_out_verbs());
    assert!(!Case::default().set("security.secret_file", "secret").settings().security.rules_out_verbs());
    let required = |case: Case| case.set("transport.require", "verbs");
    let error = required(tls()).error();
    let expected = "--set transport.require=verbs conflicts with --set security.tls_certificate=file.pem; RDMA encrypts nothing: \
                    set security.plaintext_rdma = true to let tensors travel in plain text, or transport.require = tcp";
    assert_eq!(error, expected);
    assert!(required(plaintext()).load().0.is_ok());
}

#[test]
fn verbs_move_and_register_as_they_are_told() {
    let toml = "[verbs]\ntransfer = 'read'\nregistration = 'dynamic'\nretry_after_ms = 5\n";
    let verbs = Case::default().toml(toml).settings().verbs;
    assert_eq!((verbs.transfer.value, verbs.registration.value), (Transfer::Read, Registration::Dynamic));
    assert_eq!(verbs.retry_after.value, Duration::from_millis(5));
}

#[test]
fn a_variable_that_is_no_text_is_an_error() {
    let value = OsStr::from_bytes(b"\xff").to_owned();
    let case = Case { variables: vec![("TF_SEASTAR_ENDPOINT_MAP_PATH", value)], ..Case::default() };
    let error = case.error();
    assert!(error.starts_with("TF_SEASTAR_ENDPOINT_MAP_PATH="), "{error}");
    assert!(error.contains("is not UTF-8; "), "{error}");
}

#[test]
fn a_settings_file_that_is_named_must_be_there() {
    let directory = tempfile::tempdir().unwrap();
    let load = |config: &Path| {
        Settings::load(&Sources {
            environment: &Environment::default(),
            working_directory: directory.path(),
            config: Some(config),
            role: None,
            overrides: &[],
        })
    };
    let path = directory.path().join("other.toml");
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("other.toml: cannot be read ("), "{error}");
    std::fs::write(&path, "runtime.shards = 7").unwrap();
    assert_eq!(load(&path).unwrap().runtime.shards.value, Some(7));
}

#[test]
fn entries_show_value_and_meaning() {
    let settings = Case::default().set("runtime.slab_send_bytes", "1GiB").settings();
    let shown = |name: &str| {
        let found = settings.entries().iter().find(|entry| entry.setting.name == name);
        found.map(Entry::shown).unwrap()
    };
    assert_eq!(shown("runtime.slab_send_bytes"), "1 GiB");
    assert_eq!(shown("runtime.shards"), "min(16, tasks served, CPUs that may be used)");
    assert_eq!(shown("transport.heartbeat_ms"), "10000 ms");
    assert_eq!(shown("transport.require"), "\"auto\"");
}

#[test]
fn user_ids_are_read_from_everywhere() {
    let read = |toml| Case::default().toml(toml).settings().daemon.allowed_uids.value;
    assert_eq!(read("[daemon]\nallowed_uids = 1000\n"), [1000]);
    assert_eq!(read("[daemon]\nallowed_uids = '1000, 1001'\n"), [1000, 1001]);
    let list = Case::default().toml("[daemon]\nallowed_uids = [1000]\n").error();
    assert!(list.ends_with("write user ids between commas, as in \"1000,1001\""), "{list}");
    let name = Case::default().set("daemon.allowed_uids", "root").error();
    assert!(name.starts_with("--set daemon.allowed_uids=root cannot be read; "), "{name}");
}
