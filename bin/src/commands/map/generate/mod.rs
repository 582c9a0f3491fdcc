//! `sealane map generate`: writes the endpoint map of a job that a framework or a scheduler has already described. The same input
//! always gives the same map, so every host may make its own. Bounded by [`SOURCE_BYTES_MAX`] and `ENTRIES_MAX`.

mod host_list;
mod hostfile;
mod job;
mod slurm;
mod statefulset;
mod tf_config;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use self::job::Ports;
pub(crate) use self::tf_config::CLUSTERS;
use crate::files::{read_text, replace};
use crate::{Context, Failure};

/// Most bytes read from a file that describes a job: as many as an endpoint map may have.
const SOURCE_BYTES_MAX: u64 = sealane_transport::endpoint_map::FILE_BYTES_MAX;

/// The port of tasks without one: the default of TensorFlow's jobs on Kubernetes.
const TASK_PORT: u16 = 2222;
/// The port of the transport: as in this project's examples.
const PORT: u16 = 7000;

/// Generate an endpoint map from a job description
///
/// The left side of a line is a task's gRPC address, the right side the same host with the transport's port: all tasks of a
/// host share it, because one daemon serves them. The same input gives the same map on every host. Flags override variables.
/// docs/endpoint_map.md has an example of each source.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  sealane map generate --from tf-config --out .endpoint_map
  sealane map generate --from slurm --ps 2 --out .endpoint_map
  sealane map generate --from hostfile --hostfile hosts --ps 1
  sealane map generate --from statefulset --ps ps:2 --worker worker:4 --service train --namespace ml")]
pub struct Args {
    /// Source of the job description
    #[arg(long, value_name = "SOURCE")]
    from: Source,

    /// Port on which every host's daemon listens
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// Each task has its own engine, without a daemon: transport ports count up from --port on each host
    #[arg(long)]
    embedded: bool,

    /// File to write atomically, instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// tf-config: a file with the JSON, instead of the variable TF_CONFIG
    #[arg(long, value_name = "FILE")]
    tf_config: Option<PathBuf>,

    /// slurm: the hosts, instead of SLURM_JOB_NODELIST, as in `node[01-03,07]`
    #[arg(long, value_name = "LIST")]
    nodelist: Option<String>,

    /// slurm: tasks per host, instead of SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE, as in `2(x3),1`; one number applies to
    /// every host
    #[arg(long, value_name = "COUNTS")]
    tasks_per_node: Option<String>,

    /// hostfile: the file, in the format of Open MPI, MPICH or DeepSpeed
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// slurm, hostfile: number of ps, which are the first tasks; statefulset: NAME:REPLICAS of the parameter servers,
    /// repeatable
    #[arg(long, value_name = "N or NAME:REPLICAS")]
    ps: Vec<String>,

    /// statefulset: NAME:REPLICAS of the workers, repeatable
    #[arg(long, value_name = "NAME:REPLICAS")]
    worker: Vec<String>,

    /// statefulset: the headless service that gives the pods their DNS names
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// statefulset: the namespace [default: POD_NAMESPACE, or that of the pod in which this runs]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// statefulset: the cluster's domain [default: that of the pod in which this runs, or cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,

    /// slurm, hostfile, statefulset: the gRPC port of a host's first task; the others count up from it [default: 2222]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    task_port: Option<u16>,
}

/// A source of a job description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Source {
    /// TensorFlow's variable TF_CONFIG: every task of its cluster, under its own address
    TfConfig,
    /// Slurm's variables: the number of tasks per host, numbered host by host
    Slurm,
    /// A file of hosts and their slots
    Hostfile,
    /// StatefulSets of Kubernetes: one task per pod, under the pod's DNS name
    Statefulset,
}

impl Source {
    fn name(self) -> String {
        self.to_possible_value().expect("no source is hidden").get_name().to_owned()
    }
}

/// Runs `sealane map generate`.
///
/// # Errors
///
/// The source is missing, cannot be read or contradicts itself, or the file cannot be written.
pub(super) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    args.refuse_unused()?;
    let text = match args.from {
        Source::TfConfig => tf_config::generate(args, context)?,
        Source::Slurm => slurm::generate(args, context)?,
        Source::Hostfile => hostfile::generate(args)?,
        Source::Statefulset => statefulset::generate(args, context, Path::new("/"))?,
    };
    match &args.out {
        None => context.print(&text),
        Some(path) => replace(path, std::iter::once(text.as_bytes())).map_err(|error| {
            let shown = path.display();
            Failure::work(format!(
                "{shown}: cannot be written ({error}); name a file in a directory that exists and has free space"
            ))
        }),
    }
}

impl Args {
    /// Refuses flags that the source does not read: silently ignored, they would mislead.
    fn refuse_unused(&self) -> Result<(), Failure> {
        use Source::{Hostfile, Slurm, Statefulset, TfConfig};
        let flags: [(&'static str, bool, &[Source]); 10] = [
            ("--tf-config", self.tf_config.is_some(), &[TfConfig]),
            ("--nodelist", self.nodelist.is_some(), &[Slurm]),
            ("--tasks-per-node", self.tasks_per_node.is_some(), &[Slurm]),
            ("--hostfile", self.hostfile.is_some(), &[Hostfile]),
            ("--ps", !self.ps.is_empty(), &[Slurm, Hostfile, Statefulset]),
            ("--worker", !self.worker.is_empty(), &[Statefulset]),
            ("--service", self.service.is_some(), &[Statefulset]),
            ("--namespace", self.namespace.is_some(), &[Statefulset]),
            ("--cluster-domain", self.cluster_domain.is_some(), &[Statefulset]),
            ("--task-port", self.task_port.is_some(), &[Slurm, Hostfile, Statefulset]),
        ];
        match flags.iter().find(|(_, is_given, readers)| *is_given && !readers.contains(&self.from)) {
            Some((flag, ..)) => {
                Err(Failure::input(format!("--from {} does not read {flag}; leave it out", self.from.name())))
            }
            None => Ok(()),
        }
    }

    /// The error that a flag needed by the source is missing.
    fn needs(&self, flag: &str) -> Failure {
        Failure::input(format!("--from {} needs {flag}; add it", self.from.name()))
    }

    fn ports(&self) -> Ports {
        Ports { first: self.port, is_each: self.embedded }
    }

    fn first_task_port(&self) -> u16 {
        self.task_port.unwrap_or(TASK_PORT)
    }

    /// The comment at the top of the map.
    fn made_by(&self) -> String {
        format!("# Made by `sealane map generate --from {}`.\n", self.from.name())
    }

    /// The number of ps, if the flag is a number.
    fn ps_count(&self) -> Result<usize, Failure> {
        let text = match &self.ps[..] {
            [] => return Ok(0),
            all => all.join(" --ps "),
        };
        text.parse().map_err(|_| {
            Failure::input(format!("--ps {text:?} is not a number of tasks; write how many of the tasks are ps"))
        })
    }
}

/// The text of a file, limited in size.
fn read(path: &Path) -> Result<String, Failure> {
    read_text(path, SOURCE_BYTES_MAX)
        .map_err(|error| Failure::file(path, format!("cannot be read ({error}); name a readable text file")))
}

/// The error that the variable read by the source is not set.
fn not_set(variable: &str, setter: &str, flag: &str) -> Failure {
    Failure::input(format!("{variable} is not set; run this where {setter} sets it, or give {flag}"))
}

fn no_tasks(origin: impl Display) -> Failure {
    Failure::input(format!("{origin} names no task; write at least one"))
}
