"""The example for Ray: on this machine, and on raylets in network namespaces, as a stand-in for hosts, of which some are lost."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types

import pytest
from daemons import binary

DRIVER = pathlib.Path(__file__).resolve().with_name("ray_driver.py")
EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples/ray_dlrm.py"
# A job that has not told what is waited for after so many seconds is stuck.
STUCK = 120
# Ray believes for so long in a raylet that does not answer.
HEALTH = {"initial_delay_ms": 500, "period_ms": 500, "timeout_ms": 2000, "failure_threshold": 4}
HEALTH = json.dumps({f"health_check_{name}": value for name, value in HEALTH.items()})

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")


def environment(**more):
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1", "RAY_LOG_TO_DRIVER": "0", "RAY_AUTH_MODE": "disabled"}
    return os.environ | {"SEALANE_BIN": binary(), "PYTHONUNBUFFERED": "1"} | quiet | more


class Network:
    """Hosts that reach each other alone: namespaces on a bridge. Each has a directory of its own."""

    def __init__(self, stack, count):
        self.stack, self.name, self.directory = stack, f"sl{os.getpid()}", tempfile.mkdtemp(prefix="slr-")
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.ip("link", "add", self.name, "type", "bridge")
        stack.callback(self.ip, "link", "del", self.name)
        self.ip("link", "set", self.name, "up")
        for host in map(str, range(1, count + 1)):
            name = f"{self.name}-{host}"
            self.ip("netns", "add", name)
            stack.callback(self.ip, "netns", "del", name)
            stack.callback(self.kill, f"10.77.0.{host}")
            self.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            # Without this it would be there until the last process of the namespace is.
            stack.callback(self.ip, "link", "del", name)
            self.ip("link", "set", name, "master", self.name, "up")
            self.ip("-n", name, "addr", "add", f"10.77.0.{host}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")

    def ip(self, *arguments):
        return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout

    def start(self, address, *command, **options):
        name = f"{self.name}-{address.rpartition('.')[2]}"
        process = subprocess.Popen(["ip", "netns", "exec", name, *map(str, command)], text=True, **options)
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def raylet(self, address, *options):
        program = pathlib.Path(sys.executable).with_name("ray")
        command = [program, "start", f"--node-ip-address={address}", "--object-store-memory=100000000", "--include-log-monitor=false"]
        command += [f"--temp-dir={self.directory}/{address}", *options]
        return self.start(address, *command, env=environment(), stdout=subprocess.DEVNULL)

    def processes(self, address):
        return map(int, self.ip("netns", "pids", f"{self.name}-{address.rpartition('.')[2]}").split())

    def kill(self, address):
        """All processes of a host, as if it had lost its power but for its kernel's last words."""
        for process in self.processes(address):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def cut_off(self, address):
        """As if its cable were pulled: nobody is told."""
        self.ip("link", "set", f"{self.name}-{address.rpartition('.')[2]}", "down")

    def daemons(self, address):
        def is_one(process):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[:2] == [binary().encode(), b"daemon"]

        return [process for process in self.processes(address) if is_one(process)]


class Job:
    """What the example prints, and so where its actors are and what they have done."""

    def __init__(self, process):
        self.process, self.seen, self.places, self.losses = process, [], {}, {}

    def until(self, what, come):
        """Reads lines until ``come()``."""
        guard = threading.Timer(STUCK, self.process.kill)
        guard.start()
        for line in self.process.stdout:
            self.seen.append(line)
            if found := re.match(r"(\S+) is on (\S+), process (\d+)", line):
                self.places[found[1]] = found[2], int(found[3])
            elif found := re.match(r"(\S+) has done \d+ steps, loss (\S+)", line):
                self.losses.setdefault(found[1], []).append(float(found[2]))
            if come():
                guard.cancel()
                return
        guard.cancel()
        pytest.fail(f"{what} has not come:\n{''.join(self.seen[-80:])}")

    def goes_on(self, what, reports=3):
        """Returns when each worker has told of more steps, which have not forgotten those before."""
        before = {name: len(losses) for name, losses in self.losses.items()}
        names = [f"worker-{number}" for number in range(2)]
        self.until(what, lambda: all(len(self.losses.get(name, ())) >= before.get(name, 0) + reports for name in names))
        for name, count in before.items():
            first, *_ = losses = self.losses[name]
            assert max(losses[count:]) < first - 0.05, f"{what}: {count} losses, and then more: {losses}"


@needs_ray
@pytest.mark.parametrize("command", [[EXAMPLE, "--ps", "2", "--steps", "60"], [DRIVER, "errors"]], ids=["example", "errors"])
def test_on_one_machine(command):
    with tempfile.TemporaryDirectory(prefix="slr-", ignore_cleanup_errors=True) as directory:
        alone = environment(RAY_ADDRESS="local", RAY_TMPDIR=directory)
        done = subprocess.run([sys.executable, *command], env=alone, capture_output=True, text=True, timeout=STUCK)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_ray
def test_a_host_waits_for_the_daemon_that_has_read_the_map(monkeypatch, tmp_path):
    import ray
    from sealane._ray import Host

    context = types.SimpleNamespace(get_temp_dir=lambda: str(tmp_path), get_session_name=lambda: "session")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    (tmp_path / "session/logs").mkdir(parents=True)
    launch = {"cluster": "c", "secret": "s", "port": 0, "settings": {}, "program": str(DRIVER.with_name("slow_daemon.py"))}
    host = Host("node", launch)
    try:
        # The task comes, is joined by another elsewhere, leaves, so that the daemon is started anew, and comes back.
        here, there = f"ps-0:2222={host.address()}\n", "worker-0:2222=10.77.0.9:1\n"
        for map in here, here + there, there, there + here:
            host.serve(map)
            assert (host.directory / "read").read_text() == map
    finally:
        # Whom its daemon's end would end as well.
        ended, host.daemon = host.daemon, None
        ended.kill()
        ended.wait()
        host.listener.close()
        host.told.close()


@pytest.fixture
def network():
    trial = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if trial.returncode != 0:
        pytest.skip(f"no network namespaces here: {trial.stderr}")
    with contextlib.ExitStack() as stack:
        yield Network(stack, 4)


def raylets(network, count):
    """The hosts' addresses. The first is for the driver, and no actor."""
    head, *others = (f"10.77.0.{host}" for host in range(1, count + 1))
    options = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--system-config={HEALTH}"]
    assert network.raylet(head, *options).wait(STUCK) == 0
    starting = [network.raylet(other, f"--address={head}:6379", "--num-cpus=3") for other in others]
    assert all(raylet.wait(STUCK) == 0 for raylet in starting)
    return head, *others


@needs_ray
@needs_root
def test_a_task_is_found_wherever_it_goes(network):
    driver, *hosts = raylets(network, 3)
    pipes = {"env": environment(RAY_ADDRESS=f"{driver}:6379"), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = network.start(driver, sys.executable, DRIVER, "moves", *hosts, **pipes)
    told, _ = process.communicate(timeout=STUCK)
    assert process.returncode == 0, told


@needs_ray
@needs_root
def test_actors_daemons_and_hosts_are_lost_and_training_goes_on(network):
    driver, *hosts = raylets(network, 4)
    command = [sys.executable, EXAMPLE, "--steps", "1000000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = network.start(driver, *command, env=environment(RAY_ADDRESS="10.77.0.1:6379"), **pipes)
    job = Job(process)
    job.goes_on("training", reports=10)

    _, killed = job.places["worker-0"]
    os.kill(killed, signal.SIGKILL)
    job.until("a worker that starts anew", lambda: job.places["worker-0"][1] != killed)
    job.goes_on("training with another worker")

    (daemon,) = network.daemons(job.places["ps-0"][0])
    os.kill(daemon, signal.SIGKILL)
    job.goes_on("training with another daemon")

    for lose in network.cut_off, network.kill:
        lost, _ = job.places["ps-0"]
        lose(lost)
        job.until("all that were on a lost host", lambda: all(host != lost for host, _ in job.places.values()))
        job.goes_on("training without a host")
    (last,) = {host for host, _ in job.places.values()}

    # The daemons are the job's.
    (daemon,) = map(os.pidfd_open, network.daemons(last))
    process.send_signal(signal.SIGINT)
    assert select.select([daemon], [], [], STUCK)[0], "the daemon has outlived its job"
    os.close(daemon)
