"""Measures Sealane and other systems in turn, for `cargo xtask peers`, which keeps the outcome: in each round `sealane bench` with
its baselines, and beside it, on the same two CPUs, a pair of processes of each peer. Installs what is missing from Debian, by pip
and by cargo. A peer that cannot be had is named with the reason."""

import argparse
import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "bench/peers"
MADE = ROOT / "target/peers"
# The Python that the report's PyTorch experiments use.
TORCH = ROOT / "target/report-torch/bin/python"
WAIT_S, LOOK_EVERY_S, CALL_S = 10, 0.01, 60
SMALL, LARGE = 64, 4 << 20
# Iterations of a first run of ucx_perftest, which tells how many a round takes, and sends of its streams that are outstanding: of 1,
# 16, 128 and 1024 small ones, and 1, 2 and 8 large ones, these were fastest (tags: 0.30 M/s by tcp, 20 M/s by posix, 11 GB/s).
TRIAL = {SMALL: 2000, LARGE: 50}
OUTSTANDING = {("tcp", SMALL): 1024, ("posix", SMALL): 1, ("tcp", LARGE): 2, ("posix", LARGE): 2}

# A system beside Sealane: its name, and a function of the size and the seconds that gives a round trip in microseconds or messages
# a second. What is compared: a name, the metric, the size, what `sealane bench` runs, the peers, and the congestion control of all
# of them, which is the kernel's default where none is given.
Peer = namedtuple("Peer", "system run")
Contest = namedtuple("Contest", "name metric size bench peers congestion", defaults=[None])


class Failed(Exception):
    pass


def output(line, **more):
    try:
        done = subprocess.run(list(map(str, line)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Failed(f"{line[0]}: {problem}") from None
    if done.returncode:
        raise Failed(f"{' '.join(map(str, line))} failed ({done.returncode}): {done.stderr.strip()[-400:]}")
    return done.stdout


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def is_listening(port):
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def pair(server, client, port=None, environment=None, is_pinned=True):
    """What a client prints beside a server, each pinned to a CPU of its own unless said. With a port, the client starts when the
    server listens."""
    cpus = sorted(os.sched_getaffinity(0))
    pinned = lambda line, at: ["taskset", "-c", cpus[at], *line] if is_pinned and len(cpus) > 1 else line
    given = {**os.environ, **(environment or {})}
    other = subprocess.Popen(list(map(str, pinned(server, 1))), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, env=given)
    try:
        until = time.monotonic() + WAIT_S
        while port and not is_listening(port):
            if other.poll() is not None or time.monotonic() > until:
                other.kill()
                raise Failed(f"{server[0]} does not listen: {other.stderr.read().strip()[-400:]}")
            time.sleep(LOOK_EVERY_S)
        return output(pinned(client, 0), env=given, timeout=CALL_S)
    finally:
        other.kill()
        other.wait()
        other.stderr.close()


def figure(printed):
    """The figure of a peer of ours: `rtt_us 12.3` or `per_second 456`."""
    found = re.fullmatch(r"(?:rtt_us|per_second) ([0-9.]+)", printed.strip())
    if not found or not float(found[1]):
        raise Failed(f"it printed {printed!r}")
    return float(found[1])


def of_perftest(printed, is_latency):
    """From the last line that ucx_perftest prints with -f -v: the median round trip in microseconds, of which it gives half, or
    messages a second; and how many iterations it made in a second."""
    cells = printed.strip().splitlines()[-1:]
    cells = cells[0].split(",") if cells else []
    try:
        lowest, overall, rate = float(cells[1]), float(cells[3]), float(cells[7])
    except (IndexError, ValueError):
        raise Failed(f"ucx_perftest printed {printed!r}") from None
    if not lowest * overall * rate:
        raise Failed(f"ucx_perftest measured nothing: {printed!r}")
    return (2 * lowest, 5e5 / overall) if is_latency else (rate, rate)


def ucx(transport, test):
    is_latency = test.endswith("_lat")

    def once(size, count):
        port = free_port()
        line = ["ucx_perftest", "-p", port]
        more = ["127.0.0.1", "-t", test, "-s", size, "-n", count, "-w", max(count // 10, 10), "-f", "-v"]
        more += [] if is_latency else ["-O", OUTSTANDING[transport, size]]
        environment = {"UCX_TLS": transport, "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        return of_perftest(pair(line, [*line, *more], port, environment), is_latency)

    def run(size, seconds):
        _, rate = before.get(size) or once(size, TRIAL[size])
        before[size] = once(size, max(int(rate * seconds), TRIAL[size]))
        return before[size][0]

    before = {}
    what = "active messages" if "am_" in test else "tags"
    return Peer(f"UCX {transport}, {what}", run)


PATTERNS = {"pull": "PUSH/PULL", "dealer": "DEALER/ROUTER"}


def zeromq(server, client, transport="tcp", window=None):
    def run(size, seconds):
        port = free_port()
        endpoint = f"tcp://127.0.0.1:{port}" if transport == "tcp" else f"ipc://{MADE}/{port}.socket"
        more = [] if window is None else [window]
        lines = [[MADE / "zeromq", server, endpoint, size], [MADE / "zeromq", client, endpoint, size, seconds, *more]]
        return figure(pair(*lines))

    return Peer(f"ZeroMQ {transport}, {PATTERNS[client]}", run)


def iceoryx2(server, client):
    def run(size, seconds):
        program, name = MADE / "release/iceoryx2-peer", f"sealane-{free_port()}"
        return figure(pair([program, server, name, size], [program, client, name, size, seconds]))

    return Peer("iceoryx2", run)


def python(system, window):
    def run(size, seconds):
        port = free_port()
        line = [PYTHONS[system], HERE / "python_side.py", system]
        client = [*line, "client", f"127.0.0.1:{port}", size, seconds, window]
        return figure(pair([*line, "server", f"127.0.0.1:{port}", size], client, port, is_pinned=False))

    return Peer(f"{system} (Python)", run)


CLONE_NEWNET = 0x40000000


def enter_network():
    """Moves this process to a network namespace of its own, so that `use_congestion` changes nothing for other processes."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise Failed(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}; run this as root")
    output(["ip", "link", "set", "lo", "up"])


def use_congestion(name=None):
    """Sets the congestion control of loopback's routes, which sockets use that request none: `name`, or the kernel's default."""
    for route in ("127.0.0.0/8", "127.0.0.1"):
        line = ["ip", "route", "replace", "local", route, "dev", "lo", "table", "local"]
        output([*line, "congctl", name] if name else line)


BASELINES = "--baseline grpc --baseline grpc-stream"
PUSH = ("push", "pull")
IN_SHARED_MEMORY = [ucx("posix", "ucp_am_bw"), ucx("posix", "tag_bw"), iceoryx2("take", "push"), zeromq(*PUSH, "ipc")]
CONTESTS = [
    Contest("tcp_latency", "rtt_us", SMALL, f"latency --size 64 {BASELINES}", [
        ucx("tcp", "ucp_am_lat"), ucx("tcp", "tag_lat"), zeromq("router", "dealer", window=1), python("grpcio", 1),
        python("gloo", 1)]),
    Contest("tcp_rate", "tensors_per_s", SMALL, f"rate --window 1024 {BASELINES}", [
        zeromq("router", "dealer", window=1024), python("grpcio", 1024)]),
    Contest("tcp_rate_batch", "tensors_per_s", SMALL, f"rate --window 1024 --fuse receive {BASELINES}", [
        zeromq("router", "dealer", window=1024)]),
    Contest("tcp_push", "tensors_per_s", SMALL, "rate --window 1024 --fuse push --baseline grpc-stream", [
        ucx("tcp", "ucp_am_bw"), ucx("tcp", "tag_bw"), zeromq(*PUSH)]),
    *(Contest(name, "gigabytes_per_s", LARGE, f"bandwidth --size 4MiB --congestion {congestion} --baseline raw {BASELINES}", [
        ucx("tcp", "ucp_am_bw"), ucx("tcp", "tag_bw"), zeromq(*PUSH), python("gloo", 2)], congestion)
      for name, congestion in (("tcp_bandwidth_cubic", "cubic"), ("tcp_bandwidth", "bbr"))),
    Contest("shm_latency", "rtt_us", SMALL, f"latency --link shm --size 64 {BASELINES}", [
        ucx("posix", "ucp_am_lat"), ucx("posix", "tag_lat"), iceoryx2("echo", "ping"),
        zeromq("router", "dealer", "ipc", 1)]),
    Contest("shm_latency_direct", "rtt_us", SMALL, "latency --link shm --size 64 --baseline direct --baseline grpc-stream", [
        ucx("posix", "ucp_am_lat"), ucx("posix", "tag_lat"), iceoryx2("echo", "ping")]),
    Contest("shm_rate", "tensors_per_s", SMALL, f"rate --link shm --window 256 {BASELINES}", IN_SHARED_MEMORY),
    Contest("shm_rate_single", "tensors_per_s", SMALL, "rate --link shm --window 256 --fuse off", IN_SHARED_MEMORY),
    Contest("shm_rate_direct", "tensors_per_s", SMALL, "rate --link shm --window 256 --baseline direct --baseline grpc-stream", IN_SHARED_MEMORY),
    Contest("shm_push", "tensors_per_s", SMALL, "rate --link shm --window 256 --fuse push", IN_SHARED_MEMORY),
    Contest("shm_bandwidth", "gigabytes_per_s", LARGE, f"bandwidth --link shm --size 4MiB {BASELINES}", [
        ucx("posix", "ucp_am_bw"), ucx("posix", "tag_bw"), iceoryx2("take", "push"), zeromq(*PUSH, "ipc")]),
]
# The Python that has each package; none where it is not.
PYTHONS = {"grpcio": sys.executable}


def installed(what, is_there, *lines):
    """Has something that is not there installed; gives the reason if that fails."""
    try:
        for line in [] if is_there else lines:
            print(f"installing {what}", file=sys.stderr)
            output(line)
    except Failed as problem:
        return str(problem)


def has(python, package):
    return Path(python).exists() and subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def prepare():
    """Installs and builds the peers; gives those that cannot be had, by the first word of their names, with the reason."""
    MADE.mkdir(parents=True, exist_ok=True)
    debian = lambda package: ["apt-get", "install", "-q", "-y", "--no-install-recommends", package]
    compile_ = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-o", MADE / "zeromq", HERE / "zeromq.c", "-lzmq"]
    build = [os.environ.get("CARGO", "cargo"), "build", "--release", "--locked", "--manifest-path", HERE / "iceoryx2/Cargo.toml",
             "--target-dir", MADE]
    if failed := installed("iproute2", shutil.which("ip"), debian("iproute2")):
        raise Failed(failed)
    missing = {
        "UCX": installed("UCX", shutil.which("ucx_perftest"), debian("ucx-utils")),
        "ZeroMQ": installed("ZeroMQ", Path("/usr/include/zmq.h").exists(), debian("libzmq3-dev")) or installed("zeromq.c", False, compile_),
        "iceoryx2": installed("iceoryx2", False, build),
        "grpcio": installed("grpcio", has(sys.executable, "grpc"), [sys.executable, "-m", "pip", "install", "-q", "grpcio"]),
    }
    PYTHONS["gloo"] = next((one for one in (sys.executable, TORCH, "/usr/bin/python3") if has(one, "torch.distributed")), None)
    missing["gloo"] = None if PYTHONS["gloo"] else "torch is not installed, and too large to install for this"
    return {name: reason for name, reason in missing.items() if reason}


def versions(missing):
    """What was measured, as far as it is there."""
    lock = (HERE / "iceoryx2/Cargo.lock").read_text()
    asked = {
        "UCX": lambda: output(["ucx_info", "-v"]).split()[2],
        "ZeroMQ": lambda: re.search(r"libzmq3-dev (\S+)", output(["dpkg-query", "-W", "-f", "${Package} ${Version}", "libzmq3-dev"]))[1],
        "iceoryx2": lambda: re.search(r'name = "iceoryx2"\nversion = "(.*)"', lock)[1],
        "grpcio": lambda: output([PYTHONS["grpcio"], "-c", "import grpc; print(grpc.__version__)"]).strip(),
        "gloo": lambda: "of torch " + output([PYTHONS["gloo"], "-c", "import torch; print(torch.__version__)"]).strip(),
    }
    return {name: ask() for name, ask in asked.items() if name not in missing}


def of_sealane(program, contest, seconds):
    """One round of `sealane bench`: the figure of each system, and the report. Where a direct lane is measured, that is Sealane."""
    line = [program, "bench", *contest.bench.split(), "--rounds", "1", "--seconds", str(seconds), "--json", "-"]
    report = json.loads(output(line))
    rows = (row for row in report["results"] if row["metric"] == contest.metric)
    figures = {row["system"]: row.get("p50", row.get("value")) for row in rows}
    figures["sealane"] = figures.pop("direct", figures["sealane"])
    if not all(figures.values()):
        raise Failed(f"{' '.join(line[1:])} measured nothing of a system; give more --seconds")
    return figures, report


def round_of(program, contest, seconds, missing):
    """The figure of each system in one round, and Sealane's report; a peer that fails is missing from then on."""
    figures, report = of_sealane(program, contest, seconds)
    for system, run in contest.peers:
        if system in missing or system.split()[0] in missing:
            continue
        try:
            found = run(contest.size, seconds)
            figures[system] = found * contest.size / 1e9 if contest.metric == "gigabytes_per_s" else found
        except Failed as problem:
            missing[system] = f"{contest.name}: {problem}"
            print(f"{system}: {problem}", file=sys.stderr)
    return figures, report


def spread(values):
    return {"min": min(values), "max": max(values)}


def rows_of(contest, rounds):
    """The rows of a contest's results and of its ratios, of the systems that were measured in every round."""
    systems = [system for system in rounds[0] if all(system in figures for figures in rounds)]
    values = {system: [figures[system] for figures in rounds] for system in systems}
    row = lambda system: {"system": system, "variant": contest.name, "metric": contest.metric}
    results = [{**row(system), "value": median(values[system]), **spread(values[system])} for system in systems]
    quotients = {system: [ours / theirs for ours, theirs in zip(values["sealane"], values[system])] for system in systems[1:]}
    ratios = [{"name": f"sealane/{system}, {contest.name}", "of": contest.metric, "median": median(of), **spread(of)}
              for system, of in quotients.items()]
    return results, ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="SEALANE_BIN names the program that is measured.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", required=True, help="where the outcome goes")
    given = parser.parse_args()
    missing = prepare()
    enter_network()
    found = {contest.name: [] for contest in CONTESTS}
    for number in range(given.rounds):
        for contest in CONTESTS:
            print(f"round {number + 1} of {given.rounds}: {contest.name}", file=sys.stderr)
            use_congestion(contest.congestion)
            figures, report = round_of(os.environ["SEALANE_BIN"], contest, given.seconds, missing)
            found[contest.name].append(figures)
    both = [rows_of(contest, found[contest.name]) for contest in CONTESTS]
    kept = {"schema": "sealane-peers/1", "machine": report["machine"], "missing": missing, "versions": versions(missing),
            "commands": {contest.name: f"sealane bench {contest.bench}" for contest in CONTESTS},
            "results": [row for results, _ in both for row in results], "ratios": [row for _, ratios in both for row in ratios]}
    Path(given.json).write_text(json.dumps(kept))


if __name__ == "__main__":
    try:
        main()
    except Failed as problem:
        sys.exit(f"error: {problem}")
