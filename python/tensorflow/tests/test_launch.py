"""What starts the examples' processes, with tasks that need no TensorFlow."""

import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
# Nothing here takes so many seconds.
STUCK = 60
# Each worker waits until all ps listen, as TensorFlow does; what it does then is each test's.
JOB = """
    import os, socket, time
    import launch

    def listens(address):
        with socket.socket() as tried:
            return tried.connect_ex(address) == 0

    def task(options, cluster, job, index, protocol):
        addresses = [("127.0.0.1", int(each.split(":")[1])) for each in cluster["ps"]]
        if job == "ps":
            with socket.create_server(addresses[index]) as server:
                return launch.serve(server)
        while not all(map(listens, addresses)):
            time.sleep(0.01)
        journal = launch.Journal(options.steps)
        {body}
        journal.end()

    jobs = lambda options: {{"ps": options.ps, "worker": options.workers}}
    launch.main("A job", task, jobs=jobs, trainers="worker")
"""
TRAINS = "[journal.add(1 / (1 + step)) for step in range(options.steps)]"
# Told as its first step: that it has begun.
WAITS = "journal.add(1.0); time.sleep(3600)"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))


@pytest.fixture
def job(tmp_path, monkeypatch):
    # What is left of a job that is killed.
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def write(body):
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(JOB.format(body=body)))
        return [sys.executable, script, "--protocol", "grpc", "--steps", "10", "--data", "none"]

    return write


def test_a_job_is_started_told_of_and_ended(job, tmp_path):
    told, drawn = tmp_path / "told.json", tmp_path / "drawn.svg"
    ran = subprocess.run([*job(TRAINS), "--json", told, "--plot", drawn], capture_output=True, text=True, timeout=STUCK)
    assert ran.returncode == 0, ran.stderr
    grpc = json.loads(told.read_text())["grpc"]
    assert grpc["losses"] == [1 / (1 + step) for step in range(10)] and grpc["steps_per_s"] > 0
    # Two workers' rates, of which nothing went by Sealane.
    assert grpc["share"] is None and "grpc" in ran.stdout
    assert len(xml.parse(drawn).getroot().findall("{*}polyline")) == 1


def test_a_failing_task_ends_the_job_with_the_end_of_its_log(job):
    ran = subprocess.run(job("raise ValueError('no such luck')"), capture_output=True, text=True, timeout=STUCK)
    assert ran.returncode == 1
    assert "worker " in ran.stderr and " ended with 1. The end of its log:" in ran.stderr
    assert "ValueError: no such luck" in ran.stderr


def test_a_task_that_is_killed_ends_the_job(job):
    ran = subprocess.run(job("os.kill(os.getpid(), 9)"), capture_output=True, text=True, timeout=STUCK)
    assert ran.returncode == 1 and "ended with -9" in ran.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_the_first(job, how, tmp_path):
    body = f"open({str(tmp_path)!r} + f'/{{index}}', 'w').close(); {WAITS}"
    with subprocess.Popen(job(body), stderr=subprocess.DEVNULL) as parent:
        wait_for([tmp_path / "0", tmp_path / "1"], parent)
        children = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        pidfds = [os.pidfd_open(int(child)) for child in children]
        parent.send_signal(how)
        parent.wait(timeout=STUCK)
    # Two ps and two workers.
    assert len(pidfds) == 4
    for each in pidfds:
        assert select.select([each], [], [], STUCK)[0], "a child outlives its parent"
        os.close(each)


def wait_for(paths, parent):
    while not all(path.exists() for path in paths):
        assert parent.poll() is None
        select.select([], [], [], 0.02)


def test_a_port_that_another_program_took_is_exchanged(job, monkeypatch):
    import launch

    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen, attempts = launch.free_addresses, []

        def one_is_taken(count):
            attempts.append(count)
            addresses = chosen(count)
            return [addresses[0], "127.0.0.1:%d" % taken.getsockname()[1]] if len(attempts) == 1 else addresses

        monkeypatch.setattr(launch, "free_addresses", one_is_taken)
        listens = "socket.create_server(('127.0.0.1', int(cluster['worker'][0].split(':')[1]))).close()"
        script = job(f"{listens}; {TRAINS}")[1]
        arguments = [script, "--protocol", "grpc", "--steps", "10", "--data", "none"]
        jobs = {"ps": 1, "worker": 1}
        outcome = launch.run("grpc", jobs, "worker", arguments, script.parent, lambda outcome: None)
    assert outcome.curve() == [1 / (1 + step) for step in range(10)]
    assert attempts == [2, 2]


def test_a_parameter_server_has_a_host_of_its_own_where_there_are_two():
    import launch

    cluster = {"ps": ["a", "b"], "worker": ["c"], "chief": ["d"]}
    assert launch.on_hosts(cluster, 1) == [["a", "b", "c", "d"]]
    assert launch.on_hosts(cluster, 2) == [["a", "b"], ["c", "d"]]
    assert launch.on_hosts({"worker": ["a", "b", "c"]}, 2) == [["a", "c"], ["b"]]
    assert launch.on_hosts({"worker": ["a"]}, 2) == [["a"]]


@pytest.mark.parametrize("given, told", [([], "a task needs --data"), (["--data", "x"], "a task needs --protocol")])
def test_a_task_of_a_job_that_is_not_started_here_is_told_what_it_needs(job, monkeypatch, given, told):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}')
    ran = subprocess.run([*job(TRAINS)[:2], *given], capture_output=True, text=True, timeout=STUCK)
    assert ran.returncode == 2 and told in ran.stderr


def test_a_share_is_what_receivers_count():
    import launch

    counts = lambda received: {"received_bytes": received, "sent_bytes": 7}  # noqa: E731
    pairs = [{"sealane": counts(30), "grpc": counts(0)}, {"sealane": counts(0), "grpc": counts(10)}]
    outcome = launch.Outcome()
    assert outcome.share() is None
    outcome.add("worker 0", {"report": {"servers": [{"task": "a", "pairs": pairs}]}})
    assert outcome.share() == 0.75


@pytest.mark.parametrize("options", [["--workers", "0"], ["--ps", "0"], ["--steps", "1"], ["--batch", "0"]])
def test_a_job_that_cannot_be(job, options):
    ran = subprocess.run([*job(TRAINS), *options], capture_output=True, text=True, timeout=STUCK)
    assert ran.returncode == 2 and "needed are a worker, a ps, two steps" in ran.stderr


def test_a_picture_has_a_curve_and_a_bar_of_each():
    import picture

    drawn = picture.draw("a job", {"grpc": [2.0, 1.0], "grpc+sealane": [2.0, 1.0]}, {"grpc": 1.0, "grpc+sealane": 2.5})
    root = xml.fromstring(drawn)
    first, second = [line.get("points") for line in root.findall("{*}polyline")]
    assert first == second
    # The background is a rectangle, too.
    heights = [float(bar.get("height")) for bar in root.findall("{*}rect")[1:]]
    assert heights[1] == pytest.approx(2.5 * heights[0], rel=0.01)
