"""Starts the processes of an example's job on this machine, shows how far it is, and compares what it did over gRPC and
over Sealane.

An example is one script for all of its tasks. A process that finds `TF_CONFIG` in its environment, as a pod of a TFJob
does, becomes the task that it names; without it, the script starts a job here: the tasks on ports of 127.0.0.1, and, for
`grpc+sealane`, a daemon with an endpoint map of them.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import criteo
import picture

# A daemon that has not begun to listen after so many seconds will not.
STARTING_SECONDS = 60
# A job of which nothing was heard for so many seconds hangs.
SILENT_SECONDS = 300
# Another program may take a port between its choice and its use: then all is started anew, so often.
ATTEMPTS = 5
TAKEN = ("Address already in use", "cannot listen on")
# An error of a graph in TensorFlow 2.13 has a stack trace behind its message.
LOG_LINES = 60
# How often a task tells how far it is.
TELL_EVERY_SECONDS = 0.2
# A machine that runs all of a job has no core to spare for more.
DAEMON = ["--metrics", "off", "--set", "runtime.shards=1"]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


# What a task does ------------------------------------------------------------------------------------------------------


def tell(**event):
    """A line on standard output, which the script that has started this process reads."""
    print(json.dumps(event), flush=True)


class Journal:
    """A trainer's losses, told now and then, and how many steps it did in a second."""

    def __init__(self, steps):
        self.warm_up, self.steps, self.untold, self.told = steps // 10, 0, [], 0
        self.first = None

    def add(self, *losses):
        self.untold += map(float, losses)
        self.steps += len(losses)
        self.last = now = time.perf_counter()
        # The first tenth, in which graphs are made and caches filled, does not count.
        if self.first is None and self.steps > self.warm_up:
            self.first = (self.steps, now, cpu_seconds())
        if now > self.told + TELL_EVERY_SECONDS:
            self.tell()

    def tell(self, **more):
        tell(losses=self.untold, **more)
        self.untold, self.told = [], time.perf_counter()

    def end(self):
        steps, began, cpu = self.first
        took = max(self.last - began, 1e-9)
        self.tell(steps_per_s=(self.steps - steps) / took, cpus=(cpu_seconds() - cpu) / took)


def cpu_seconds():
    """CPU time that all processes of the job have taken, the daemon's too: those that the script has started."""
    parent = os.getppid()
    try:
        processes = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        # The clock that `clock_getcpuclockid` gives for a process.
        return sum(time.clock_gettime(~int(process) << 3 | 2) for process in processes)
    except OSError:
        return float("nan")  # in a container of its own, or one has just ended


def serve(server):
    """Lets the server serve until this process is told to end. (`server.join()` cannot be told.)"""
    signal.sigwait([signal.SIGTERM])


def become(config, protocol, task, options):
    """Runs the task that `TF_CONFIG` names."""
    # Before TensorFlow starts threads, which inherit it: `serve` waits for the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if protocol != "grpc":
        import sealane.tensorflow  # registers the protocol
    task(options, config["cluster"], config["task"]["type"], config["task"]["index"], protocol)
    if protocol != "grpc":
        tell(report=sealane.tensorflow.report())
    # Without what TensorFlow does at exit: its servers cannot be stopped.
    os._exit(0)


# What starts the tasks -------------------------------------------------------------------------------------------------


class PortTaken(Exception):
    """Another program was faster."""


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return ["127.0.0.1:%d" % each.getsockname()[1] for each in sockets]


def tail(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def failed(name, process, log):
    """Raises what the process of this name has ended with."""
    if any(words in log.read_text(errors="replace") for words in TAKEN):
        raise PortTaken(name)
    sys.exit(f"{name} ended with {process.returncode}. The end of its log:\n{tail(log)}")


@contextlib.contextmanager
def process(command, log, **how):
    """A process that ends with the block, and, whatever happens, with this one."""
    # In a group of its own, so that Ctrl-C reaches this process alone, which then ends the others.
    command = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
    with open(log, "w") as stderr:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr, process_group=0, **how)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def daemons(stack, directory, hosts):
    """A daemon for each host, which is a list of tasks; gives the socket of each task's. They end with the stack."""
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    program = os.environ.get("SEALANE_BIN") or shutil.which("sealane", path=places)
    if program is None:
        sys.exit("there is no program `sealane`: install it with `pip install ./python`, or name it in SEALANE_BIN")
    addresses, sockets = free_addresses(len(hosts)), {}
    map = directory / ".endpoint_map"
    map.write_text("".join(f"{task} = {address}\n" for tasks, address in zip(hosts, addresses) for task in tasks))
    for number, tasks in enumerate(hosts):
        path, log = directory / f"sealane{number}.sock", directory / f"sealane{number}.log"
        path.unlink(missing_ok=True)
        named = [word for task in tasks for word in ("--task", task)]
        command = [program, "daemon", "--endpoint-map", map, "--socket", path, *named, *DAEMON]
        started = stack.enter_context(process(command, log))
        until = time.monotonic() + STARTING_SECONDS
        while not path.exists():
            if started.poll() is not None or time.monotonic() > until:
                failed("the daemon", started, log)
            time.sleep(0.01)
        sockets |= dict.fromkeys(tasks, str(path))
    return sockets


def on_hosts(cluster, count):
    """The tasks of each of so many hosts: with several, the parameter servers have one of their own."""
    tasks = [(job, address) for job, addresses in cluster.items() for address in addresses]
    hosts = [[] for _ in range(count)]
    for number, (job, address) in enumerate(tasks):
        hosts[(job != "ps" if "ps" in cluster else number) % count].append(address)
    return [tasks for tasks in hosts if tasks]


class Outcome:
    """What a job over one protocol did."""

    def __init__(self):
        self.losses = collections.defaultdict(list)  # of each trainer
        self.steps_per_s = 0  # of all trainers
        self.cpus = 0  # that all of the job kept busy
        self.reports = []  # of `sealane.tensorflow.report()`, of each task
        self.measured = {}  # what else was told

    def add(self, name, event):
        if "losses" in event:
            self.losses[name] += event["losses"]
        self.steps_per_s += event.get("steps_per_s", 0)
        # As the first says that is done: until then all of them have run.
        self.cpus = self.cpus or event.get("cpus", 0)
        self.reports += [event["report"]] if "report" in event else []
        self.measured |= event.get("measured", {})

    def cpu_ms_per_step(self):
        return 1e3 * self.cpus / self.steps_per_s

    def curve(self):
        """The mean loss of all trainers by step."""
        return [sum(losses) / len(losses) for losses in zip(*self.losses.values())]

    def share(self):
        """The part of the bytes of tensors between tasks that went by Sealane, as those who received them count."""
        pairs = [pair for report in self.reports for server in report["servers"] for pair in server["pairs"]]
        ways = {way: sum(pair[way]["received_bytes"] for pair in pairs) for way in ("sealane", "grpc")}
        return ways["sealane"] / sum(ways.values()) if any(ways.values()) else None


def attempt(protocol, jobs, trainers, arguments, directory, progress, hosts=1):
    """One job: so many tasks of each of `jobs`, of which those of the job `trainers` train and end by themselves."""
    addresses = iter(free_addresses(sum(jobs.values())))
    cluster = {job: [next(addresses) for _ in range(count)] for job, count in jobs.items()}
    events, outcome, running = queue.SimpleQueue(), Outcome(), {}

    def listen(name, lines):
        with lines:
            for line in lines:
                if line.startswith("{"):
                    events.put((name, json.loads(line)))
                else:
                    print(f"{name}: {line}", end="", file=sys.stderr)
        events.put((name, None))

    with contextlib.ExitStack() as stack:
        sockets = {} if protocol == "grpc" else daemons(stack, directory, on_hosts(cluster, hosts))
        for job, tasks in cluster.items():
            for index, address in enumerate(tasks):
                config = {"cluster": cluster, "task": {"type": job, "index": index}, "rpc_layer": protocol}
                found = {"TF_CONFIG": json.dumps(config), "SEALANE_TF_SOCKET": sockets.get(address, "")}
                how = {"env": os.environ | QUIET | found, "stdout": subprocess.PIPE, "text": True}
                name, log = f"{job} {index}", directory / f"{job}{index}.log"
                started = stack.enter_context(process([sys.executable, *arguments], log, **how))
                running[name] = (job, started, log)
                threading.Thread(target=listen, args=(name, started.stdout), daemon=True).start()
        training = sum(job == trainers for job, *_ in running.values())
        while running:
            try:
                name, event = events.get(timeout=SILENT_SECONDS)
            except queue.Empty:
                logs = "\n".join(f"{name}:\n{tail(log)}" for name, (_, _, log) in running.items())
                sys.exit(f"nothing was heard of the job for {SILENT_SECONDS} s. The ends of the logs:\n{logs}")
            if event is not None:
                outcome.add(name, event)
                progress(outcome)
                continue
            job, ended, log = running.pop(name)
            if ended.wait() != 0:
                failed(name, ended, log)
            training -= job == trainers
            if training == 0 and job == trainers:
                for _, server, _ in running.values():
                    server.terminate()
    return outcome


def run(*job, **how):
    """`attempt` with other ports where another program took one."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(PortTaken):
            return attempt(*job, **how)
    sys.exit(f"other programs took the ports of {ATTEMPTS} attempts")


# The command -----------------------------------------------------------------------------------------------------------


def main(description, task, jobs, trainers, workers=2, ps=2, in_order=lambda options: options.workers == 1, add=None):
    """The command line of an example. `jobs` gives the number of tasks of each job by the options, `in_order` whether all
    updates are made in one order, so that losses must be equal to the bit."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--protocol", choices=["grpc", "grpc+sealane", "both"], default="both", help="both unless given")
    parser.add_argument("--workers", type=int, default=workers, help=f"{workers} unless given")
    if ps:
        parser.add_argument("--ps", type=int, default=ps, help=f"{ps} unless given")
    parser.add_argument("--steps", type=int, default=300, help="of each trainer: 300 unless given")
    parser.add_argument("--batch", type=int, default=256, help="256 unless given")
    parser.add_argument("--hosts", type=int, choices=[1, 2], default=1, help="2: two daemons, with TCP between them")
    parser.add_argument("--data", metavar="FILE", help="examples written by criteo.py, instead of new ones")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE.svg", help="draw losses and steps/s of both protocols")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write losses, steps/s and shares")
    if add:
        add(parser)
    options = parser.parse_args()
    if min(options.workers, getattr(options, "ps", 1), options.steps - 1, options.batch) < 1:
        parser.error("needed are a worker, a ps, two steps and an example a batch")
    if "TF_CONFIG" in os.environ:
        if options.data is None:
            parser.error("a task needs --data: a file that all of the job read, written by criteo.py")
        config = json.loads(os.environ["TF_CONFIG"])
        protocol = config.get("rpc_layer", options.protocol)
        if protocol == "both":
            parser.error("a task needs --protocol grpc or grpc+sealane")
        return become(config, protocol, task, options)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit("told to end"))
    protocols = ["grpc", "grpc+sealane"] if options.protocol == "both" else [options.protocol]
    outcomes, tasks = {}, jobs(options)
    with tempfile.TemporaryDirectory(prefix="sealane-") as directory:
        directory, arguments = pathlib.Path(directory), list(sys.argv)
        if options.data is None:
            criteo.write(directory / "clicks")
            arguments += ["--data", directory / "clicks"]
        with bars() as bar:
            for protocol in protocols:
                progress = bar(protocol, options.steps * tasks[trainers])
                outcomes[protocol] = run(protocol, tasks, trainers, arguments, directory, progress, options.hosts)
    table(outcomes)
    curves = {protocol: outcome.curve() for protocol, outcome in outcomes.items()}
    rates = {protocol: outcome.steps_per_s for protocol, outcome in outcomes.items()}
    if options.json:
        shares = {protocol: outcome.share() for protocol, outcome in outcomes.items()}
        told = {key: {"losses": curves[key], "steps_per_s": rates[key], "share": shares[key]} for key in outcomes}
        options.json.write_text(json.dumps(told) + "\n")
    if options.plot:
        options.plot.write_text(picture.draw(f"{pathlib.Path(sys.argv[0]).stem}: {said(tasks)}", curves, rates))
    if len(outcomes) == 2:
        grpc, ours = (outcome.losses for outcome in outcomes.values())
        if grpc == ours:
            print("the losses of both are equal to the bit")
        elif in_order(options):
            sys.exit("the losses of both are not equal")


def said(tasks):
    return ", ".join(f"{count} {job}" for job, count in tasks.items())


@contextlib.contextmanager
def bars():
    """Bars of progress; gives what makes one for a protocol."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:13}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}")]
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:

        def bar(protocol, steps):
            shown = progress.add_task(protocol, total=steps, told="starting")

            def update(outcome):
                done, curve = sum(map(len, outcome.losses.values())), outcome.curve()
                if curve:
                    progress.update(shown, completed=done, told=f"loss {curve[-1]:.4f}")

            return update

        yield bar


def table(outcomes):
    print(f"{'':14}{'steps/s':>9}{'CPU ms/step':>13}{'first loss':>12}{'last':>9}   bytes of tensors by Sealane")
    for protocol, outcome in outcomes.items():
        curve, share = outcome.curve(), outcome.share()
        part = max(1, len(curve) // 10)
        first, last = (sum(losses) / part for losses in (curve[:part], curve[-part:]))
        told = "" if share is None else f"{share:.2%}"
        rate, cpu = outcome.steps_per_s, outcome.cpu_ms_per_step()
        print(f"{protocol:14}{rate:9.1f}{cpu:13.1f}{first:12.4f}{last:9.4f}   {told}")
