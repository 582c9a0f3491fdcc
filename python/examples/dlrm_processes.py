"""The processes of a DLRM job on this machine: its tasks, and the daemons that it needs. Nothing here knows what they
compute; how tasks are reached is a setting."""

import contextlib
import functools
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import dlrm_job as job

# A daemon that has not begun to listen after so many seconds will not.
STARTING_SECONDS = 60


def free_address():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % chosen.getsockname()[1]


def endpoint_map(directory, addresses):
    path = directory / ".endpoint_map"
    path.write_text("".join(f"{task}={address}\n" for task, address in addresses.items()))
    return path


# How tasks are reached: each of these starts what tasks need for as long as the stack lasts, and gives what a process
# calls with its task's name to become that task.


def one_daemon(stack, directory, names):
    """All tasks are on this host, and it has one daemon."""
    map = endpoint_map(directory, dict.fromkeys(names, free_address()))
    path = stack.enter_context(daemon(directory, "all", map, names))
    return functools.partial(attached, dict.fromkeys(names, path))


def two_daemons(stack, directory, names):
    """As if the parameter server were on a host of its own: two daemons, and TCP between them."""
    ps, *workers = names
    map = endpoint_map(directory, {ps: free_address(), **dict.fromkeys(workers, free_address())})
    ps_socket = stack.enter_context(daemon(directory, "ps", map, [ps]))
    worker_socket = stack.enter_context(daemon(directory, "workers", map, workers))
    sockets = {ps: ps_socket, **dict.fromkeys(workers, worker_socket)}
    return functools.partial(attached, sockets)


def engines(stack, directory, names):
    """An engine in each process and TCP between them, without a daemon."""
    map = endpoint_map(directory, {name: free_address() for name in names})
    return functools.partial(embedded, map, idle_spin(len(names)))


def grpc_streams(stack, directory, names):
    """A gRPC server in the parameter server, and a client in each worker."""
    return functools.partial(over_grpc, free_address(), names)


def idle_spin(processes):
    """Options of engines: a thread that looks for what comes keeps its CPU from others, and must not where there are too few."""
    return {"idle_spin": 0} if processes > len(os.sched_getaffinity(0)) else {}


def attached(sockets, name):
    import sealane

    return sealane.attach(name, socket=sockets[name])


def embedded(map, options, name):
    import sealane

    return sealane.embedded(map, name, **options)


def over_grpc(address, names, name):
    import dlrm_grpc

    ps, *workers = names
    return dlrm_grpc.Task(name, address, ps, workers)


def program():
    """The program ``sealane``: $SEALANE_BIN, one that is installed, or one that was built beside this file."""
    target = pathlib.Path(__file__).resolve().parents[2] / "target"
    built = [path for path in (target / "release/sealane", target / "debug/sealane") if path.exists()]
    found = os.environ.get("SEALANE_BIN") or shutil.which("sealane") or next(map(str, built), None)
    return found or sys.exit("there is no program `sealane`: build it with `cargo build --release`, or name it in SEALANE_BIN")


@contextlib.contextmanager
def daemon(directory, name, map, tasks):
    """A daemon for these tasks, which are all on this machine here; gives its socket."""
    path, log = directory / f"{name}.sock", directory / f"{name}.log"
    command = [program(), "daemon", "--endpoint-map", map, "--socket", path, "--set", "runtime.shards=1"]
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


def run(role, name, become, arguments):
    """What a process of the job does: it becomes its task, and plays its role."""
    with become(name) as task:
        role(task, *arguments)


def train(reach, steps, workers, synchronous=True, idle=None, progress=lambda losses: None):
    """Starts all processes; gives losses, when each step had ended, dense parameters and tables. With ``idle`` nothing is
    computed, for so many seconds a step."""
    names = [job.worker_name(number) for number in range(workers)]
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlrm-")))
        become = reach(stack, directory, [job.PS, *names])
        # Not "fork", which would give children a task that they cannot use.
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        roles = [(job.serve, job.PS, become, (steps, workers, sender, synchronous, idle))]
        roles += [(job.work, name, become, (steps, number, workers, idle)) for number, name in enumerate(names)]
        processes = [context.Process(target=run, args=role, daemon=True) for role in roles]
        for process in processes:
            process.start()
        sender.close()
        while True:
            try:
                kind, *told = receiver.recv()
            except EOFError:
                sys.exit("the parameter server has failed: see above")
            progress(told[0])
            if kind == "trained":
                break
        for process in processes:
            process.join()
        return told
