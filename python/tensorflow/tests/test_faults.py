"""Tasks and daemons that are killed or stopped under a job: steps end with an error that users of gRPC know, and new sessions go on."""

import ctypes
import os
import pathlib
import shlex
import shutil
import subprocess

import pytest
import sealane.tensorflow  # noqa: F401
import steps
import tensorflow as tf
from test_cluster import assert_by_sealane, assert_trains, by_sealane

import cluster
from cluster import Failed, wait_until

v1 = tf.compat.v1


@pytest.fixture
def job(make_job):
    return make_job(ps=1, worker=1).start_daemons()


# Sessions of steps that fail: closing one waits until all its tasks are there, over gRPC too.
failed = []


def stream(began):
    """Steps without an end; the first makes a file."""
    with tf.Graph().as_default() as graph:
        with tf.device(steps.device("ps")):
            start = v1.placeholder(tf.float32, [])
            sources = [tf.fill([5000], start + number) for number in range(20)]
        with tf.device(steps.device("worker")):
            total = tf.add_n(sources)
        with tf.device(steps.device("ps")):
            back = tf.reduce_sum(total)
        failed.append(session := cluster.session(graph))
        step = 0
        while True:
            assert session.run(back, {start: step}) == 5000 * (20 * step + 190)
            step = (step + 1) % 100  # So that sums are exact.
            if step == 10:
                pathlib.Path(began).touch()


def wait_on(began):
    """A step that waits on the ps for what never comes, while the worker waits for the ps."""
    with tf.Graph().as_default() as graph:
        with tf.device(steps.device("ps")):
            with tf.control_dependencies([tf.io.write_file(began, "")]):
                taken = v1.FIFOQueue(4, tf.float32, [[]]).dequeue()
        with tf.device(steps.device("worker")):
            result = taken + 1.0
        failed.append(session := cluster.session(graph))
        session.run(result)


def begin(job, worker, what):
    """Begins steps there, and gives the call once they are under way."""
    began = job.directory / f"began-{worker.calls}"
    call = worker.begin(what, str(began))
    wait_until("a step that is under way", began.exists)
    return call


def kill_under(daemon, call):
    """Kills a daemon in the middle of a step, which ends. Where it had no tensor at that moment, steps go on by gRPC: then the next one is
    killed."""
    for _ in range(5):
        daemon.kill()
        try:
            call.result(timeout=15)
        except Failed as failed:
            assert str(failed).startswith(("UnavailableError", "AbortedError")), failed
            return
        except AssertionError as goes_on:
            assert "has not answered" in str(goes_on), goes_on
        daemon.start()
        wait_until("tensors by the next daemon", lambda: has_moved(daemon))
    raise AssertionError("no step has ended with its daemon")


def has_moved(daemon):
    clients = [client for shard in daemon.stat()["shards"] for client in shard["clients"]]
    return any(client["counters"]["tensors_received"] for client in clients)


def assert_goes_on_by_sealane(worker):
    before = by_sealane(worker.pairs()["ps/0"])
    assert_trains(worker)
    after = by_sealane(worker.pairs()["ps/0"])
    assert all(later >= earlier + 3 for earlier, later in zip(before, after)), (before, after)


@pytest.mark.parametrize("what", [stream, wait_on])
def test_a_ps_that_is_killed_ends_the_step_and_another_one_serves_the_next_session(job, what):
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    for _ in range(2):
        call = begin(job, worker, what)
        ps.kill()
        with pytest.raises(Failed, match="^(UnavailableError|AbortedError)"):
            call.result()
        ps = job.start("ps")
        assert_goes_on_by_sealane(worker)
    assert worker.pairs()["ps/0"]["grpc"]["received_tensors"] == 0


@pytest.mark.parametrize("what", [stream, wait_on])
def test_a_daemon_that_is_killed_ends_the_step_and_another_one_serves_the_next_session(job, what):
    _, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    kill_under(job.daemons[0], begin(job, worker, what))
    job.daemons[0].start()

    before = by_sealane(worker.pairs()["ps/0"])

    def goes_on():
        """By gRPC at first, where the pair was settled while there was no daemon; that is tried again."""
        try:
            assert_trains(worker)
        except Failed as failed:
            assert str(failed).startswith(("UnavailableError", "AbortedError")), failed
        after = by_sealane(worker.pairs()["ps/0"])
        return all(later > earlier for earlier, later in zip(before, after))

    wait_until("tensors by Sealane both ways", goes_on)
    assert_goes_on_by_sealane(worker)


def test_steps_that_begin_after_their_daemon_died_go_by_grpc(job):
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker, steps=5)
    job.daemons[0].kill()
    before = by_sealane(worker.pairs()["ps/0"])
    for _ in range(2):
        assert_trains(worker)
    pair = worker.pairs()["ps/0"]
    assert by_sealane(pair) == before and pair["grpc"]["received_tensors"] > 0, pair
    for node in (ps, worker):
        assert "has no room" not in node.log()  # Which would be another reason, and is no advice.


@pytest.mark.parametrize("end", ["kill", "drain"])
def test_steps_use_grpc_while_a_peers_daemon_is_away(make_job, end):
    job = make_job(ps=1, worker=1, daemons=2).start_daemons()
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    assert_by_sealane(ps, "worker/0")
    getattr(job.daemons[1], end)()
    # The ps has its daemon, and learns of the loss between two steps.
    wait_until("the ps uses gRPC", lambda: ps.pairs()["worker/0"]["route"] == "grpc")
    wait_until("the worker uses gRPC", lambda: worker.pairs()["ps/0"]["route"] == "grpc")
    before = by_sealane(ps.pairs()["worker/0"])
    assert_trains(worker)
    assert by_sealane(ps.pairs()["worker/0"]) == before

    def returned():
        assert_trains(worker)
        return all(later > earlier for earlier, later in zip(before, by_sealane(ps.pairs()["worker/0"])))

    job.daemons[1].start()
    wait_until("tensors by Sealane both ways", returned)


def test_steps_go_on_when_a_peers_daemon_dies(make_job):
    job = make_job(ps=1, worker=1, daemons=2).start_daemons()
    _, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    job.daemons[1].kill()

    def trained():
        """A step whose tensor the daemon had may fail, as over gRPC."""
        try:
            assert_trains(worker)
        except Failed as failed:
            assert str(failed).startswith(("UnavailableError", "AbortedError")), failed
            return False
        return True

    wait_until("steps that succeed", trained)


def set_clock_back(seconds):
    """Sets back the wall clock of this process, in which set_back.cc was loaded first."""
    ctypes.CDLL(None).set_clock_back(ctypes.c_long(seconds))


def make_server(task):
    """In a process that has not loaded the plugin before; loading this module does."""
    cluster.make_server(task)


def test_retries_go_on_when_the_clock_is_set_back(make_job, tmp_path_factory, monkeypatch):
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]} to build the clock with")
    clock = tmp_path_factory.mktemp("clock") / "set_back.so"
    source = pathlib.Path(__file__).with_name("set_back.cc")
    subprocess.run([*compiler, "-shared", "-fPIC", "-Wall", "-Wextra", source, "-o", clock], check=True)
    job = make_job(ps=1, worker=1)
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(clock))
        worker = job.start("worker", server=False, plugin=False)
    worker.call(make_server, (job.cluster, "worker", 0, "grpc+sealane"))
    worker.wait_for_line("tried again until the daemon is there")
    worker.call(set_clock_back, 3600)
    job.start_daemons()
    worker.wait_for_line("is attached as")


def test_a_worker_that_is_killed_and_comes_back(job):
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    begin(job, worker, stream)
    worker.kill()
    worker = job.start("worker")
    assert_trains(worker)
    assert_by_sealane(worker, "ps/0")
    begin(job, worker, wait_on)
    worker.kill()
    worker = job.start("worker")
    assert_trains(worker)
    assert_by_sealane(worker, "ps/0")


@pytest.mark.parametrize("what", [stream, wait_on])
def test_a_worker_that_comes_back_without_sealane_goes_on_by_grpc(job, what):
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    assert_by_sealane(ps, "worker/0")
    begin(job, worker, what)
    worker.kill()
    sent = by_sealane(ps.pairs()["worker/0"])
    worker = job.start("worker", SEALANE_TF="off")
    assert_trains(worker)
    pair = ps.pairs()["worker/0"]
    assert by_sealane(pair) == sent and pair["grpc"]["sent_tensors"] >= 3 and pair["grpc"]["received_tensors"] >= 3, pair


def burst(count, began, sent):
    """The ps sends the worker so many small tensors in one step: two of them, of which the second waits for the test."""
    with tf.Graph().as_default() as graph:
        with tf.device(steps.device("ps")):
            parts = tf.split(tf.range(count), count)
            with tf.control_dependencies(parts[:1]):
                over = tf.io.write_file(sent, "")
        with tf.device(steps.device("worker")):
            total = tf.add_n(parts)
        with cluster.session(graph) as session:
            session.run(total)
            pathlib.Path(began).touch()
            wait_until("the test has stopped the daemon", lambda: not pathlib.Path(began).exists())
            return int(session.run([total, over])[0][0])


def idle(pid):
    """Says whether a process has used no processor time since it was last asked."""
    used = []

    def asked():
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used.append(int(fields[11]) + int(fields[12]))
        return len(used) > 10 and used[-10] == used[-1]

    return asked


def test_a_daemon_that_is_stopped_under_a_burst_of_small_tensors(job):
    count = 5000  # The ring has room for 1024. TensorFlow itself takes half a minute for a graph of 20,000.
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    began, sent = job.directory / "began", job.directory / "sent"
    call = worker.begin(burst, count, str(began), str(sent))
    wait_until("the first step", began.exists)
    job.daemons[0].stop()
    began.unlink()
    wait_until("the ps is about to send", sent.exists)
    wait_until("the ps has sent all", idle(ps.pid))
    job.daemons[0].go_on()
    assert call.result() == count * (count - 1) // 2
    assert_goes_on_by_sealane(worker)
