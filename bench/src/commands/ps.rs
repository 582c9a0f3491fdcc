//! `sealane bench ps`: the parameter-server experiment, and all combinations of its settings.

use itertools::iproduct;
use sealane_cli::Failure;
use sealane_cli::workload::Workload;

use super::tables::{RowsFlags, Step};
use super::{Common, Polling};
use crate::plan::{Bench, Fuse, Mode, Plan, Registration, Size, Training, Variant};

/// Many workers that train with several parameter servers: in each step, a worker pulls from every ps and pushes to it
///
/// Reproduces the published experiments on parameter servers at scale, with each published technique as a setting. All ps run
/// in one process, on one shard; all workers run in another, on one CPU. Over tcp, workers share one thread, each with a
/// session over its own socket to every ps; over verbs, each is an engine, and over shm each is a client of the parameter
/// servers' engine, with its own thread. Several such threads share the CPU, so they sleep whenever they wait, even with
/// --polling on: then only the ps spin, and the variant says that its workers park. Tensors are distributed over the ps by
/// size. A round is as many steps of every worker as fit into --seconds, at least one. steps_per_s is the total of all workers;
/// step_ms is one worker's step, from its first request until all ps have taken its gradients; messages_per_step counts wire
/// frames both ways, control frames included; bytes_per_step counts bytes on the loopback interface, or over verbs on the
/// workers' links (shm counts neither); slowest_share and fastest_share are a worker's steps relative to the mean.
///
/// If a setting is a list, all combinations are variants, which are measured in turn and compared with the first. grpc: tonic,
/// with a connection from every worker to every ps: one unary call per tensor, with as many in flight as there are request
/// buffers, and one call per ps with all tensors in one message.
///
/// With --rows, workers over tcp are tasks of one engine, with a thread each and a connection with every ps, and 64 at most: each
/// pulls its rows, then waits for its variables. whole: Sealane pulls the same tables as variables, whole, and pushes the same.
///
/// With --daemon, give --workers 1 --ps 1 and one variant: the worker is a client of this host's daemon and the ps a client of the
/// other host's. The CPU time and memory of the daemons are not counted. --fuse plan needs room for all tensors of the step in
/// daemon.area_bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane bench ps --workers 200 --ps 10 --baseline grpc\n  \
                  sealane bench ps --fuse turn --request-buffers 1,40 --registration dynamic,static\n  \
                  sealane bench ps --fuse off,turn,receive,receive-wait-all,plan\n  \
                  sealane bench ps --rows --workload dlrm_kaggle --workers 8 --ps 2 --baseline whole\n  \
                  sealane bench ps --link shm --workers 8 --ps 2 --fuse off,receive,plan\n  \
                  sealane bench ps --link verbs --workers 4 --ps 2 --registration dynamic,static")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,

    /// Workers
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "50")]
    workers: Vec<usize>,

    /// Parameter servers: one number, or one for each number of workers
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "5")]
    ps: Vec<usize>,

    /// The tensors that a worker pulls and pushes in a step: dlrm_kaggle, wide_deep_400, resnet50, ..., or a JSON file
    #[arg(long, value_name = "NAME|FILE.json", default_value = "wide_deep_400")]
    workload: String,

    #[command(flatten)]
    rows: RowsFlags,

    /// Whether workers proceed independently, or each step waits for the gradients of all
    #[arg(long, value_name = "async|sync", default_value_t = Mode::Async)]
    mode: Mode,

    /// Microseconds of computation between a worker's pulls and its pushes; if not 0, it pulls everything first
    #[arg(long, value_name = "US", default_value_t = 0)]
    compute_us: u64,

    /// Requests, and pushes, that a worker has in flight per ps, if each tensor is one: 1 as in TensorFlow's verbs, 40 as in
    /// mt-verbs
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "40")]
    request_buffers: Vec<usize>,

    /// off: one write per message; turn: one write per turn; receive: one request by keys for all tensors of a ps;
    /// receive-wait-all: the same, but a worker continues only when all tensors have arrived; plan: one request by the number
    /// of a plan
    #[arg(
        long,
        value_name = "off|turn|receive|receive-wait-all|plan,...",
        value_delimiter = ',',
        default_value = "plan"
    )]
    fuse: Vec<Fuse>,

    /// Whether all sides spin instead of sleeping; over verbs and shm, multiple workers sleep anyway
    #[arg(long, value_name = "ON|OFF,...", value_delimiter = ',', default_value = "on")]
    polling: Vec<Polling>,
}

impl Args {
    /// The plan of these flags: every combination of the lists is a variant, with later flags changing faster.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        let workload = Workload::parse(&Workload::text(&self.workload)?, &self.workload)?;
        let Step { pull: step, push, tables } = self.rows.step(&workload)?;
        let &Self { mode, compute_us, .. } = self;
        let sizes = self.sizes()?;
        let (size, variants) = (sizes[0], self.variants(&sizes));
        let training = Training { size, mode, compute_us, push, variants };
        let first = training.variants[0];
        Ok(Plan {
            step,
            tables,
            workload: Some(workload.name),
            window: first.request_buffers,
            fuse: first.fuse,
            polling: first.polling,
            training: Some(training),
            ..self.common.plan.clone().of(Bench::Ps)
        })
    }

    fn sizes(&self) -> Result<Vec<Size>, Failure> {
        let (workers, ps) = (self.workers.len(), self.ps.len());
        if ps != 1 && ps != workers {
            let problem =
                format!("--workers has {workers} numbers and --ps has {ps}; give one of ps for all, or one for each");
            return Err(Failure::input(problem));
        }
        let all = self.workers.iter().zip(self.ps.iter().cycle());
        Ok(all.map(|(&workers, &ps)| Size { workers, ps }).collect())
    }

    fn variants(&self, sizes: &[Size]) -> Vec<Variant> {
        let registrations = match &self.common.plan.registration[..] {
            [] => &[Registration::Static][..],
            some => some,
        };
        let sizes = match sizes {
            [_] => vec![None],
            several => several.iter().copied().map(Some).collect(),
        };
        let all = iproduct!(sizes, &self.request_buffers, registrations, &self.fuse, &self.polling);
        let variant = |(size, &request_buffers, &registration, &fuse, &polling)| Variant {
            size,
            request_buffers,
            registration,
            fuse,
            polling: polling == Polling::On,
        };
        all.map(variant).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan_of(line: &str) -> Plan {
        let args = Line::parse_from(line.split(' ')).args;
        let plan = args.plan().unwrap_or_else(|_| panic!("{line}"));
        plan.check().unwrap();
        plan
    }

    #[test]
    fn lists_and_sizes_make_variants() {
        let variants = |line: &str| -> Vec<String> {
            plan_of(line).training.unwrap().variants.iter().map(Variant::to_string).collect()
        };
        assert_eq!(
            variants("ps --request-buffers 1,40 --registration dynamic,static --fuse turn"),
            [
                "fuse turn, 1 request buffer, dynamic, polling",
                "fuse turn, 1 request buffer, static, polling",
                "fuse turn, 40 request buffers, dynamic, polling",
                "fuse turn, 40 request buffers, static, polling",
            ]
        );
        assert_eq!(variants("ps --polling off --fuse off"), ["fuse off, 40 request buffers, static, parking"]);
        let sizes = variants("ps --workers 50,200 --ps 5,10 --fuse plan,off");
        assert_eq!(sizes[1], "50 workers + 5 ps, fuse off, 40 request buffers, static, polling");
        assert_eq!(sizes[2], "200 workers + 10 ps, fuse plan, 40 request buffers, static, polling");
        assert!(Line::parse_from("ps --workers 50,200 --ps 1,2,3".split(' ')).args.plan().is_err());
    }

    #[test]
    fn a_link_that_cannot_do_what_is_asked_says_so() {
        for (line, expected) in [
            (
                "--link shm --fuse plan,turn",
                "--fuse is turn; give off or receive or receive-wait-all or plan with ps over shm",
            ),
            (
                "--link shm --registration static,dynamic",
                "--registration is dynamic; give static with --fuse plan over shm, where a plan keeps its memory",
            ),
            (
                "--link shm --workers 65",
                "--workers is 65; give at most 64 over shm, where each has a thread and its own memory",
            ),
            ("--link shm --baseline grpc", "--baseline is grpc; give none with ps over shm"),
            ("--link loopback", "--link is loopback; give tcp or shm or verbs with ps"),
            ("--baseline whole", "--baseline is whole; give grpc with ps over tcp"),
            ("--rows --baseline grpc", "--baseline is grpc; give whole with ps and rows"),
            ("--rows --fuse turn", "--fuse is turn; give off or receive or receive-wait-all or plan with ps and rows"),
            (
                "--rows --workers 65",
                "--workers is 65; give at most 64 with --rows, where each has a thread and its own memory",
            ),
            (
                "--rows --baseline whole --table-rows-max 20000000",
                "--baseline is whole, which are 2162708868 bytes a step; give it with --table-rows-max, so that they are at most \
                 1073741824 bytes",
            ),
        ] {
            let line = format!("ps --workload dlrm_kaggle --workers 8 {line}");
            let plan = Line::parse_from(
                line.replacen(" --workers 8", if line.contains("65") { "" } else { " --workers 8" }, 1).split(' '),
            );
            assert_eq!(
                plan.args.plan().unwrap_or_else(|_| panic!("{line}")).check().unwrap_err().to_string(),
                expected
            );
        }
    }

    #[test]
    fn pulls_and_pushes_are_the_models_and_rows_are_pulled_in_place_of_their_tables() {
        let plan = plan_of("ps --workload dlrm_kaggle --workers 10 --ps 1 --mode sync --compute-us 500");
        let training = plan.training.unwrap();
        assert_eq!((plan.step.len(), training.push.len(), training.mode), (40, 66, Mode::Sync));
        assert_eq!((training.size, training.compute_us), (Size { workers: 10, ps: 1 }, 500));
        assert_eq!(training.variants, [Variant::default()]);
        let plan = plan_of("ps --rows --workload dlrm_kaggle --workers 8 --ps 2 --baseline whole --fuse plan,off");
        assert_eq!((plan.step.len(), plan.tables.len(), plan.training.unwrap().push.len()), (14, 26, 66));
        plan_of("ps --rows --workload dlrm_kaggle --workers 8 --link shm --baseline whole");
    }
}
