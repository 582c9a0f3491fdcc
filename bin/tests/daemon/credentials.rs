//! Secrets and certificates of a running daemon, in files whose content is replaced.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use sealane_transport::authentication::Authority;

use crate::figures::{ask, samples, words};
use crate::fixture::{Daemon, PS, Place, WORKER};
use crate::rings::Client;

/// Replaces a file as an editor does.
fn replace(place: &Place, file: &str, text: &str, mode: u32) {
    fs::write(place.path("new"), text).unwrap();
    fs::set_permissions(place.path("new"), fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(place.path("new"), place.path(file)).unwrap();
}

fn read(place: &Place, file: &str) -> String {
    fs::read_to_string(place.path(file)).unwrap()
}

/// A place with the secrets `in-use` and `next`, the first also as `secret`, and a daemon that reads `secret`.
fn of_secrets() -> (Place, Daemon) {
    let make = || {
        let place = Place::new();
        for file in ["in-use", "next"] {
            words(&place, &["keys", "secret", file]);
        }
        replace(&place, "secret", &read(&place, "in-use"), 0o600);
        place
    };
    Daemon::start_in(make, |place| Daemon::start_at(place, &["--set", "security.secret_file=secret"]))
}

/// Whether the daemon admits a caller with the secret of that file.
fn lets_in(place: &Place, secret: &str) -> bool {
    let set = format!("security.secret_file={secret}");
    let output = place.run(&["check", "--probe", "--json", "--set", &set]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let probe = &report["probes"][0];
    assert!(probe["verdict"] == "ok" || probe["says"].as_str().unwrap().contains("security.secret_file"), "{probe}");
    probe["verdict"] == "ok"
}

fn credentials(place: &Place) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(&words(place, &["stat", "--json"])).unwrap()["credentials"].clone()
}

/// Waits until the daemon has read its files again.
fn reloaded(daemon: &mut Daemon) {
    daemon.wait_for("RELOADING=1");
    daemon.wait_for("READY=1");
}

#[test]
fn a_secret_that_is_replaced_is_what_callers_must_have_from_then_on() {
    let (place, mut daemon) = of_secrets();
    assert!(lets_in(&place, "in-use") && !lets_in(&place, "next"));
    let (old, new) = (read(&place, "in-use"), read(&place, "next"));
    // As when hosts are changed one by one: first callers may use either secret, then only the new one.
    for (text, old_is_let_in) in [(format!("{old}{new}"), true), (format!("{new}{old}"), true), (new, false)] {
        replace(&place, "secret", &text, 0o600);
        reloaded(&mut daemon);
        assert_eq!((lets_in(&place, "in-use"), lets_in(&place, "next")), (old_is_let_in, true));
    }
    assert_eq!(credentials(&place)["taken"], 3);
    assert!(daemon.stop().stderr.contains("the credentials were reloaded"));
}

#[test]
fn both_sides_log_why_a_secret_is_rejected() {
    let make = || {
        let places = [Place::new(), Place::new()];
        let [ps, worker] = [&places[0].address, &places[1].address];
        let map = format!("{PS}={ps}\n{WORKER}={worker}\n");
        for place in &places {
            place.replace_map(&map);
            words(place, &["keys", "secret", "secret"]);
        }
        places
    };
    let (places, daemons) = Daemon::start_in(make, |places| {
        let start = |place, task| Daemon::start_at(place, &["--set", "security.secret_file=secret", "--task", task]);
        Ok([start(&places[0], PS)?, start(&places[1], WORKER)?])
    });
    let mut worker = Client::attach(&places[1], WORKER, PS);
    worker.recv(1, "k");
    let failed = worker.next();
    assert!(failed.contains("PermissionDenied"), "{failed}");
    for (daemon, who) in
        daemons.into_iter().zip(["a caller is not authenticated", "a peer rejects this side, or is rejected"])
    {
        let log = daemon.stop().stderr;
        let line =
            log.lines().find(|line| line.contains("WARN") && line.contains(who)).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("is not the same on both sides"), "{line}");
    }
}

#[test]
fn credentials_are_read_again_at_a_signal() {
    let make = || {
        let place = Place::new();
        fs::create_dir(place.path("elsewhere")).unwrap();
        words(&place, &["keys", "secret", "elsewhere/secret"]);
        words(&place, &["keys", "secret", "next"]);
        // The link's target is elsewhere, where nothing is watched.
        std::os::unix::fs::symlink("elsewhere/secret", place.path("secret")).unwrap();
        place
    };
    let (place, mut daemon) =
        Daemon::start_in(make, |place| Daemon::start_at(place, &["--set", "security.secret_file=secret"]));
    replace(&place, "elsewhere/secret", &read(&place, "next"), 0o600);
    daemon.signal(Signal::SIGHUP);
    reloaded(&mut daemon);
    assert!(lets_in(&place, "next"));
    // A file with the same content is not taken as new.
    daemon.signal(Signal::SIGHUP);
    reloaded(&mut daemon);
    assert_eq!(credentials(&place)["taken"], 1);
}

#[test]
fn credentials_that_cannot_be_used_are_shown_and_those_in_use_stay() {
    let (place, mut daemon) = of_secrets();
    let (old, new) = (read(&place, "in-use"), read(&place, "next"));
    let three = format!("{old}{new}{new}");
    let bad = [(&new[..10], 0o600), (&new, 0o644), ("", 0o600), (&three, 0o600)];
    for (count, (text, mode)) in bad.into_iter().enumerate() {
        replace(&place, "secret", text, mode);
        reloaded(&mut daemon);
        assert_eq!(credentials(&place)["refused"], count + 1);
        assert!(lets_in(&place, "in-use") && !lets_in(&place, "next"), "{text}");
    }
    assert!(words(&place, &["stat"]).contains("peer authentication: shared secret; new files were refused 4 times"));
    let ended = daemon.stop();
    let lines: Vec<_> =
        ended.stderr.lines().filter(|line| line.contains("the previous credentials stay in use")).collect();
    assert_eq!(lines.len(), bad.len(), "{}", ended.stderr);
    for (line, why) in lines.iter().zip(["has 10 bytes", "chmod 600", "has 0 bytes", "3 lines"]) {
        assert!(line.contains("ERROR") && line.contains(why), "{line}");
    }
}

/// The settings of a host whose certificate is in this folder.
fn tls(folder: &str) -> Vec<String> {
    let set = |(name, file): (&str, &str)| ["--set".to_owned(), format!("security.tls_{name}={folder}/{file}")];
    [("certificate", "certificate.pem"), ("key", "key.pem"), ("authorities", "authorities.pem")].map(set).concat()
}

fn with<'a>(arguments: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    arguments.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

/// Makes certificates valid for this many days, all in one folder.
fn certificates(place: &Place, folder: &str, days: &str) {
    words(place, &["keys", "tls", folder, "--days", days]);
    let host = format!("{folder}/{}", place.address.replace(':', "_"));
    for file in ["certificate.pem", "key.pem"] {
        fs::rename(place.path(&format!("{host}/{file}")), place.path(&format!("{folder}/{file}"))).unwrap();
    }
}

#[test]
fn a_certificate_that_ends_is_warned_of_and_replaced_without_a_restart() {
    let make = || {
        let place = Place::new();
        certificates(&place, "in-use", "3");
        certificates(&place, "next", "100");
        place
    };
    let arguments = tls("in-use");
    let (place, mut daemon) =
        Daemon::start_in(make, |place| Daemon::start_at(place, &with(&["--metrics", "127.0.0.1:0"], &arguments)));
    let log = daemon.log();
    let address = log.split_once("metrics at http://").unwrap().1.split('/').next().unwrap().to_owned();
    let shown = || {
        let days = samples(&ask(&address, "GET", "/metrics").1)["sealane_certificate_days_left"];
        let found = credentials(&place);
        assert!((found["days_left"].as_f64().unwrap() - days).abs() < 0.1, "{found}");
        assert_eq!(found["shown"], "TLS 1.3");
        days
    };
    assert!((2.9..=3.0).contains(&shown()));
    // It is reported in the log, by `stat`, and by `check` before a daemon starts.
    while !daemon.log().contains("expires soon") {
        std::thread::yield_now();
    }
    assert!(words(&place, &["stat"]).contains("its certificate is valid for 3.0 days"));
    let told = words(&place, &with(&["check"], &arguments)).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("the certificate or its authority expires in 3.0 days"), "{told}");

    let lets_in = |folder: &str| {
        let output = place.run(&with(&["check", "--probe", "--json"], &tls(folder)));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["probes"][0]["verdict"] == "ok"
    };
    assert!(lets_in("in-use"));
    fs::create_dir(place.path("old")).unwrap();
    for file in ["certificate.pem", "key.pem", "authorities.pem"] {
        fs::copy(place.path(&format!("in-use/{file}")), place.path(&format!("old/{file}"))).unwrap();
    }
    // One file at a time: a certificate without its key is not used yet. For a while both authorities are trusted.
    let take =
        |file: &str, mode| replace(&place, &format!("in-use/{file}"), &read(&place, &format!("next/{file}")), mode);
    let both = read(&place, "old/authorities.pem") + &read(&place, "next/authorities.pem");
    replace(&place, "in-use/authorities.pem", &both, 0o644);
    reloaded(&mut daemon);
    assert!(lets_in("old"));
    take("certificate.pem", 0o644);
    reloaded(&mut daemon);
    assert!(lets_in("old") && shown() < 4.0);
    take("key.pem", 0o600);
    reloaded(&mut daemon);
    assert!(lets_in("next") && (99.0..=100.0).contains(&shown()));
    take("authorities.pem", 0o644);
    reloaded(&mut daemon);
    assert!(lets_in("next") && !lets_in("old"));
    let samples = samples(&ask(&address, "GET", "/metrics").1);
    let count = |outcome: &str| samples[&format!("sealane_credentials_reloads_total{{outcome=\"{outcome}\"}}")];
    assert_eq!((count("taken"), count("refused")), (3.0, 1.0));
}

/// How long the certificate below is valid: daemons start in a fraction of it.
const LIFE: Duration = Duration::from_secs(8);

#[test]
fn both_sides_log_whose_certificate_has_expired_whoever_calls() {
    let make = || {
        let places = [Place::new(), Place::new()];
        let map = format!("{PS}={}\n{WORKER}={}\n", places[0].address, places[1].address);
        let (authority, ends) = (Authority::new().unwrap(), SystemTime::now() + LIFE);
        for (place, (task, until)) in places.iter().zip([(PS, ends + LIFE * 1000), (WORKER, ends)]) {
            place.replace_map(&map);
            let certified = authority.certify(&[task.parse().unwrap()], until).unwrap();
            fs::create_dir(place.path("tls")).unwrap();
            replace(place, "tls/authorities.pem", &authority.certificate(), 0o644);
            replace(place, "tls/certificate.pem", &certified.certificate, 0o644);
            replace(place, "tls/key.pem", &certified.key, 0o600);
        }
        (places, ends)
    };
    let ((places, ends), daemons) = Daemon::start_in(make, |(places, _)| {
        let start = |place, task| Daemon::start_at(place, &with(&["--task", task], &tls("tls")));
        Ok([start(&places[0], PS)?, start(&places[1], WORKER)?])
    });
    std::thread::sleep(ends.duration_since(SystemTime::now()).unwrap_or_default() + Duration::from_secs(1));
    for (place, caller, other) in [(&places[1], WORKER, PS), (&places[0], PS, WORKER)] {
        let mut caller = Client::attach(place, caller, other);
        caller.recv(1, "k");
        let failed = caller.next();
        assert!(failed.contains("PermissionDenied") && failed.contains("expired"), "{failed}");
    }
    let reasons =
        ["the peer's certificate, or its authority's, expired ", "the peer rejects this side's certificate: "];
    for (daemon, reason) in daemons.into_iter().zip(reasons) {
        let log = daemon.stop().stderr;
        for who in ["a caller is not authenticated", "a peer rejects this side, or is rejected"] {
            let line = log.lines().find(|line| line.contains("WARN") && line.contains(who));
            assert!(line.unwrap_or_else(|| panic!("{log}")).contains(reason), "{log}");
        }
    }
}
