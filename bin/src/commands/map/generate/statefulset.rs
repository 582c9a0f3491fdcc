//! The tasks of StatefulSets: one for each pod, by the DNS names that Kubernetes gives to pods behind a headless service
//! (`ps-0.train.ml.svc.cluster.local`). Pure except for the variable and two files that tell a pod its own namespace and domain;
//! bounded by `ENTRIES_MAX` pods.

use std::path::Path;

use sealane_transport::endpoint_map::ENTRIES_MAX;

use super::job::{Job, too_many_tasks};
use super::{Args, read};
use crate::settings::read_number;
use crate::{Context, Failure};

/// The variable that customarily holds a pod's namespace (the downward API's `metadata.namespace`).
const NAMESPACE_VARIABLE: &str = "POD_NAMESPACE";
/// Where Kubernetes writes a pod's namespace beside the token of its service account, below `/`.
const NAMESPACE_FILE: &str = "var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Where Kubernetes writes a pod's search domains; one of them is `svc.` followed by the cluster's domain.
const RESOLVER_FILE: &str = "etc/resolv.conf";
/// The default domain of a cluster.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Longest part of a pod's DNS name, in bytes (RFC 1123).
const LABEL_BYTES_MAX: usize = 63;

/// Makes the map; `root` is the root directory of this host's files.
pub(super) fn generate(args: &Args, context: &Context, root: &Path) -> Result<String, Failure> {
    let variable = context.environment().get(NAMESPACE_VARIABLE)?.map(str::to_owned);
    job(args, variable, root)?.map(&args.made_by(), args.ports())
}

fn job(args: &Args, namespace_variable: Option<String>, root: &Path) -> Result<Job, Failure> {
    let service = label("--service", args.service.clone().ok_or_else(|| args.needs("--service NAME"))?)?;
    let namespace = match (&args.namespace, namespace_variable.filter(|text| !text.is_empty())) {
        (Some(flag), _) => label("--namespace", flag.clone())?,
        (None, Some(variable)) => label(NAMESPACE_VARIABLE, variable)?,
        (None, None) => {
            let of_pod = read(&root.join(NAMESPACE_FILE))
                .map_err(|_| Failure::input("there is no namespace; give --namespace, or run this in a pod"))?;
            label(NAMESPACE_FILE, of_pod.trim().to_owned())?
        }
    };
    let domain = match &args.cluster_domain {
        Some(flag) => flag.trim_end_matches('.').to_owned(),
        None => domain_of_pod(root).unwrap_or_else(|| CLUSTER_DOMAIN.to_owned()),
    };
    for part in domain.split('.') {
        label("--cluster-domain", part.to_owned())?;
    }
    if args.ps.is_empty() && args.worker.is_empty() {
        return Err(args.needs("--ps NAME:REPLICAS or --worker NAME:REPLICAS"));
    }
    let port = args.first_task_port();
    let mut job = Job::default();
    for (flag, role, sets) in [("--ps", "ps", &args.ps), ("--worker", "worker", &args.worker)] {
        let mut index = 0;
        for set in sets {
            let (name, replicas) = replicas(flag, set)?;
            for ordinal in 0..replicas {
                let pod = label(flag, format!("{name}-{ordinal}"))?;
                let task = format!("{pod}.{service}.{namespace}.svc.{domain}:{port}");
                job.add(role, index, &task, || format!("{flag} {set}"))?;
                index += 1;
            }
        }
    }
    Ok(job)
}

/// Reads `ps:2`: a StatefulSet's name and its number of pods.
fn replicas<'a>(flag: &str, text: &'a str) -> Result<(&'a str, usize), Failure> {
    let wrong = || {
        Failure::input(format!("{flag} {text:?} cannot be read; write a StatefulSet's name and replicas, as in ps:2"))
    };
    let (name, replicas) = text.split_once(':').ok_or_else(wrong)?;
    match read_number(replicas).ok_or_else(wrong)? {
        0 => Err(wrong()),
        replicas @ 1..=ENTRIES_MAX => Ok((name, replicas)),
        _ => Err(too_many_tasks()),
    }
}

/// Checks a Kubernetes name, which is a part of a DNS name.
fn label(origin: &str, text: String) -> Result<String, Failure> {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()].iter().all(|byte| byte.is_some_and(is_end));
    let all = bytes.iter().all(|byte| is_end(byte) || *byte == b'-');
    match ends && all && text.len() <= LABEL_BYTES_MAX {
        true => Ok(text),
        false => Err(Failure::input(format!(
            "{origin} {text:?} is not a name in Kubernetes; write at most 63 of a-z, 0-9 and `-`, not `-` at an end"
        ))),
    }
}

/// The cluster's domain according to a pod's resolver: `search ml.svc.cluster.local svc.cluster.local cluster.local`.
fn domain_of_pod(root: &Path) -> Option<String> {
    let text = read(&root.join(RESOLVER_FILE)).ok()?;
    let searched = text.lines().filter_map(|line| line.strip_prefix("search ")).flat_map(str::split_whitespace);
    let mut domains = searched.filter_map(|domain| domain.strip_prefix("svc."));
    domains.next().map(|domain| domain.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;
    use crate::commands::map::generate::job::Ports;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn map(flags: &str, variable: Option<&str>, root: &Path) -> Result<String, String> {
        let line = format!("sealane --from statefulset {flags}");
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        let job = job(&args, variable.map(str::to_owned), root).map_err(|error| error.to_string())?;
        job.map("", Ports { first: 7000, is_each: false }).map_err(|error| error.to_string())
    }

    /// A pod's files.
    fn pod() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let secrets = root.path().join(NAMESPACE_FILE);
        fs::create_dir_all(secrets.parent().unwrap()).unwrap();
        fs::write(secrets, "ml").unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let resolver =
            "nameserver 10.96.0.10\nsearch ml.svc.prod.example svc.prod.example prod.example lan\noptions ndots:5\n";
        fs::write(root.path().join(RESOLVER_FILE), resolver).unwrap();
        root
    }

    #[test]
    fn a_pod_knows_its_namespace_and_domain_and_flags_win() {
        let pod = pod();
        let task = |flags: &str, variable| {
            let map = map(&format!("--ps ps:1 --service train {flags}"), variable, pod.path()).unwrap();
            map.lines().nth(1).unwrap().split_once(':').unwrap().0.to_owned()
        };
        assert_eq!(task("", None), "ps-0.train.ml.svc.prod.example");
        assert_eq!(task("", Some("other")), "ps-0.train.other.svc.prod.example");
        assert_eq!(task("", Some("")), "ps-0.train.ml.svc.prod.example");
        let all = "--namespace own --cluster-domain k8s.lan.";
        assert_eq!(task(all, Some("other")), "ps-0.train.own.svc.k8s.lan");
    }

    #[test]
    fn what_is_missing_or_cannot_be_read_is_said() {
        let nowhere = tempfile::tempdir().unwrap();
        let rest = "--service s --namespace n";
        for (flags, says) in [
            ("--ps ps:1 --namespace n", "--from statefulset needs --service NAME; add it"),
            ("--ps ps:1 --service s", "there is no namespace; give --namespace, or run this in a pod"),
            (rest, "--from statefulset needs --ps NAME:REPLICAS or --worker NAME:REPLICAS; add it"),
            (
                "--ps ps --service s --namespace n",
                "--ps \"ps\" cannot be read; write a StatefulSet's name and replicas",
            ),
            ("--worker w:0 --service s --namespace n", "--worker \"w:0\" cannot be read"),
            ("--worker w:+1 --service s --namespace n", "--worker \"w:+1\" cannot be read"),
            ("--ps ps:65537 --service s --namespace n", "there are more than 65536 tasks"),
            ("--ps ps:65536 --worker w:1 --service s --namespace n", "there are more than 65536 tasks"),
            ("--ps PS:1 --service s --namespace n", "--ps \"PS-0\" is not a name in Kubernetes"),
            ("--ps ps:1 --service s. --namespace n", "--service \"s.\" is not a name in Kubernetes"),
            ("--ps ps:1 --service s --namespace n --cluster-domain a..b", "--cluster-domain \"\" is not a name"),
        ] {
            let error = map(flags, None, nowhere.path()).unwrap_err();
            assert!(error.starts_with(says), "{flags}: {error}");
        }
        let variable = map("--ps ps:1 --service s", Some("n_"), nowhere.path()).unwrap_err();
        assert!(variable.starts_with("POD_NAMESPACE \"n_\" is not a name"), "{variable}");
        let long = format!("--ps {}:1 {rest}", "a".repeat(62));
        assert!(map(&long, None, nowhere.path()).unwrap_err().contains("at most 63"));
    }
}
