"""What was to be reached, written down before it was measured, and whether it was."""

from collections import namedtuple

import other_systems
from chapters import by_grpc
from pages import Section
from results import certain, median, quotient, speed, with_range

# What is measured, a function of the results that measures it, and what it is to be: at least so much or at most. A quotient, unless
# a metric says what it is of.
Aim = namedtuple("Aim", "what measured at_least at_most metric", defaults=(None, None, None))


def variant(run, *parts):
    """Steps a second of the variant that has all these parts, by those of the first variant."""
    found = (name for name in run.variants("sealane") if all(part in name.split(", ") for part in parts))
    name = next(found, None)
    return name and run.to_first(name, "steps_per_s")


def buffers(results):
    """40 request buffers by one. The program compares with the first variant, whose registration is dynamic, so this is a
    quotient of medians."""
    run = results.get("ps_buffers_200")
    both, one = variant(run, "40 request buffers", "static"), variant(run, "1 request buffer", "static")
    return both and one and certain(both.median / one.median)


def kept(results):
    """Steps a second with 200 workers and 10 ps by those with 50 and 5, round by round."""
    run = results.get("ps_growth_kept")
    sizes = run.variants("sealane")
    return run.to_first(sizes[1], "steps_per_s") if len(sizes) > 1 else None


def by(experiment, name, metric):
    """A quotient that the program took round by round."""
    return lambda results: results.get(experiment).ratio(name, metric)


def of(experiment, metric, variant=None):
    """A figure of Sealane's."""
    return lambda results: results.get(experiment).figure("sealane", variant, metric)


def by_others(contest, *systems):
    """How many times as fast Sealane is as the best of these systems."""
    metric = next(metric for name, metric, _ in other_systems.CONTESTS if name == contest)

    def measured(results):
        run = results.get("other_systems")
        best = run.best(systems, metric, contest)
        return speed(metric, run.ratio(f"sealane/{best}, {contest}", metric))

    return measured


def by_perftest(results):
    """A round trip of the lab by perftest's, of two commands."""
    ours, theirs = (results.get(name).figure(system, None, "rtt_us.p50") for name, system in (("lab_latency", "sealane"),
                                                                                            ("lab_ib_send_lat", "perftest")))
    return ours and theirs and certain(ours.median / theirs.median)


FAN_IN = "1000 peers/10 peers"
EXPERIMENT = [
    Aim("steps a second at 200 workers + 10 ps: 40 request buffers by one, DLRM, with static registration", buffers, 1.5),
    Aim("steps a second at 200 + 10, wide & deep: a plan by no fusion",
        lambda results: variant(results.get("ps_fusion"), "fuse plan"), 1.4),
    Aim("steps a second at 200 + 10, wide & deep: a plan by gRPC with a call a tensor",
        by("ps_grpc", "sealane/grpc", "steps_per_s"), 5),
    Aim("the same by gRPC with all tensors of a ps in one message",
        by("ps_grpc", "sealane/grpc, async, one message, polling", "steps_per_s"), 5),
    Aim("steps a second in all: 200 workers + 10 ps by 50 + 5", kept, 0.85),
    Aim("steps a second of the training run, the exchange alone, all tasks at the daemon of their host: by gRPC",
        lambda results: by_grpc(results, "sealane"), 4),
    Aim("the same through two daemons, with TCP between them: by gRPC", lambda results: by_grpc(results, "sealane-tcp"), 2.5),
]
PARTS = [
    Aim("64 B there and back over TCP, p50: time by that of a bare socket", by("latency", "sealane/raw", "rtt_us.p50"), at_most=1.08),
    Aim("the same, p99", by("latency", "sealane/raw", "rtt_us.p99"), at_most=1.15),
    Aim("64 B tensors a second over TCP, 1024 in flight: by the better of ZeroMQ and a gRPC stream",
        by_others("tcp_rate", "grpc-stream", "ZeroMQ tcp, DEALER/ROUTER"), 1.5),
    Aim("the same by a bare socket that moves as many bytes", by("rate", "sealane/raw", "tensors_per_s"), 0.2),
    Aim("64 B tensors pushed a second over TCP: by ZeroMQ's PUSH/PULL", by_others("tcp_push", "ZeroMQ tcp, PUSH/PULL"), 2.5),
    Aim("64 B there and back in shared memory, p50: time by that of a bare echo", by("latency_shm", "sealane/raw", "rtt_us.p50"),
        at_most=2.0),
    Aim("64 B tensors a second in shared memory, single calls: by UCX's active messages",
        by_others("shm_rate_single", "UCX posix, active messages"), 0.5),
    Aim("a step of 1000 x 64 B by plan: time by that of one bare message of as many bytes", by("fuse_plan", "sealane/raw", "step_ms"),
        at_most=1.25),
    Aim("the same, steps a second: by gRPC with one message", by("fuse_plan", "sealane/grpc, one message", "steps_per_s"), 2.5),
    Aim("64 B there and back over verbs in the lab, p50: time by perftest's", by_perftest, at_most=1.5),
    Aim("memory of a connected peer that is idle", of("idle", "rss_bytes_per_peer"), at_most=16384, metric="rss_bytes_per_peer"),
    Aim("memory of an attached client that is idle", of("idle_clients", "rss_bytes_per_peer"), at_most=16384,
        metric="rss_bytes_per_peer"),
    Aim("memory of a ps, 2,000 workers + 8 ps", of("ps_growth_2000", "ps_rss_mib"), at_most=1024, metric="ps_rss_mib"),
    Aim("tensors a second that one ps pulls by plan in all, of 1,000 peers: by those of 10",
        by("fanin_plan", FAN_IN, "tensors_per_s"), 0.9),
    Aim("the same by send and recv", by("fanin_sent", FAN_IN, "tensors_per_s"), 0.9),
    Aim("what a daemon that takes over interrupts its clients for", of("restart", "gap_ms", "handed over"), at_most=50, metric="gap_ms"),
]


def row(aim, results):
    found, bound = aim.measured(results), aim.at_most if aim.at_least is None else aim.at_least
    text = (lambda spread: median(aim.metric, spread)) if aim.metric else (lambda spread: quotient(certain(spread.median)))
    aimed = f"at {'most' if aim.at_least is None else 'least'} {text(certain(bound))}"
    if found is None:
        return [aim.what, aimed, "not measured", ""]
    is_reached = found.median <= bound if aim.at_least is None else found.median >= bound
    return [aim.what, aimed, text(found) if aim.metric else with_range(text(found), found), "yes" if is_reached else "no"]


def section(results):
    """Every aim, and whether it was reached."""
    found = Section("Aims", "What was to be reached, written down before it was measured.")
    heads = ["<what", "aim", "measured", "<reached"]
    found.table(heads, [row(aim, results) for aim in EXPERIMENT], "Of the experiment")
    found.table(heads, [row(aim, results) for aim in PARTS], "Of the parts")
    return found
