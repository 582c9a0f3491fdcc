"""README's table: speeds of jobs with Sealane, relative to their usual transport, and where a bare loop of UCX is faster."""

import other_systems
from pages import table
from results import measured_at, speed

TCP, ONE_HOST = "over TCP", "on one host"


def of_daemons(experiment):
    return {TCP: (experiment, "sealane-tcp/grpc"), ONE_HOST: (experiment, "sealane/grpc")}


def of_torch(call):
    return {TCP: ("torch_tcp", f"sealane/gloo, {call}"), ONE_HOST: ("torch", f"sealane/gloo, {call}")}


# A row: the step or call, the metric, the other system, and for each setting the experiment and the name of its ratio.
GAINS = [
    ("TensorFlow: a step that pulls 1,000 variables of 64 B from a ps", "pull_small_ms", "gRPC", of_daemons("tensorflow")),
    ("TensorFlow: wide & deep, 4 workers and 2 ps", "wide_deep_steps_per_s", "gRPC", of_daemons("tensorflow")),
    ("PyTorch: a DDP step with 25 MB of gradients, 2 ranks", "call_us", "gloo", of_torch("DDP step, 25 MB of gradients")),
    ("PyTorch: all_reduce of 1 MiB, 2 ranks", "call_us", "gloo", of_torch("all_reduce 1024 KiB")),
    ("DLRM in Python, 4 workers: the exchange of a step; gRPC: grpcio", "steps_per_s", "gRPC", of_daemons("training")),
    ("a step of 200 workers and 10 ps, sessions without engines; gRPC: tonic, one message per ps", "steps_per_s", "gRPC",
     {TCP: ("ps_grpc", "sealane/grpc, async, one message, polling")}),
]
# The names by which sentences of the documentation have a gain.
FIGURES = dict(zip(("gain_pull", "gain_wide_deep", "gain_ddp", "gain_all_reduce", "gain_dlrm", "gain_ps"), GAINS))
# Contests in the line about UCX, and their names there.
BARE = {
    "tcp_latency": "64 B there and back between engines over TCP",
    "tcp_bandwidth_cubic": "4 MiB between engines over TCP with cubic",
    "tcp_bandwidth": "4 MiB between engines over TCP with bbr",
    "shm_latency": "64 B there and back through a daemon",
    "shm_rate": "64 B tensors in batches through a daemon",
    "shm_bandwidth": "4 MiB through a daemon",
}


def factor(value):
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def in_words(by, system):
    """Returns Sealane's speed as words: `2.4x gRPC`, `1.1x slower than UCX`, `level with gloo`."""
    text = factor(max(by.median, 1 / by.median))
    if text == "1.0" or other_systems.ahead(system, by) == "level":
        return f"level with {system}"
    return f"{text}x {system}" if by.median > 1 else f"{text}x slower than {system}"


def words_of(results, gain):
    """Returns the words for a gain, and its runs; empty if it was not measured."""
    _, metric, system, settings = gain
    found = {setting: (results.get(experiment), name) for setting, (experiment, name) in settings.items()}
    found = {setting: (run, by) for setting, (run, name) in found.items() if (by := speed(metric, run.ratio(name, metric)))}
    return ", ".join(f"{in_words(by, system)} {setting}" for setting, (_, by) in found.items()), [run for run, _ in found.values()]


def rows(results):
    """Yields a row for each gain that was measured, and its runs."""
    for gain in GAINS:
        words, runs = words_of(results, gain)
        if words:
            yield [gain[0], words], runs


def bare_ucx(results):
    """Returns the line about contests in which UCX is ahead; nothing if UCX is ahead in none."""
    run, parts = results.get("other_systems"), []
    for name, metric, _ in other_systems.CONTESTS:
        systems = [system for system in run.systems(name, metric) if system.startswith("UCX ")]
        if name in BARE and systems:
            best = run.best(systems, metric, name)
            by = speed(metric, run.ratio(f"sealane/{best}, {name}", metric))
            if by and other_systems.ahead("UCX", by) == "UCX":
                parts.append(f"{factor(1 / by.median)}x at {BARE[name]}")
    return f"A bare loop of UCX is faster than Sealane: {', '.join(parts)}." if parts else ""


def in_brief(results):
    """Returns the table, the line about UCX, and where both were measured."""
    found = list(rows(results))
    runs = [run for _, of in found for run in of]
    ucx = bare_ucx(results)
    runs += [results.get("other_systems")] if ucx else []
    made = table(["<both tasks on one machine with two CPUs", "<Sealane's speed"], [row for row, _ in found])
    return "\n".join(part for part in (made, ucx, measured_at(runs)) if part)
