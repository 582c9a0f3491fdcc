"""What each chapter makes of its results: tables, mostly a picture, and the figures that the README and the aims share."""

from collections import namedtuple

import other_systems
from results import NOT_MEASURED, brief, certain, inverse, is_cost, median, quotient, speed, spread_of, with_spread

# A row that compares Sealane with the bare operation and with gRPC: what was done, in which experiment, which metric, which
# metric's quotients say how fast it is, and of several ways to use gRPC the one that is meant.
Line = namedtuple("Line", "what experiment metric by grpc")


def line(what, experiment, metric, by=None, grpc=None):
    return Line(what, experiment, metric, by or metric, grpc)


TENSORS = [
    line("64 B there and back, p50", "latency", "rtt_us.p50"),
    line("the same, p99", "latency", "rtt_us.p99"),
    line("64 B there and back after 1 ms idle, nobody spins, p50", "latency_parked", "rtt_us.p50"),
    line("64 B tensors, 1024 in flight (bare loop: a byte pump)", "rate", "tensors_per_s"),
    line("64 B tensors, one way into a queue", "rate_push", "tensors_per_s"),
    line("64 B tensors, 256 in flight, a write each", "rate_unfused", "tensors_per_s"),
]
ONE_HOST = [
    line("64 B there and back, p50", "latency_shm", "rtt_us.p50"),
    line("the same, p99", "latency_shm", "rtt_us.p99"),
    line("64 B there and back after 1 ms idle, nobody spins, p50", "latency_shm_parked", "rtt_us.p50"),
    line("64 B tensors, sent and received by one client core", "rate_shm", "tensors_per_s"),
    line("4 MiB tensors", "bandwidth_shm", "gigabytes_per_s"),
]
STEPS = [
    line("1000 x 64 B by a plan; gRPC: a call each", "fuse_plan", "step_ms", "steps_per_s"),
    line("the same; gRPC: all in one message", "fuse_plan", "step_ms", "steps_per_s", "one message"),
    line("1000 x 64 B by one fused recv", "fuse_receive", "step_ms", "steps_per_s"),
    line("1000 x 64 B by recvs, a write a turn", "fuse_turn", "step_ms", "steps_per_s"),
    line("1000 x 64 B by recvs, a write each", "fuse_off", "step_ms", "steps_per_s"),
    line("16 x 4 MiB by a plan, congestion control cubic; gRPC: a call each", "fuse_large_cubic", "step_ms", "steps_per_s"),
    line("the same, congestion control bbr", "fuse_large", "step_ms", "steps_per_s"),
    line("ResNet-50 by a plan; gRPC: a call each", "fuse_resnet50", "step_ms", "steps_per_s"),
    line("1000 x 64 B by a plan, shared memory", "fuse_shm", "step_ms"),
    line("16 x 4 MiB by a plan, shared memory", "fuse_shm_large", "step_ms"),
]
PS = [
    line("steps of 200 workers + 10 ps, wide & deep, by plans; gRPC: a call each", "ps_grpc", "steps_per_s"),
    line("the same; gRPC: all in one message", "ps_grpc", "steps_per_s", grpc="async, one message, polling"),
]
ROWS = [
    line("26 x 2048 rows of 64 B, TCP", "rows_tcp", "steps_per_s"),
    line("the same, shared memory", "rows_shm", "steps_per_s"),
]
SYSTEMS = ["<what", "Sealane", "bare loop", "gRPC", "speed, bare loop = 1", "speed, gRPC = 1"]

# What the tables of variants show; the quotient is of the first.
METRICS = [
    ("steps a second", "steps_per_s"),
    ("step, p50", "step_ms"),
    ("p99", "step_p99_ms"),
    ("messages a step", "messages_per_step"),
    ("CPU a step", "cpu_ms_per_step"),
    ("slowest worker's share", "slowest_share"),
]
GROWTH_METRICS = [
    ("steps a second", "steps_per_s"),
    ("step, p50", "step_ms"),
    ("p99", "step_p99_ms"),
    ("slowest worker's share", "slowest_share"),
    ("memory of the ps", "ps_rss_mib"),
    ("memory of the workers", "worker_rss_mib"),
    ("memory a connection", "rss_bytes_per_peer"),
    ("open files of the ps", "ps_open_files"),
]


def grpc(run, variant, metric):
    """The better of unary calls and one stream; of the ways to make unary calls, the one that is meant."""
    return "grpc" if variant else run.best(("grpc", "grpc-stream"), metric)


def times_as_fast(results, row, system):
    run = results.get(row.experiment)
    system = grpc(run, row.grpc, row.metric) if system == "grpc" else system
    name = f"sealane/{system}, {row.grpc}" if row.grpc and system == "grpc" else f"sealane/{system}"
    return speed(row.by, run.ratio(name, row.by))


def cells(results, row):
    """What, Sealane, bare operation, gRPC, times as fast as either."""
    run = results.get(row.experiment)
    system = grpc(run, row.grpc, row.metric)
    of_grpc = median(row.metric, run.figure(system, row.grpc, row.metric))
    return [
        row.what,
        with_spread(row.metric, run.figure("sealane", None, row.metric), NOT_MEASURED),
        median(row.metric, run.figure("raw", None, row.metric)),
        f"{of_grpc}, a stream" if system == "grpc-stream" else of_grpc,
        quotient(times_as_fast(results, row, "raw")),
        quotient(times_as_fast(results, row, "grpc")),
    ]


def systems(results, section, lines, title=None):
    """Sealane, the bare operation and gRPC side by side; without a column that nothing was measured of."""
    rows = [cells(results, row) for row in lines]
    shown = [at for at in range(len(SYSTEMS)) if any(row[at] for row in rows)]
    section.table([SYSTEMS[at] for at in shown], [[row[at] for at in shown] for row in rows], title)


def against_grpc(results, section, lines):
    rows = [(row.what, times_as_fast(results, row, "grpc")) for row in lines]
    rows = [row for row in rows if row[1]]
    if rows:
        section.picture = {"kind": "quotients", "label": "times as fast as gRPC (logarithmic)", "rows": rows}


def names(variants):
    """Variants by what sets them apart: parts of their names that all have are left out."""
    if len(variants) < 2:
        return list(variants)
    parts = [name.split(", ") for name in variants]
    return [", ".join(part for part in of if not all(part in other for other in parts)) or "as it is" for of in parts]


def named(run):
    """Every variant of Sealane and of gRPC: the system, the variant, and what to call it."""
    ours, theirs = run.variants("sealane"), run.variants("grpc")
    rows = [("sealane", *row) for row in zip(ours, names(ours))]
    return rows + [("grpc", variant, f"gRPC, {name}") for variant, name in zip(theirs, names(theirs))]


def to_grpc(run, variant, metric):
    """The first variant of Sealane by a variant of gRPC."""
    short = run.ratio("sealane/grpc", metric) if run.variants("grpc")[:1] == [variant] else None
    return short or run.ratio(f"sealane/grpc, {variant}", metric)


def variants(run, section, metrics, title):
    """A row for each variant of Sealane and of gRPC: these metrics, as far as anyone has them, and by what factor the first
    of them differs from that of the first variant."""
    metrics = [(head, metric) for head, metric in metrics if run.figure("sealane", None, metric)]
    all_named = named(run)
    if not metrics or not all_named:
        return
    main, rows = metrics[0][1], []
    for system, variant, name in all_named:
        by = run.to_first(variant, main) if system == "sealane" else inverse(to_grpc(run, variant, main))
        others = [median(metric, run.figure(system, variant, metric)) for _, metric in metrics[1:]]
        rows.append([name, quotient(by), with_spread(main, run.figure(system, variant, main)), *others])
    section.table(["<system", f"{all_named[0][2]} = 1", *(head for head, _ in metrics)], rows, title)


def bars(run, label, metric):
    rows = [(name, run.figure(system, variant, metric)) for system, variant, name in named(run)]
    return {"kind": "bars", "label": label, "rows": [row for row in rows if row[1]]}


def of_variants(results, section, experiment, metrics=METRICS):
    run = results.get(experiment)
    if run.provenance is None:
        return
    section.picture = bars(run, *metrics[0])
    given = run.report["parameters"]
    workload = f", {given['workload']}" if given.get("workload") else ""
    variants(run, section, metrics, f"{given.get('workers', '?')} workers + {given.get('ps', '?')} ps{workload}")


# The sizes of the published experiment, and mt-verbs by verbs at these: published for DLRM over RDMA, both changes together.
BUFFERS = [
    ("50 workers + 5 ps", "ps_buffers_50", "equal"),
    ("100 + 10", "ps_buffers_100", "1.25"),
    ("200 + 10", "ps_buffers_200", "1.48"),
    ("200 + 10, a write a message", "ps_buffers_off", ""),
    ("200 + 10, wide & deep", "ps_buffers_wide", ""),
]


def ps_buffers(results, section):
    runs = [results.get(experiment) for _, experiment, _ in BUFFERS]
    if not any(run.provenance for run in runs):
        return

    def called(run, name):
        # Runs differ in what their variants have in common, and so in how these are called in full.
        found = dict(zip(names(run.variants("sealane")), run.variants("sealane")))
        return quotient(run.to_first(found[name], "steps_per_s")) if name in found else ""

    first = next(run for run in runs if run.provenance)
    gains = [[name, *(called(run, name) for run in runs)] for name in names(first.variants("sealane"))]
    gains.append(["published: mt-verbs by verbs (DLRM, RDMA)", *(published for _, _, published in BUFFERS)])
    section.table(["<steps a second, first row = 1", *(size for size, _, _ in BUFFERS)], gains, "Gains")
    figures = []
    for (size, _, _), run in zip(BUFFERS, runs):
        for variant, name in zip(run.variants("sealane"), names(run.variants("sealane"))):
            of = lambda metric: run.figure("sealane", variant, metric)
            others = ("step_ms", "step_p99_ms", "cpu_ms_per_step", "slowest_share")
            figures.append([size, name, with_spread("steps_per_s", of("steps_per_s")), *(median(m, of(m)) for m in others)])
    heads = ["<size", "<variant", "steps a second", "step, p50", "p99", "CPU a step", "slowest worker's share"]
    section.table(heads, figures, "Figures")
    if runs[2].provenance:
        section.picture = bars(runs[2], "steps a second at 200 + 10", "steps_per_s")


def ps_fusion(results, section):
    of_variants(results, section, "ps_fusion")
    run = results.get("ps_fusion")
    if run.provenance is None:
        return
    ours = run.variants("sealane")
    rows = [
        [name, *(quotient(run.to_first(variant, metric)) for metric in ("steps_per_s", "messages_per_step"))]
        for variant, name in zip(ours, names(ours))
    ]
    rows.append(["published: FuseRecv by none (wide & deep)", "1.4", "0.45"])
    section.table(["<fusion", "steps a second", "messages a step"], rows, "By the first")
    systems(results, section, PS, "The plan against gRPC, in a run of their own")


def ps_polling(results, section):
    of_variants(results, section, "ps_polling")
    if results.get("ps_polling_few").provenance:
        variants(results.get("ps_polling_few"), section, METRICS, "4 workers + 1 ps, 1 ms of computing")


def ps_growth(results, section):
    runs = [(workers, results.get(f"ps_growth_{workers}")) for workers in (10, 50, 200, 500, 1000, 1500, 2000)]
    runs = [(workers, run) for workers, run in runs if run.provenance]
    if not runs:
        return
    metrics = [row for row in GROWTH_METRICS if any(run.figure("sealane", None, row[1]) for _, run in runs)]
    figure = lambda run, metric: with_spread(metric, run.figure("sealane", None, metric))
    rows = [[brief(workers), *(figure(run, metric) for _, metric in metrics)] for workers, run in runs]
    section.table(["workers", *(head for head, _ in metrics)], rows, "Each size by itself")
    points = [(workers, run.figure("sealane", None, "steps_per_s")) for workers, run in runs]
    section.picture = curves("steps/s", "workers", [("all workers together", [(w, s.median) for w, s in points if s], False)])
    if results.get("ps_growth_kept").provenance:
        variants(results.get("ps_growth_kept"), section, GROWTH_METRICS, "Two sizes in turn")


def curves(label, across, lines):
    return {"kind": "curves", "label": label, "across": across, "lines": lines}


def number(value):
    return brief(value) if isinstance(value, (int, float)) else ""


def sizes(report, section):
    """The sizes that were computed."""
    if "sizes" not in report:
        return
    rows = []
    for size in report["sizes"]:
        moved = size.get("moved_by") or {}
        steps = (median("step_ms", certain(size["step_ms"][at])) for at in ("p50", "p99"))
        used = (number(size["utilisation"].get(what)) for what in ("ps_cpu", "ps_nic", "worker_cpu", "worker_nic"))
        by = f"{moved['what']}: {quotient(certain(moved['factor']))}" if moved else ""
        name, limit = f"{number(size['workers'])} + {number(size['ps'])}", size.get("first_limit") or ""
        rows.append([name, number(size["steps_per_s"]), *steps, *used, number(size["efficiency"]), limit, by])
    heads = ["steps a second", "step, p50", "p99", "busy: ps CPU", "ps NIC", "worker CPU", "worker NIC", "efficiency"]
    section.table(["<workers + ps", *heads, "<first limit", "<what moves it, by what factor"], rows, "Sizes")


def growth(results, section):
    report = results.get("growth").report
    if "sizes" not in report:
        return
    sizes(report, section)
    steps = [(size["workers"], size["steps_per_s"]) for size in report["sizes"]]
    perfect = [(size["workers"], size["steps_per_s"] / size["efficiency"]) for size in report["sizes"]]
    section.picture = curves("steps/s", "workers", [("computed", steps, False), ("perfect growth", perfect, True)])
    costs = report["costs"]
    rows = [[f"{end}: {name}", brief(value)] for end in ("worker", "ps") for name, value in costs[end].items()
            if isinstance(value, (int, float))]
    section.table(["<cost", "value"], rows, "The model's costs")
    rows = []
    for one in costs.get("inputs", []):
        figures = (number(one.get(name)) for name in ("measured_steps_per_s", "predicted_steps_per_s", "error_percent"))
        rows.append([one["workload"], f"{number(one['workers'])} + {number(one['ps'])}", one["variant"], *figures])
    heads = ["<workload", "<workers + ps", "<variant", "measured steps a second", "computed", "error, %"]
    section.table(heads, rows, "Measured and computed")
    inputs, worst = costs.get("calibrated_from") or [], costs.get("worst_error_percent")
    if inputs and worst is not None:
        section.notes.append(f"Fitted to {len(inputs)} measured results; of what was measured, the model is off by at most "
                             f"{brief(worst)} %.")
    else:
        section.notes.append("The costs are the program's own; they were not fitted to measurements of this report.")


def exchange(results, name):
    """A system's steps a second in the training run, with nothing computed."""
    found = (system for system in results.get("training").report.get("systems", []) if system["name"] == name)
    return spread_of((next(found, None) or {}).get("steps_per_s"), "median")


def by_grpc(results, name):
    return results.get("training").ratio(f"{name}/grpc", "steps_per_s")


def training(results, section):
    run = results.get("training")
    if run.provenance is None:
        return
    rates = (("exchange alone", "steps_per_s"), ("training", "training_steps_per_s"))
    rows, lines = [], []
    for system in run.report["systems"]:
        row = [system["name"]]
        for _, rate in rates:
            row.append(with_spread("steps_per_s", spread_of(system.get(rate), "median")))
            row.append(quotient(run.ratio(f"{system['name']}/grpc", rate)))
        rows.append(row)
        pace = f"{system['name']}, {brief(system['steps_per_s']['median'])} steps/s"
        # Equal curves lie on each other: dashes let the first be seen below the second.
        lines.append((pace, list(enumerate(system["losses"])), bool(lines)))
    section.picture = curves("loss", "step", lines)
    heads = [head for what, _ in rates for head in (f"{what}: steps a second", "gRPC = 1")]
    section.table(["<system", *heads], rows)
    equal = "The losses of all systems are equal to the last bit, and to those of one process that trains alone."
    section.notes.append(equal if run.report.get("losses_equal") else "The losses of the systems are not equal.")


# What a TensorFlow job does, its metrics' names, and how many times as fast as gRPC it was to be, by one daemon and by two.
JOBS = [
    ("pull 1000 x 64 B", "pull_small", "_ms", (10, 6)),
    ("push 1000 x 64 B", "push_small", "_ms", (10, 6)),
    ("pull ResNet-50", "pull_resnet50", "_ms", (3, 2)),
    ("push ResNet-50", "push_resnet50", "_ms", (3, 2)),
    ("pull one variable of 64 B", "pull_one", "_ms", (1, 1)),
    ("ParameterServerStrategy, 20 x 1 MB", "strategy", "_ms", (3, 2)),
    ("wide & deep, 4 workers + 2 ps", "wide_deep", "_steps_per_s", (2, 1.5)),
]
WAYS = (("sealane", "one daemon"), ("sealane-tcp", "two daemons"))


def tensorflow(results, section):
    run = results.get("tensorflow")
    steps, cpu = [], []
    for what, name, end, aims in JOBS:
        metric, cost = name + end, name + "_cpu_ms"
        step = [what, with_spread(metric, run.figure("grpc", None, metric), NOT_MEASURED)]
        used = [what, with_spread(cost, run.figure("grpc", None, cost), NOT_MEASURED)]
        for (system, _), aim in zip(WAYS, aims):
            fast = quotient(speed(metric, run.ratio(f"{system}/grpc", metric)))
            step += [with_spread(metric, run.figure(system, None, metric)), fast, str(aim)]
            used += [with_spread(cost, run.figure(system, None, cost)), quotient(run.ratio(f"{system}/grpc", cost))]
        steps.append(step)
        cpu.append(used)
    section.table(["<a step", "gRPC", *(head for _, way in WAYS for head in (way, "speed, gRPC = 1", "aim"))], steps)
    heads = (head for _, way in WAYS for head in (way, "gRPC = 1"))
    section.table(["<CPU time of a step, of all processes", "gRPC", *heads], cpu, "CPU")
    if "least_share" in run.report:
        share = 100 * run.report["least_share"]
        section.notes.append(f"At least {share:.2f} % of the tensors' bytes went by Sealane.")


def pytorch(results, section):
    """The calls of both runs side by side, and the call without PyTorch."""
    runs = [results.get(name) for name in ("torch", "torch_tcp")]
    rows = []
    for call in dict.fromkeys(call for run in runs for call in run.variants("sealane")):
        rows.append([call])
        for run in runs:
            figures = [with_spread("call_us", run.figure(system, call, "call_us")) for system in ("gloo", "sealane")]
            rows[-1] += [*figures, quotient(speed("call_us", run.ratio(f"sealane/gloo, {call}", "call_us")))]
    heads = [head for way in ("one host", "TCP") for head in (f"gloo, {way}", f"Sealane, {way}", "speed, gloo = 1")]
    section.table(["<call", *heads], rows)
    run = results.get("collectives")
    if run.provenance:
        figures = [with_spread("call_us", run.figure(system, None, "call_us")) for system in ("gloo", "sealane")]
        row = ["all_reduce of 1 MiB", *figures, quotient(speed("call_us", run.ratio("sealane/gloo", "call_us")))]
        section.table(["<call", "gloo, in PyTorch", "Sealane, in Rust", "speed, gloo = 1"], [row], "Without PyTorch")


def tensors(results, section):
    against_grpc(results, section, TENSORS)
    systems(results, section, TENSORS)


def steps(results, section):
    against_grpc(results, section, STEPS)
    systems(results, section, STEPS)
    ways = [("a write each", "fuse_off"), ("a write a turn", "fuse_turn"), ("one fused recv", "fuse_receive"), ("a plan", "fuse_plan")]
    metric = "messages_per_step"
    rows = [[what, with_spread(metric, results.get(name).figure("sealane", None, metric))] for what, name in ways]
    section.table(["<1000 x 64 B by", "messages a step, both ways"], [row for row in rows if row[1]], "Messages")


def rows_moved(results, section):
    metrics = ("bytes_per_step", "messages_per_step", "worker_cpu_ms_per_step", "ps_cpu_ms_per_step")
    run = results.get("rows_tcp")
    rows = [[system, *(median(metric, run.figure(system, None, metric)) for metric in metrics)] for system in ("sealane", "raw", "grpc")]
    heads = ["bytes a step", "messages a step", "CPU a step, worker", "ps"]
    section.table(["<26 x 2048 rows of 64 B, TCP", *heads], [row for row in rows if any(row[1:])], "What a step takes")


def rows(results, section):
    if any(results.get(line.experiment).provenance for line in ROWS):
        against_grpc(results, section, ROWS)
        systems(results, section, ROWS)
        rows_moved(results, section)
    run = results.get("rows_ps")
    if run.provenance:
        found = [(name, run.figure(system, None, "steps_per_s")) for system, name in (("sealane", "by rows"), ("whole", "whole"))]
        speed_of = quotient(run.ratio("sealane/whole", "steps_per_s"))
        cells = [[name, with_spread("steps_per_s", figure, NOT_MEASURED)] for name, figure in found]
        cells[0].append(speed_of)
        cells[1].append("1")
        section.table(["<tables pulled", "steps a second", "whole = 1"], cells, "DLRM, 8 workers + 2 ps")


PEERS = [
    ("1000 workers pull a plan of 16 x 64 B from one ps", "fanin_plan", "tensors_per_s"),
    ("the same: what the slowest gets of its share", "fanin_plan", "slowest_share"),
    ("the same: memory of an idle peer", "fanin_plan", "rss_bytes_per_peer"),
    ("1000 workers are each sent tensors of 64 B, 16 in flight", "fanin_sent", "tensors_per_s"),
    ("1000 peers connect at once: all are welcome after", "connect", "connect_all_ms"),
    ("1000 idle peers: CPU of the engine", "idle", "cpu_percent"),
    ("the same: memory of a peer", "idle", "rss_bytes_per_peer"),
    ("1000 idle clients of a daemon: CPU", "idle_clients", "cpu_percent"),
    ("the same: memory of a client", "idle_clients", "rss_bytes_per_peer"),
]


def figures(results, section, rows, heads, more):
    """Rows of what, Sealane's figure, and what `more` makes of the run and the metric."""
    def row(what, experiment, metric):
        run = results.get(experiment)
        return [what, with_spread(metric, run.figure("sealane", None, metric), NOT_MEASURED), *more(run, metric)]

    section.table(["<what", *heads], [row(*one) for one in rows])


def peers(results, section):
    figures(results, section, PEERS, ["Sealane", "bare loop", "Sealane / bare loop", "with 1000 / with 10 peers"], lambda run, metric: [
        median(metric, run.figure("raw", None, metric)),
        quotient(run.ratio("sealane/raw", metric)),
        quotient(run.ratio("1000 peers/10 peers", metric)),
    ])


def restart(results, section):
    figures(results, section, [
        ("nothing reaches the tasks of its host for", "restart", "gap_ms"),
        ("nothing reaches those of other hosts for", "restart", "peer_gap_ms"),
        ("calls that failed and were made again", "restart", "failed_calls"),
    ], ["drained and started anew", "handed over"], lambda run, metric: [
        with_spread(metric, run.figure("sealane", "handed over", metric), NOT_MEASURED),
    ])


def security(results, section):
    figures(results, section, [
        ("shared secret, 64 B there and back, p50", "latency_secret", "rtt_us.p50"),
        ("TLS 1.3, 64 B there and back, p50", "latency_tls", "rtt_us.p50"),
        ("TLS 1.3, 4 MiB tensors", "bandwidth_tls", "gigabytes_per_s"),
    ], ["secured", "open", "secured / open"], lambda run, metric: [
        median(metric, run.figure("open", None, metric)), quotient(run.ratio("sealane/open", metric))])


LAB = [
    ("64 B there and back, bare SENDs", "lab_latency", "raw", "rtt_us.p50"),
    ("64 B there and back, Sealane", "lab_latency", "sealane", "rtt_us.p50"),
    ("1 MiB tensors, window 2, write", "lab_write", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 2, read", "lab_read", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 2, registered for each transfer", "lab_dynamic", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 1", "lab_window_1", "sealane", "gigabytes_per_s"),
    ("1 MiB tensors, window 40", "lab_window_40", "sealane", "gigabytes_per_s"),
]


def lab(results, section):
    """Perftest's own figures, and each of ours by it."""
    def perftest(metric):
        name = "lab_ib_send_lat" if is_cost(metric) else "lab_ib_write_bw"
        return results.get(name).figure("perftest", None, metric)

    own = (("64 B there and back: perftest, twice ib_send_lat", "rtt_us.p50"), ("1 MiB: perftest, ib_write_bw", "gigabytes_per_s"))
    rows = [[what, with_spread(metric, perftest(metric), NOT_MEASURED), ""] for what, metric in own]
    for what, experiment, system, metric in LAB:
        figure = results.get(experiment).figure(system, None, metric)
        by = figure and perftest(metric) and certain(figure.median / perftest(metric).median)
        rows.append([what, with_spread(metric, figure, NOT_MEASURED), quotient(speed(metric, by))])
    section.table(["<what", "in this boot", "speed: perftest = 1"], rows)


ANSWERS = {
    "ps_buffers": ps_buffers,
    "ps_fusion": ps_fusion,
    "ps_polling": ps_polling,
    "ps_copies": lambda results, section: of_variants(results, section, "ps_copies"),
    "ps_sync": lambda results, section: of_variants(results, section, "ps_sync"),
    "ps_images": lambda results, section: of_variants(results, section, "ps_images"),
    "ps_growth": ps_growth,
    "growth": growth,
    "training": training,
    "tensorflow": tensorflow,
    "pytorch": pytorch,
    "tensors": tensors,
    "one_host": lambda results, section: systems(results, section, ONE_HOST),
    "steps": steps,
    "rows": rows,
    "other_systems": other_systems.answer,
    "peers": peers,
    "restart": restart,
    "security": security,
    "lab": lab,
    "ps_verbs": lambda results, section: of_variants(results, section, "ps_verbs", METRICS[:4]),
}
