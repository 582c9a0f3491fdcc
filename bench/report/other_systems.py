"""The chapter about other systems: every contest with its standings, who is ahead, and what each system was told."""

from pages import table
from results import certain, is_cost, measured_at, median, quotient, speed, with_spread

CONTESTS = [
    ("tcp_latency", "rtt_us", "64 B there and back over TCP, p50"),
    ("tcp_rate", "tensors_per_s", "64 B tensors over TCP, 1024 in flight; Sealane: single calls"),
    ("tcp_rate_batch", "tensors_per_s", "64 B tensors over TCP, 1024 in flight; Sealane: calls for 256, "
     "read in place on an engine's own shard, which no attached client can do"),
    ("tcp_push", "tensors_per_s", "64 B tensors over TCP, one way"),
    ("tcp_bandwidth_cubic", "gigabytes_per_s", "4 MiB tensors over TCP, congestion control cubic"),
    ("tcp_bandwidth", "gigabytes_per_s", "4 MiB tensors over TCP, congestion control bbr"),
    ("shm_latency", "rtt_us", "64 B there and back in shared memory, p50"),
    ("shm_latency_direct", "rtt_us", "64 B there and back in shared memory by a direct lane, p50"),
    ("shm_rate", "tensors_per_s", "64 B tensors in shared memory; Sealane: calls in batches"),
    ("shm_rate_single", "tensors_per_s", "64 B tensors in shared memory; Sealane: single calls"),
    ("shm_rate_direct", "tensors_per_s", "64 B tensors in shared memory by a direct lane; Sealane: calls in batches"),
    ("shm_push", "tensors_per_s", "64 B tensors in shared memory, one way"),
    ("shm_bandwidth", "gigabytes_per_s", "4 MiB tensors in shared memory"),
]
# What the lab has measured already: Sealane's experiment and perftest's.
LAB = [
    ("64 B there and back over verbs, in the lab, p50", "rtt_us.p50", "lab_latency", "lab_ib_send_lat"),
    ("1 MiB tensors over verbs, in the lab", "gigabytes_per_s", "lab_write", "lab_ib_write_bw"),
]
NAMES = {"sealane": "Sealane", "raw": "a bare socket", "grpc": "gRPC (tonic), unary", "grpc-stream": "gRPC (tonic), one stream"}
# Unless said, each side is pinned to a CPU of its own.
SETTINGS = [
    ("Sealane", "Spins on both sides. TCP: code on the shards of two engines, without clients; what a turn queues leaves in one write. "
                "Shared memory: two clients on one CPU, the daemon's shard on the other; by a direct lane, which two clients of one user have unless it is turned off: one on each, past the "
                "daemon."),
    ("gRPC", "tonic, each side a runtime of one thread that spins; frames of 1 MiB, windows of 1 GiB, messages that are bytes. "
             "A stream's messages that are ready share frames of 32 KiB. One way: a stream of answers to one request. Shared memory: "
             "a Unix socket."),
    ("UCX", "ucx_perftest, both sides spin. UCX_TLS=tcp over lo, or posix; else its defaults. A round trip is twice what it "
            "prints. One way: sends outstanding (-O) are 1024 of 64 B over tcp, 1 over posix, 2 of 4 MiB. It batches nothing."),
    ("ZeroMQ", "In C. Its I/O thread batches what is queued into writes of 8 KiB and sleeps in epoll; the caller blocks. Queues of "
               "10,000 messages or 64 MiB. 4 MiB are sent from where they lie. ipc is a Unix socket."),
    ("iceoryx2", "Publish and subscribe, ipc service, both sides spin. A tensor is copied into a loan and read in place; 1024 samples are "
                 "queued at most, 2 of 4 MiB, and the subscriber answers when it has taken half of them, so that the publisher meets no "
                 "full queue."),
    ("grpcio", "In Python, one bidirectional stream, a thread on each side, not pinned: its threads would wait for each other. Sealane's figure beside it is not of Python: see the training "
               "run for that."),
    ("gloo", "send and recv of torch.distributed, in Python; as with grpcio. Where the measured session goes before others (behind, in the table "
             "of runs), its threads mostly wait for a tick of the kernel: 64 B there and back took 0.09 ms without that."),
]


def perftest(results):
    """The lab's contests: what, the metric, and a row for each system."""
    for what, metric, ours, theirs in LAB:
        figures = results.get(ours).figure("sealane", None, metric), results.get(theirs).figure("perftest", None, metric)
        if all(figures):
            by = certain(figures[0].median / figures[1].median)
            yield what, metric, [("Sealane", figures[0], None), ("perftest", figures[1], speed(metric, by))]


def contests(results):
    """Every contest that was measured: what, the metric, and rows of a system, its figure and how many times as fast Sealane is."""
    run = results.get("other_systems")
    for variant, metric, what in CONTESTS:
        rows = []
        for system in run.systems(variant, metric):
            by = speed(metric, run.ratio(f"sealane/{system}, {variant}", metric))
            rows.append((NAMES.get(system, system), run.figure(system, variant, metric), by))
        if rows:
            yield what, metric, rows
    yield from perftest(results)


def best_first(metric, rows):
    return sorted(rows, key=lambda row: row[1].median, reverse=not is_cost(metric))


def ahead(system, by):
    """Who is, by how many times as fast Sealane is; nobody where some rounds say this and some that."""
    if by is None or by.min != by.max and by.min <= 1 <= by.max:
        return "level" if by else ""
    return "Sealane" if by.median >= 1 else system


def answer(results, section):
    run, rows = results.get("other_systems"), []
    for what, metric, found in contests(results):
        for place, (system, figure, by) in enumerate(best_first(metric, found)):
            rows.append([what if place == 0 else "", system, with_spread(metric, figure), quotient(by), ahead(system, by)])
    section.table(["<what, best first", "<system", "figure", "Sealane's speed, relative to it", "<ahead"], rows)
    section.commands = [*section.commands, *run.report.get("commands", {}).values()]
    versions = run.report.get("versions", {})
    if run.provenance:
        section.table(["<system", "<version", "<settings"], [[name, versions.get(name, ""), text] for name, text in SETTINGS],
                      "What each was told")
    missing = run.report.get("missing", {})
    section.notes += [f"Not measured: {name}: {reason}." for name, reason in missing.items()]


def ours_and_best(metric, found):
    # A bare socket is no system: it does a part of the work.
    best = next(row for row in best_first(metric, found) if row[0] not in ("Sealane", NAMES["raw"]))
    return next(figure for name, figure, _ in found if name == "Sealane"), best


def leaders(results):
    """Of each contest Sealane and the best of the others."""
    rows = []
    for what, metric, found in contests(results):
        ours, (system, figure, by) = ours_and_best(metric, found)
        rows.append([what, with_spread(metric, ours), system, median(metric, figure), quotient(by), ahead(system, by)])
    heads = ["<what", "Sealane", "<best of the others", "its figure", "Sealane's speed, relative to it", "<ahead"]
    return f"{table(heads, rows)}\n{measured_at([results.get('other_systems')])}".rstrip() or "Not measured yet."
