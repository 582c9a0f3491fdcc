//! The one place where the program's settings become an engine's. Plain data, made once before the engine starts.

use std::sync::Arc;
use std::time::Duration;

use sealane_fusion::{EndpointMap, EngineSettings};
use sealane_runtime::{Pin, Polling, RuntimeSettings, Wanted, claim_cpus, usable_cpus};
use sealane_transport::authentication::Authentication;
use sealane_transport::provider::LinkProvider;
use sealane_transport::verbs::{PLAINTEXT_REFUSED, Verbs, VerbsSettings};

use crate::settings::{self, Peers, Require, Runtime, Settings, Source, Transport};
use crate::{Failure, host};

/// Shards of an engine for one short piece of work, if no setting gives a number: it serves hardly more than one pair of tasks.
const SHORT_LIVED_SHARDS: usize = 1;

/// Settings of a long-lived engine that serves `tasks`: a daemon's, or a training process's.
///
/// # Errors
/// A task's name cannot be read, or pinning is required and too few CPUs are free.
pub fn engine_settings(settings: &Settings, map: EndpointMap, tasks: &[&str]) -> Result<EngineSettings, Failure> {
    engine_settings_beside(settings, map, tasks, &[])
}

/// As [`engine_settings`], for an engine that replaces another one, which shares its claims on these CPUs.
///
/// # Errors
/// As [`engine_settings`].
pub(crate) fn engine_settings_beside(
    settings: &Settings,
    map: EndpointMap,
    tasks: &[&str],
    shared: &[usize],
) -> Result<EngineSettings, Failure> {
    let shards = settings.runtime.shards_for(tasks.len(), usable_cpus().map_err(Failure::work)?);
    let pin = pin(&settings.runtime, (shards, shared), Pin::IfFree)?;
    convert(settings, map, tasks, shards, pin)
}

/// Settings of an engine for one short piece of work. Where no setting says otherwise: one shard, `unset_pin` instead of claiming
/// CPUs, and no reports of long turns, which here would only show that a slab was being made or that the machine has other work.
///
/// # Errors
/// As [`engine_settings`].
pub fn short_lived_engine_settings(
    settings: &Settings,
    map: EndpointMap,
    tasks: &[&str],
    unset_pin: Pin,
) -> Result<EngineSettings, Failure> {
    let shards = settings.runtime.shards.value.unwrap_or(SHORT_LIVED_SHARDS);
    let pin = pin(&settings.runtime, (shards, &[]), unset_pin)?;
    let mut engine = convert(settings, map, tasks, shards, pin)?;
    if settings.runtime.stall_report.source == Source::Default {
        engine.runtime.stall_report = Duration::ZERO;
    }
    Ok(engine)
}

fn convert(
    settings: &Settings,
    map: EndpointMap,
    tasks: &[&str],
    shards: usize,
    pin: Pin,
) -> Result<EngineSettings, Failure> {
    let Settings { runtime, transport, tcp, fusion, daemon, security, .. } = settings;
    let has_device = host::has_rdma_device();
    let mut engine = EngineSettings::new(map, tasks).map_err(Failure::input)?;
    runtime.apply(&mut engine);
    transport.apply(&mut engine);
    tcp.apply(&mut engine);
    fusion.apply(&mut engine);
    daemon.apply(&mut engine);
    security.apply(&mut engine);
    engine.runtime = RuntimeSettings { shards, pin, polling: polling(runtime), ..engine.runtime };
    engine.path_reason = path_reason(transport, has_device);
    engine.authentication = authentication(security)?;
    engine.links =
        verbs_of(settings, has_device).map(|verbs| Arc::new(verbs) as Arc<dyn LinkProvider>).into_iter().collect();
    Ok(engine)
}

/// What peers must present, with its files read.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn authentication(security: &settings::Security) -> Result<Authentication, Failure> {
    match &security.peers {
        Peers::Anyone => Ok(Authentication::default()),
        Peers::Secret(file) => Authentication::secret(file).map_err(Failure::input),
        Peers::Tls(files) => Authentication::tls(files).map_err(Failure::input),
    }
}

/// Why links between hosts are of the kind that they are. The log quotes it for every link of an engine without verbs; an engine
/// with verbs gets the reasons from the device and the peer.
fn path_reason(transport: &Transport, has_device: bool) -> String {
    match transport.require.value {
        Require::Auto if !has_device => "no verbs here: this host has no RDMA device".to_owned(),
        Require::Auto | Require::Tcp | Require::Verbs => asked_for(transport),
    }
}

/// The links to other hosts that the settings allow, and the setting behind it: only TCP under TLS, unless RDMA may carry plain
/// text.
pub(crate) fn link_wanted(settings: &Settings) -> (Require, String) {
    let require = settings.transport.require.value;
    match require == Require::Auto && settings.security.rules_out_verbs() {
        true => (Require::Tcp, PLAINTEXT_REFUSED.into()),
        false => (require, asked_for(&settings.transport)),
    }
}

/// The value of `transport.require`, and where it was set.
fn asked_for(transport: &Transport) -> String {
    let word = match transport.require.value {
        Require::Auto => "auto",
        Require::Tcp => "tcp",
        Require::Verbs => "verbs",
    };
    format!("transport.require is {word} ({})", transport.require.source)
}

/// How an engine uses verbs, if it should. Without a device it does not try, unless verbs are required: then it reports what is
/// missing.
fn verbs_of(settings: &Settings, has_device: bool) -> Option<Verbs> {
    let (is_wanted, is_required) = match settings.transport.require.value {
        Require::Auto => (has_device, false),
        Require::Tcp => (false, false),
        Require::Verbs => (true, true),
    };
    let plaintext = settings.security.plaintext_rdma.value;
    is_wanted.then(|| Verbs { is_required, plaintext, ..Verbs::new(verbs_settings(&settings.verbs)) })
}

/// The section `[verbs]` in the link's own form.
pub(crate) fn verbs_settings(verbs: &settings::Verbs) -> VerbsSettings {
    let mut settings = VerbsSettings::default();
    verbs.apply(&mut settings);
    settings
}

fn polling(runtime: &Runtime) -> Polling {
    if runtime.polling.value { Polling::Spin } else { Polling::idle(runtime.idle_spin.value) }
}

/// Required pinning names its CPUs, in the form that the runtime expects: the shared ones, then others that can be claimed now. If
/// another process claims one before the engine does, the engine reports it and does not start.
fn pin(runtime: &Runtime, (shards, shared): (usize, &[usize]), unset: Pin) -> Result<Pin, Failure> {
    match runtime.pin.value {
        None => Ok(unset),
        Some(false) => Ok(Pin::Off),
        Some(true) => {
            let shared = &shared[..shards.min(shared.len())];
            let wanted = Wanted::Any(shards - shared.len());
            let claims = claim_cpus(&runtime.claim_directory.value, wanted, Vec::new()).map_err(|error| {
                let by = match &runtime.pin.source {
                    Source::Default => String::new(),
                    source => format!(" by {source}"),
                };
                Failure::work(format!("runtime.pin is required{by}, but {error}"))
            })?;
            Ok(Pin::Cpus(shared.iter().copied().chain(claims.iter().map(|claim| claim.cpu())).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use sealane_runtime::Runtime;

    use super::*;
    use crate::settings::{Kind, PASSED_ON, Setting, Unit, Value};

    const MAP: &str = "ps0:2222=127.0.0.1:7000\nps1:2222=127.0.0.1:7001\nworker0:2222=127.0.0.1:7002\n";

    fn load(given: &[(&str, &str)]) -> Settings {
        Settings::of(given.iter().copied()).unwrap()
    }

    fn map() -> EndpointMap {
        EndpointMap::parse(MAP, "test").unwrap()
    }

    fn engine(given: &[(&str, &str)]) -> EngineSettings {
        engine_settings(&load(given), map(), &["ps0:2222"]).unwrap()
    }

    #[test]
    fn long_lived_engine_counts_the_tasks_it_serves() {
        let shards = |tasks: &[&str]| engine_settings(&load(&[]), map(), tasks).unwrap().runtime.shards;
        let cpus = usable_cpus().unwrap();
        assert_eq!(shards(&["ps0:2222"]), 1);
        assert_eq!(shards(&["ps0:2222", "ps1:2222", "worker0:2222"]), 3.min(cpus));
        assert_eq!(engine(&[]).runtime.pin, Pin::IfFree);
    }

    #[test]
    fn short_lived_engine_has_one_shard_by_default() {
        let short = short_lived_engine_settings(&load(&[]), map(), &["ps0:2222"], Pin::Off).unwrap();
        assert_eq!((short.runtime.shards, &short.runtime.pin), (1, &Pin::Off));
        assert_eq!(short.runtime.stall_report, Duration::ZERO);
        let given = load(&[("runtime.shards", "2"), ("runtime.stall_report_ms", "5")]);
        let short = short_lived_engine_settings(&given, map(), &["ps0:2222"], Pin::Off).unwrap();
        assert_eq!((short.runtime.shards, short.runtime.stall_report), (2, Duration::from_millis(5)));
    }

    /// A value that differs from the setting's default.
    fn other_value(setting: &Setting) -> String {
        match (setting.kind, &setting.default) {
            (Kind::Number { max, .. }, Value::Number(number)) if *number == max => (number - 1).to_string(),
            (Kind::Number { .. }, Value::Number(number)) => (number + 1).to_string(),
            (Kind::Number { max, .. }, _) => max.to_string(),
            (Kind::Bool, default) => (*default != Value::Bool(true)).to_string(),
            (Kind::IpAddress, _) => "10.0.0.7".to_owned(),
            (Kind::OneOf(words), default) => {
                words.iter().find(|word| default.to_string() != **word).unwrap().to_string()
            }
            _ => "/other".to_owned(),
        }
    }

    /// The fields of a value in its debug format, such as `window: 40`.
    fn fields(shown: &dyn Debug) -> Vec<String> {
        format!("{shown:?}").split(", ").map(|field| field.rsplit("{ ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_setting_changes_its_field_and_no_other() {
        let map = map();
        for (setting, place) in PASSED_ON {
            let shown = |given: &[(&str, &str)]| match setting.section() {
                "verbs" => fields(&verbs_settings(&load(given).verbs)),
                _ => fields(&engine_settings(&load(given), map.clone(), &["ps0:2222"]).unwrap()),
            };
            // A port needs its device.
            let device = ("verbs.device", "mlx5_1");
            let given = if setting.name == "verbs.port" { vec![device] } else { Vec::new() };
            let other = other_value(setting);
            let (before, after) = (shown(&given), shown(&[&given[..], &[(setting.name, &other)]].concat()));
            let changed: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
            let [(_, changed)] = changed[..] else { panic!("{} changes {changed:?}", setting.name) };
            let field = format!("{}: ", place.rsplit('.').next().unwrap().trim());
            assert!(changed.starts_with(&field), "{} changes {changed}", setting.name);
            if let Kind::Number { unit: Unit::Bytes | Unit::Count, .. } = setting.kind {
                let value = changed[field.len()..].trim_matches(|character: char| !character.is_ascii_digit());
                assert_eq!(value, other, "{}", setting.name);
            }
        }
        assert_eq!(verbs_settings(&load(&[]).verbs), VerbsSettings::default());
        assert!(engine(&[]).authentication.is_open());
    }

    #[test]
    fn every_default_is_the_librarys() {
        let library = EngineSettings::new(map(), &["ps0:2222"]).unwrap();
        let mut engine = engine(&[]);
        // These depend on the map and the host.
        engine.map = library.map.clone();
        engine.runtime.shards = library.runtime.shards;
        engine.path_reason.clone_from(&library.path_reason);
        engine.links = Vec::new();
        assert_eq!(format!("{engine:#?}"), format!("{library:#?}"));
    }

    #[test]
    fn a_daemon_and_an_engine_in_a_process_claim_different_cpus() {
        let embedded = EngineSettings::new(map(), &["ps0:2222"]).unwrap().runtime;
        let daemon = RuntimeSettings { shards: 1, ..engine(&[]).runtime };
        let runtimes = [embedded, daemon].map(|settings| Runtime::start(settings).unwrap());
        let cpus: Vec<_> = runtimes.iter().flat_map(|runtime| runtime.cpus()).flatten().collect();
        assert!(cpus.is_empty() || cpus.first() != cpus.get(1), "{cpus:?}");
    }

    #[test]
    fn polling_follows_its_two_settings() {
        assert_eq!(engine(&[]).runtime.polling, Polling::default());
        assert_eq!(engine(&[("runtime.polling", "true")]).runtime.polling, Polling::Spin);
        assert_eq!(engine(&[("runtime.idle_spin_us", "0")]).runtime.polling, Polling::Park);
        let idle_spin = Duration::from_micros(7);
        assert_eq!(engine(&[("runtime.idle_spin_us", "7")]).runtime.polling, Polling::SpinThenPark { idle_spin });
    }

    #[test]
    fn a_required_pin_names_cpus_or_fails() {
        assert_eq!(engine(&[("runtime.pin", "false")]).runtime.pin, Pin::Off);
        let claims = tempfile::tempdir().unwrap();
        let claims = claims.path().to_str().unwrap();
        let given = |shards| [("runtime.pin", "true"), ("runtime.shards", shards), ("runtime.claim_directory", claims)];
        let Pin::Cpus(cpus) = engine(&given("1")).runtime.pin else { panic!("not pinned") };
        assert_eq!(cpus.len(), 1);
        let failure = engine_settings(&load(&given("1024")), map(), &["ps0:2222"]).unwrap_err().to_string();
        assert!(failure.starts_with("runtime.pin is required by --set, but "), "{failure}");
    }

    #[test]
    fn links_have_their_kind_for_a_reason_that_is_said() {
        let reason = |given: &[_], has_device| path_reason(&load(given).transport, has_device);
        assert_eq!(reason(&[], false), "no verbs here: this host has no RDMA device");
        assert_eq!(reason(&[], true), "transport.require is auto (default)");
        for has_device in [false, true] {
            assert_eq!(reason(&[("transport.require", "tcp")], has_device), "transport.require is tcp (--set)");
        }
        assert_eq!(engine(&[]).path_reason, reason(&[], host::has_rdma_device()));
    }

    #[test]
    fn verbs_are_used_where_they_can_be_had_and_are_not_ruled_out() {
        let is_required = |require| {
            let mut settings = load(&[]);
            settings.transport.require.value = require;
            [true, false].map(|has_device| verbs_of(&settings, has_device).map(|verbs| verbs.is_required))
        };
        assert_eq!(is_required(Require::Auto), [Some(false), None]);
        assert_eq!(is_required(Require::Tcp), [None, None]);
        assert_eq!(is_required(Require::Verbs), [Some(true), Some(true)]);

        assert_eq!(!engine(&[]).links.is_empty(), host::has_rdma_device());
        assert!(engine(&[("transport.require", "tcp")]).links.is_empty());

        let plaintext = |given: &[_]| verbs_of(&load(given), true).unwrap().plaintext;
        assert!(plaintext(&[("security.plaintext_rdma", "yes")]) && !plaintext(&[]));
    }

    #[test]
    fn a_task_that_is_no_name_is_refused() {
        assert!(engine_settings(&load(&[]), map(), &["ps0"]).is_err());
    }
}
