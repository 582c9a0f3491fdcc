"""Jobs of the tests: daemons, and processes that run TensorFlow's servers, with ports and a directory of their own."""

import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

# A wait of so many seconds is a hang: nothing here takes as long, on a busy machine either.
STUCK = 90


def free_ports(count):
    """Ports that nobody has, chosen by the system."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_until(what, happened):
    """Waits for an event that can only be looked for; gives what `happened` gives."""
    until = time.monotonic() + STUCK
    while time.monotonic() < until:
        if found := happened():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {STUCK} s in vain: {what}")


def binary():
    return os.environ.get("SEALANE_BIN") or shutil.which("sealane") or "sealane"


class Daemon:
    """A daemon of some of a job's tasks."""

    def __init__(self, directory, number, endpoint_map, tasks, settings):
        self.directory = directory
        self.socket = directory / f"daemon{number}.sock"
        self.log_file = directory / f"daemon{number}.log"
        self.command = [binary(), "daemon", "--endpoint-map", endpoint_map, "--socket", self.socket, "--metrics", "off"]
        for setting in ["runtime.shards=1", *settings]:
            self.command += ["--set", setting]
        for task in tasks:
            self.command += ["--task", task]
        self.process = None

    def start(self):
        """Starts it, and waits until it is ready."""
        path = self.socket.with_suffix(".ready")
        path.unlink(missing_ok=True)
        environment = {"NOTIFY_SOCKET": str(path), "PATH": os.environ["PATH"]}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, open(self.log_file, "a") as log:
            manager.bind(str(path))
            manager.settimeout(0.05)
            self.process = subprocess.Popen(self.command, stderr=log, cwd=self.directory, env=environment)

            def ready():
                try:
                    return b"READY=1" in manager.recv(4096)
                except TimeoutError:
                    assert self.process.poll() is None, f"the daemon has ended: {self.log_file.read_text()}"

            wait_until("a daemon that is ready", ready)
        return self

    def stat(self):
        """What `sealane stat` shows."""
        shown = subprocess.run(
            [binary(), "stat", "--json", "--socket", self.socket], capture_output=True, timeout=STUCK, cwd=self.directory, check=True
        )
        return json.loads(shown.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def drain(self):
        """Has the daemon finish what it carries, and waits until it has exited."""
        subprocess.run([binary(), "drain", "--socket", self.socket], capture_output=True, timeout=STUCK, cwd=self.directory, check=True)
        self.process.wait(STUCK)


class Failed(Exception):
    """What a call in another process raised: the class's name, the message, and where."""


class Pending:
    """A call under way in another process."""

    def __init__(self, node, number):
        self.node, self.number = node, number

    def result(self, timeout=STUCK):
        answers = self.node.answers
        until = time.monotonic() + timeout
        while self.number not in answers:
            if not self.node.pipe.poll(max(0, until - time.monotonic())):
                raise AssertionError(f"{self.node.name} has not answered in {timeout} s")
            try:
                number, answer, error = self.node.pipe.recv()
            except (EOFError, ConnectionResetError):
                raise AssertionError(f"{self.node.name} has ended: {self.node.process.exitcode}") from None
            answers[number] = answer, error
            self.node.answered = number
        answer, error = answers.pop(self.number)
        if error is not None:
            raise Failed(error)
        return answer


class Node:
    """A process that runs one of TensorFlow's servers, or none, and makes calls for the test, one after the other."""

    def __init__(self, name, log_file, start_method, *arguments):
        self.name, self.log_file = name, log_file
        context = multiprocessing.get_context(start_method)
        context.set_forkserver_preload(["preloaded"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, str(log_file), *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.answers = {}
        self.calls = 0
        self.answered = -1  # The last call whose answer was read.

    def begin(self, function, *arguments, **named):
        """Calls a function of a module there, and does not wait."""
        self.calls += 1
        self.pipe.send((self.calls, function, arguments, named))
        return Pending(self, self.calls)

    def call(self, function, *arguments, **named):
        return self.begin(function, *arguments, **named).result()

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return self.log_file.read_text(errors="replace")

    def wait_for_line(self, text):
        """Waits until the log has a text."""
        wait_until(f"{text!r} in the log of {self.name}", lambda: text in self.log())

    def pairs(self):
        """The pairs of this process's server, by the other one's name: worker/0."""
        return self.call(pairs)

    def unmet(self):
        """How many tensors came to it by gRPC because they were sent in another way than they were waited for; 0 if it is gone or busy."""
        if not self.process.is_alive() or self.answered != self.calls:
            return 0
        try:
            return self.call(unmet)
        except (AssertionError, OSError):
            self.process.join(timeout=1)
            if self.process.is_alive():
                raise
            return 0

    def kill(self):
        self.process.kill()
        self.process.join()


class Job:
    """A cluster's addresses, an endpoint map, daemons and processes; all of it ends with `end`."""

    def __init__(self, directory, unmapped=(), daemons=1, settings=(), **jobs):
        """`jobs`: how many tasks each has. With two daemons, workers and chiefs are served by the second."""
        self.directory = pathlib.Path(directory)
        self.settings = settings
        ports = iter(free_ports(sum(jobs.values()) + daemons))
        self.cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
        served = [[] for _ in range(daemons)]
        for job, addresses in self.cluster.items():
            for index, address in enumerate(addresses):
                if (job, index) not in unmapped:
                    served[0 if job == "ps" else -1].append(address)
        self.map = self.directory / "map"
        lines = [f"{task}=127.0.0.1:{port}\n" for tasks, port in zip(served, ports) for task in tasks]
        self.map.write_text("".join(lines))
        self.daemons = [Daemon(self.directory, number, self.map, tasks, settings) for number, tasks in enumerate(served)]
        self.nodes = []

    def start_daemons(self):
        for daemon in self.daemons:
            daemon.start()
        return self

    def start(self, job, index=0, protocol="grpc+sealane", server=True, plugin=True, cluster=None, **environment):
        """Starts a process, and waits until its server is there; without one if so told. Several may be started at once: see `begin`."""
        node = self.begin(job, index, protocol, server, plugin, cluster, **environment)
        Pending(node, 0).result()
        return node

    def start_all(self, *tasks, **options):
        """As `start`, for tasks that are given as (job, index)."""
        nodes = [self.begin(*task, **options) for task in tasks]
        for node in nodes:
            Pending(node, 0).result()
        return nodes

    def begin(self, job, index=0, protocol="grpc+sealane", server=True, plugin=True, cluster=None, **environment):
        daemon = self.daemons[0 if job == "ps" else -1]
        environment = {"SEALANE_TF_SOCKET": str(daemon.socket), **environment}
        log = self.directory / f"{job}{index}-{len(self.nodes)}.log"
        node = Node(
            f"{job}/{index}",
            log,
            "forkserver" if plugin else "spawn",
            environment,
            (cluster or self.cluster, job, index, protocol) if server else None,
        )
        self.nodes.append(node)
        return node

    def logs(self):
        return {path.name: path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log"))}

    def end(self):
        for node in self.nodes:
            node.kill()
        for daemon in self.daemons:
            daemon.kill()


# --- In the processes ---------------------------------------------------------------------------------------------------------------------

# The server of this process.
server = None


def serve(pipe, log_file, environment, task):
    """What a process of the tests does: makes its server, then what it is told."""
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    number, call, arguments, named = 0, make_server, (task,), {}
    while True:
        answer = error = None
        try:
            answer = call(*arguments, **named)
        except BaseException as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        sys.stdout.flush()
        pipe.send((number, answer, error))
        number, call, arguments, named = pipe.recv()


def make_server(task):
    global server
    if task is None:
        return
    import tensorflow as tf

    cluster, job, index, protocol = task
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol=protocol)


def pairs():
    import sealane.tensorflow

    [report] = sealane.tensorflow.report()["servers"]
    found = {}
    for pair in report["pairs"]:
        job, _, task = pair["peer"].removeprefix("/job:").split("/")
        found[f"{job}/{task.removeprefix('task:')}"] = pair
    return found


def unmet():
    plugin = sys.modules.get("sealane.tensorflow")
    servers = plugin.report()["servers"] if plugin else []
    return sum(pair["unmet"] for server in servers for pair in server["pairs"])


def session(graph, **options):
    """A session of this process's server, whose graph stays as it was written."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(**options)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    return tf.compat.v1.Session(server.target, graph=graph, config=config)
