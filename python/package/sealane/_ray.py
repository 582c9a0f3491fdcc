"""A cluster on Ray: a *steward* actor beside the driver knows on which node each task is, and a *host* actor on each node runs the
daemon. Both are the job's, and end with it."""

import asyncio
import contextlib
import errno
import hashlib
import os
import pathlib
import secrets
import socket
import subprocess
import threading
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import _sealane
from ._errors import DeadlineExceeded, Unavailable
from .cluster import Cluster, program

# A daemon that does not answer for so many seconds is stuck: it populates its memory before it serves.
STUCK = 60
# Between two looks whether a daemon that tells nothing has ended.
LOOK = 0.1
# How long other nodes, some of which may be gone, are waited for until they have the new map.
SPREAD = 30
# Connections that wait for the daemon, also while it is started anew.
BACKLOG = 1024
# The stewards of this driver's clusters, by name: an actor ends when nobody has its handle.
STEWARDS = {}


def on_node(node):
    """Options of an actor that is on that node or nowhere, takes no CPU from others, and ends with its job."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


class RayCluster(Cluster):
    """A ``Cluster`` whose tasks may attach anywhere in a Ray cluster, and move."""

    def __init__(self, roles, *, port=0, settings=(), program=None):
        super().__init__({role: [f"{role}-{index}:2222" for index in range(count)] for role, count in roles.items()})
        names = [name for names in self.tasks.values() for name in names]
        node = ray.get_runtime_context().get_node_id()
        launch = {"port": port, "settings": dict(settings), "program": program or os.environ.get("SEALANE_BIN")}
        launch |= {"cluster": secrets.token_hex(4), "secret": secrets.token_hex(32)}
        self._steward = f"sealane-{launch['cluster']}"
        # Calls of processes that have ended may wait beside those of the ones that are in their place.
        options = on_node(node) | {"name": self._steward, "max_concurrency": 2 * len(names)}
        # By name, because Ray may lose an actor's arguments that have handles in them, and then cannot start it anew.
        STEWARDS[self._steward] = ray.remote(Steward).options(**options).remote(names, launch)

    def attach(self, role, index, *, timeout=60, **options):
        """Attaches this process as that task, wherever it is; ``options`` are those of ``sealane.attach``.

        Raises ``DeadlineExceeded`` if not all tasks have attached once within ``timeout`` seconds, and what Ray raises if the
        cluster was closed.
        """
        name, node = self._name(role, index), ray.get_runtime_context().get_node_id()
        path = ray.get(ray.get_actor(self._steward).place.remote(name, node, timeout))
        return _sealane.attach(name, socket=path, timeout=timeout, **options)

    def close(self):
        """Ends all daemons, at once; nothing if this process has not made the cluster."""
        if steward := STEWARDS.pop(self._steward, None):
            ray.kill(steward)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Steward:
    """Knows where each task is, and gives all nodes the map of that."""

    def __init__(self, names, launch):
        # By task, the node that it attached on last; by node, its host actor and the address of its daemon.
        self.places = dict.fromkeys(names)
        self.hosts = {}
        # By node, why it does not have the map.
        self.errors = {}
        self.launch = launch
        self.complete = asyncio.Event()
        self.spreading = asyncio.Lock()

    async def place(self, task, node, timeout):
        """The task is on that node from now on; gives the socket of the node's daemon when all nodes know."""
        if node not in self.hosts:
            self.hosts[node] = asyncio.ensure_future(self.start(node))
        try:
            host, _ = await self.hosts[node]
        except BaseException:
            self.hosts.pop(node, None)
            raise
        async with self.spreading:
            if self.places[task] != node or node in self.errors:
                self.places[task] = node
                if all(self.places.values()):
                    await self.spread(node)
                    self.complete.set()
        try:
            await asyncio.wait_for(self.complete.wait(), timeout)
        except TimeoutError:
            missing = [task for task, node in self.places.items() if node is None]
            raise DeadlineExceeded(f"{len(missing)} tasks have not attached within {timeout} s: {missing[:8]}") from None
        if error := self.errors.get(node):
            raise error
        try:
            return await host.path.remote()
        except ray.exceptions.RayActorError:
            self.hosts.pop(node, None)
            raise

    async def start(self, node):
        # The host is started anew if it ends, and then has the same address, so that nobody else need know.
        options = on_node(node) | {"max_restarts": -1, "max_task_retries": -1}
        host = ray.remote(Host).options(**options).remote(node, self.launch)
        return host, await host.address.remote()

    async def spread(self, first):
        """Gives all nodes the map. First that which has a new task: others may call it as soon as they have the map."""
        found = await asyncio.gather(*self.hosts.values(), return_exceptions=True)
        hosts = {node: got for node, got in zip(list(self.hosts), found) if not isinstance(got, BaseException)}
        lines = [f"{host_name(node)}={address}\n" for node, (_, address) in hosts.items()]
        lines += [f"{task}={hosts[node][1]}\n" for task, node in self.places.items() if node in hosts]
        for nodes in [first], [node for node in hosts if node != first]:
            serving = [asyncio.wait_for(hosts[node][0].serve.remote("".join(lines)), SPREAD) for node in nodes]
            for node, end in zip(nodes, await asyncio.gather(*serving, return_exceptions=True)):
                self.errors.pop(node, None)
                if isinstance(end, ray.exceptions.RayActorError):
                    # The node is gone. So are its tasks, until they attach elsewhere.
                    self.hosts.pop(node, None)
                elif isinstance(end, BaseException):
                    self.errors[node] = end


def host_name(node):
    """A task that the daemon of the node serves, so that it has one, though all others may be elsewhere."""
    return f"host-{node[:16]}:1"


class Host:
    """The daemon of this node."""

    def __init__(self, node, launch):
        context = ray.get_runtime_context()
        # The same when this actor is started anew; short, for the path of a socket is.
        short = hashlib.sha256((launch["cluster"] + node).encode()).hexdigest()[:12]
        self.directory = pathlib.Path(context.get_temp_dir(), context.get_session_name(), f"sl-{short}")
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.program = program(launch["program"])
        self.settings = {"daemon.metrics": "off", "daemon.drain_timeout_ms": 1000} | launch["settings"]
        if not any(name.startswith("security.") for name in self.settings):
            self.settings["security.secret_file"] = self.write("secret", launch["secret"] + "\n")
        self.log = self.directory.parent / "logs" / f"sealane-{short}.log"
        # The port stays when the daemon is started anew; who calls meanwhile waits.
        self.listener = self.listen(launch["port"])
        # The daemon tells here that it serves, or has read the map again: sd_notify(3).
        (self.directory / "told").unlink(missing_ok=True)
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.bind(str(self.directory / "told"))
        self.daemon, self.tasks = None, set()
        if (self.directory / "map").exists():
            self.serve((self.directory / "map").read_text())

    def listen(self, port):
        host, kept = ray.util.get_node_ip_address(), self.directory / "port"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        port = int(kept.read_text()) if kept.exists() else port
        until = time.monotonic() + STUCK
        while True:
            try:
                listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
                break
            except OSError as error:
                # The daemon of the host that this one is in place of may not have ended yet.
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                time.sleep(LOOK)
        self.write("port", str(listener.getsockname()[1]))
        return listener

    def write(self, name, text):
        """Writes a file that others see whole; gives its path."""
        new = self.directory / f"{name}.new"
        with open(new, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
        return str(new.replace(self.directory / name))

    def path(self):
        """Where tasks attach."""
        return str(self.directory / "socket")

    def address(self):
        """The daemon's transport address."""
        host, port, *_ = self.listener.getsockname()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def serve(self, map):
        """Returns when the daemon has this map, and serves those of its tasks that are at this node's address."""
        tasks = {line.partition("=")[0] for line in map.splitlines() if line.endswith("=" + self.address())}
        have_left, self.tasks = self.tasks - tasks, tasks
        if have_left and self.daemon:
            # A daemon keeps tasks that it serves once, and would take calls of its own clients for those that are elsewhere now.
            ended, self.daemon = self.daemon, None
            ended.terminate()
            ended.wait(STUCK)
        written = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.write("map", map)
        if self.daemon:
            self.await_ready(self.daemon, written)
        else:
            # What the one before has told does not matter: it has ended.
            self.forget()
            daemon = self.start()
            self.await_ready(daemon)
            self.daemon = daemon
            threading.Thread(target=self.watch, args=(daemon,), daemon=True).start()

    def start(self):
        command = [self.program, "daemon", "--endpoint-map", self.directory / "map", "--socket", self.path()]
        command += ["--listener-on-stdin", "--end-with", str(os.getpid())]
        command += [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        environment = os.environ | {"NOTIFY_SOCKET": str(self.directory / "told")}
        with open(self.log, "a") as log:
            return subprocess.Popen(command, stdin=self.listener, stderr=log, env=environment)

    def forget(self):
        """Leaves out what daemons have told so far."""
        self.told.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.told.recv(4096)

    def await_ready(self, daemon, written=None):
        """Returns when the daemon serves, or has read again what was ``written`` then, in microseconds of the monotonic clock.

        It may have begun to read before that, and then reads once more: each time it tells when, as for systemd's notify-reload.
        """
        self.told.settimeout(LOOK)
        until, is_read = time.monotonic() + STUCK, written is None
        while time.monotonic() < until:
            try:
                told = dict(line.partition(b"=")[::2] for line in self.told.recv(4096).split(b"\n"))
                if b"RELOADING" in told:
                    is_read = written is None or int(told[b"MONOTONIC_USEC"]) >= written
                elif b"READY" in told and is_read:
                    return
            except TimeoutError:
                if daemon.poll() is not None:
                    break
        daemon.kill()
        raise Unavailable(f"the daemon at {self.address()} does not serve; the end of {self.log}:\n{self.log.read_text()[-2000:]}")

    def watch(self, daemon):
        """Ends this actor with its daemon, so that Ray starts both anew."""
        daemon.wait()
        if self.daemon is daemon:
            os._exit(1)
