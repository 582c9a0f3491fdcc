"""The processes of a DLRM job on this machine: its tasks, and the daemons that it needs. Nothing here knows what they
compute; how tasks are reached is a setting."""

import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait

import dlrm_job
import sealane.cluster

# A daemon that has not begun to listen after so many seconds will not.
STARTING_SECONDS = 60
# Of a task's arena, beside a parameter server's tables.
ARENA_BYTES = 64 << 20


def free_address():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % chosen.getsockname()[1]


def endpoint_map(directory, addresses):
    path = directory / ".endpoint_map"
    path.write_text("".join(f"{task}={address}\n" for task, address in addresses.items()))
    return path


# How tasks are reached: each of these starts what tasks need for as long as the stack lasts, and gives what each process
# runs: a function of the job, whether it is a parameter server, its number, and where it reports.


def one_daemon(stack, directory, job):
    """All tasks are on this host, and it has one daemon."""
    names = [*job.server_names, *job.worker_names]
    map = endpoint_map(directory, dict.fromkeys(names, free_address()))
    path = stack.enter_context(daemon(directory, "all", map, names))
    return functools.partial(over_sealane, functools.partial(attached, dict.fromkeys(names, path)))


def two_daemons(stack, directory, job):
    """As if the parameter servers were on a host of their own: two daemons, and TCP between them."""
    hosts, addresses, sockets = {"ps": job.server_names, "workers": job.worker_names}, {}, {}
    for names in hosts.values():
        addresses |= dict.fromkeys(names, free_address())
    map = endpoint_map(directory, addresses)
    for host, names in hosts.items():
        sockets |= dict.fromkeys(names, stack.enter_context(daemon(directory, host, map, names)))
    return functools.partial(over_sealane, functools.partial(attached, sockets))


def engines(stack, directory, job):
    """An engine in each process and TCP between them, without a daemon."""
    names = [*job.server_names, *job.worker_names]
    map = endpoint_map(directory, {name: free_address() for name in names})
    # A thread that looks for what comes keeps its CPU from others, and must not where there are too few.
    options = {"idle_spin": 0} if len(names) > len(os.sched_getaffinity(0)) else {}
    return functools.partial(over_sealane, functools.partial(embedded, map, options))


def grpc_streams(stack, directory, job):
    """A gRPC server in the parameter server, and a client in each worker."""
    return functools.partial(over_grpc, free_address())


def attached(sockets, job, name):
    # A parameter server's tables lie in its arena.
    arena_bytes = ARENA_BYTES + (job.bytes_of_tables if name in job.server_names else 0)
    return sealane.attach(name, socket=sockets[name], arena_bytes=arena_bytes)


def embedded(map, options, job, name):
    return sealane.embedded(map, name, **options)


def over_sealane(attach, job, is_server, number, report):
    with attach(job, (job.server_names if is_server else job.worker_names)[number]) as task:
        if is_server:
            dlrm_job.serve(task, job, number, report)
        else:
            dlrm_job.work(dlrm_job.Worker(task, job), job, number, report)
        # Others may still need what this one has.
        report.recv()


def over_grpc(address, job, is_server, number, report):
    import dlrm_grpc

    name = job.worker_names[number]
    with dlrm_grpc.Server(address, job.worker_names) if is_server else dlrm_grpc.Worker(name, address) as end:
        (dlrm_grpc.serve if is_server else dlrm_job.work)(end, job, number, report)
        report.recv()


@contextlib.contextmanager
def daemon(directory, name, map, tasks):
    """A daemon for these tasks, which are all on this machine here; gives its socket."""
    path, log = directory / f"{name}.sock", directory / f"{name}.log"
    command = [sealane.cluster.program(), "daemon", "--endpoint-map", map, "--socket", path, "--set", "runtime.shards=1"]
    for task in tasks:
        command += ["--task", task]
    with open(log, "w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        until = time.monotonic() + STARTING_SECONDS
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"the daemon does not start:\n{log.read_text()}")
            time.sleep(0.01)
        yield str(path)
    finally:
        process.terminate()
        process.wait()


@dataclasses.dataclass
class Trained:
    """Losses by step, when each had ended, (step, seconds, AUC) on what was held out, and digests of the parameters."""

    losses: list
    moments: list
    aucs: list
    digests: list

    @property
    def result(self):
        """What does not depend on when something happened, as `dlrm_job.alone` gives it."""
        return self.losses, [(step, auc) for step, _, auc in self.aucs], self.digests


def train(reach, job, progress=lambda step, loss, aucs: None):
    """Starts all processes, and gives what they made."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlrm-")))
        run = reach(stack, directory, job)
        # Not "fork", which would give children a task that they cannot use.
        context = multiprocessing.get_context("spawn")
        processes, reports, ended = [], [], {}
        roles = [(True, number) for number in range(job.servers)] + [(False, number) for number in range(job.workers)]
        for is_server, number in roles:
            here, there = context.Pipe()
            process = context.Process(target=run, args=(job, is_server, number, there), daemon=True)
            process.start()
            there.close()
            reports.append(here)
            processes.append(process)
        while len(ended) < len(reports):
            for report in wait([report for report in reports if report not in ended]):
                try:
                    kind, *told = report.recv()
                except EOFError:
                    sys.exit("a process has failed: see above")
                if kind == "ended":
                    (ended[report],) = told
                else:
                    progress(*told)
        for report in reports:
            report.send("over")
        for process in processes:
            process.join()
    results = [ended[report] for report in reports]
    digests, workers = results[: job.servers], results[job.servers :]
    losses = [sum(shares) / job.batch for shares in zip(*(losses for losses, _, _ in workers))]
    # A step has ended when as many are done as there are workers.
    moments = sorted(itertools.chain(*(moments for _, moments, _ in workers)))[job.workers - 1 :: job.workers]
    aucs = [(step, when - workers[0][2][0][1], auc) for step, when, auc in workers[0][2]]
    return Trained(losses, moments, aucs, digests)
