"""Daemons of the tests: real processes with ports and directories of their own, and the tasks that attach to them."""

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import sealane

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PS, WORKER = "ps0.train:2222", "worker0.train:2222"

# A daemon that is not ready after so many seconds is stuck: nothing here takes one.
STUCK = 60
# Another program may take a port between its choice and its use.
ATTEMPTS = 10
ARENA_BYTES = 16 << 20


def binary():
    """The program: $SEALANE_BIN, or the debug build, which is made if it is missing."""
    if path := os.environ.get("SEALANE_BIN"):
        return path
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    path = target / "debug" / "sealane"
    if not path.exists():
        subprocess.run(["cargo", "build", "--locked", "--package", "sealane-cli"], cwd=REPOSITORY, check=True)
    return str(path)


def free_address():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % chosen.getsockname()[1]


def references_to(thing):
    """References to an object, in a statement of its own: pytest's assertions keep some."""
    return sys.getrefcount(thing)


def round_trip(ps, worker):
    """Returns once the daemon has read all that the worker has submitted: it reads in order."""
    sending = ps.send_async(WORKER, 0, "round trip", b"")
    worker.recv(PS, 0, "round trip")
    sending.result()


class Daemon:
    """A daemon that serves two tasks, or those of a map that it is given."""

    def __init__(self, directory, tasks=(PS, WORKER), map=None):
        self.directory = pathlib.Path(directory)
        self.map = self.directory / ".endpoint_map"
        self.socket = self.directory / "sealane.sock"
        self.flags = []
        if map is not None:
            self.map.write_text(map)
            # Several daemons of one host: each is told its tasks.
            self.flags = ["--set", "runtime.pin=false", *(word for task in tasks for word in ("--task", task))]
            if not self.start():
                raise OSError(self.log())
            return
        for _ in range(ATTEMPTS):
            address = free_address()
            self.map.write_text("".join(f"{task}={address}\n" for task in tasks))
            if self.start():
                return
            assert "cannot listen on" in self.log(), self.log()
        raise AssertionError(f"other programs took the ports of {ATTEMPTS} attempts")

    def start(self):
        """Starts it and waits until it is ready; False if it ends instead."""
        path = self.directory / "manager"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, open(self.directory / "log", "w") as log:
            manager.bind(str(path))
            manager.settimeout(0.05)
            command = [binary(), "daemon", "--endpoint-map", self.map, "--socket", self.socket]
            command += ["--set", "runtime.shards=1", "--metrics", "off", *self.flags]
            self.process = subprocess.Popen(
                command, stderr=log, cwd=self.directory, env={"NOTIFY_SOCKET": str(path), "PATH": os.environ["PATH"]}
            )
            until = time.monotonic() + STUCK
            while time.monotonic() < until:
                over = self.process.poll() is not None
                try:
                    if b"READY=1" in manager.recv(4096):
                        return True
                except TimeoutError:
                    if over:
                        return False
        raise AssertionError(f"the daemon is stuck: {self.log()}")

    def log(self):
        return (self.directory / "log").read_text()

    @contextlib.contextmanager
    def stopped(self):
        """It stands still meanwhile. Who waits for it for longer than ``STUCK`` fails, and does not hang: it goes on by then."""
        go_on = threading.Event()

        def hold():
            in_time = go_on.wait(STUCK)
            self.process.send_signal(signal.SIGCONT)
            return in_time

        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            holding = threads.submit(hold)
            try:
                yield
            finally:
                go_on.set()
        assert holding.result(), f"what was to end soon waited for more than {STUCK} seconds"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def attach(self, task, **options):
        return sealane.attach(task, socket=self.socket, **{"arena_bytes": ARENA_BYTES, "timeout": STUCK, **options})


@contextlib.contextmanager
def new_daemon():
    """A daemon with a directory of its own, which ends with it."""
    # Not pytest's directory, whose path may be too long for a socket's.
    directory = tempfile.mkdtemp(prefix="sealane-")
    daemon = Daemon(directory)
    try:
        yield daemon
    finally:
        daemon.kill()
        shutil.rmtree(directory)


@contextlib.contextmanager
def two_daemons():
    """One for the parameter server and one for the worker, as on two hosts."""
    with contextlib.ExitStack() as stack:
        for _ in range(ATTEMPTS):
            map = "".join(f"{task}={free_address()}\n" for task in (PS, WORKER))
            daemons = []
            try:
                for task in (PS, WORKER):
                    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sealane-"))
                    daemons.append(Daemon(directory, [task], map))
                    stack.callback(daemons[-1].kill)
                yield daemons
                return
            except OSError as error:
                assert "cannot listen on" in str(error), error
        raise AssertionError(f"other programs took the ports of {ATTEMPTS} attempts")


def embedded_pair(ps_options={}, worker_options={}):
    """Two engines in this process, which reach each other over loopback."""
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="sealane-") as directory:
            map = pathlib.Path(directory) / ".endpoint_map"
            map.write_text(f"{PS}={free_address()}\n{WORKER}={free_address()}\n")
            try:
                ps = sealane.embedded(map, PS, **ps_options)
            except sealane.Unavailable:
                continue
            try:
                return ps, sealane.embedded(map, WORKER, **worker_options)
            except sealane.Unavailable:
                ps.close()
    raise AssertionError(f"other programs took the ports of {ATTEMPTS} attempts")
