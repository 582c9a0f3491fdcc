"""Which way pairs of tasks go: hosts, maps and plugins of all kinds. Nothing waits for what does not come."""

import pathlib
import re

import pytest
import steps
from cluster import wait_until

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "tensorflow.md"

# A pair is settled within a second; a first step that takes so many more than that has waited for something else.
SETTLED = 60


def by_sealane(pair):
    return pair["sealane"]["received_tensors"], pair["sealane"]["sent_tensors"]


def by_grpc(pair):
    return pair["grpc"]["received_tensors"], pair["grpc"]["sent_tensors"]


def assert_trains(node, parameter_servers=1, **options):
    """Runs steps there, whose values must be right."""
    pulled, first = node.call(steps.train, parameter_servers, **options)
    assert pulled == steps.trained(parameter_servers, options.get("steps", 3), options.get("partitioned", False))
    assert first < SETTLED


def assert_by_sealane(node, other):
    """All went by Sealane, both ways."""
    pair = node.pairs()[other]
    assert pair["route"] == "sealane" and min(by_sealane(pair)) > 0 and by_grpc(pair) == (0, 0), pair


def assert_by_grpc(node, other):
    pair = node.pairs()[other]
    assert by_sealane(pair) == (0, 0) and min(by_grpc(pair)) > 0, pair


@pytest.mark.parametrize("daemons", [1, 2])
def test_two_workers_and_two_parameter_servers(make_job, daemons):
    job = make_job(ps=2, worker=2, daemons=daemons).start_daemons()
    ps0, ps1, *workers = job.start_all(("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1))
    assert_trains(workers[0], 2)
    assert_trains(workers[1], 2, worker=1)
    together = [each.begin(steps.train, 2, 20, number, initialize=False) for number, each in enumerate(workers)]
    for each in together:
        pulled, _ = each.result()
        assert all(later > earlier for earlier, later in zip(pulled, pulled[1:]))
    # Each step of each has arrived.
    [[value, other]], _ = workers[0].call(steps.train, 2, 1, initialize=False)
    assert (value, other) == (43.0, 44.0)
    for node in workers:
        assert_by_sealane(node, "ps/0")
        assert_by_sealane(node, "ps/1")
    for node in (ps0, ps1):
        assert_by_sealane(node, "worker/0")
        assert_by_sealane(node, "worker/1")


def test_a_partitioned_variable_of_which_one_part_is_not_in_the_map(make_job):
    job = make_job(ps=2, worker=1, unmapped=[("ps", 1)]).start_daemons()
    ps0, ps1, worker = job.start_all(("ps", 0), ("ps", 1), ("worker", 0))
    assert_trains(worker, 2, partitioned=True)
    assert_by_sealane(worker, "ps/0")
    assert_by_sealane(ps0, "worker/0")
    assert_by_grpc(worker, "ps/1")
    assert_by_grpc(ps1, "worker/0")
    assert worker.pairs()["ps/1"]["route"] == "grpc" and "endpoint map" in worker.pairs()["ps/1"]["why"]
    assert worker.log().count("/job:ps/replica:0/task:1 go by gRPC") == 1
    # The page shows these lines.
    [shown] = re.findall(r"```text\n(  Sealane: .*?)```", PAGE.read_text(), re.DOTALL)
    for task, address in {"worker0:2222": job.cluster["worker"][0], "ps1:2222": job.cluster["ps"][1]}.items():
        shown = shown.replace(task, address)
    assert [line for line in shown.splitlines() if line.strip() not in worker.log()] == []


def test_a_worker_that_is_not_in_the_map(make_job):
    job = make_job(ps=1, worker=2, unmapped=[("worker", 1)]).start_daemons()
    ps, mapped, unmapped = job.start_all(("ps", 0), ("worker", 0), ("worker", 1))
    assert_trains(unmapped, worker=1)
    assert_trains(mapped)
    assert_by_grpc(unmapped, "ps/0")
    assert_by_grpc(ps, "worker/1")
    assert_by_sealane(mapped, "ps/0")
    assert_by_sealane(ps, "worker/0")
    assert "/job:worker/replica:0/task:1" in unmapped.log() and "goes by gRPC" in unmapped.log()


@pytest.mark.parametrize("without", [{"SEALANE_TF": "off"}, {"protocol": "grpc"}, {"protocol": "grpc", "plugin": False}], ids=str)
@pytest.mark.parametrize("bare", ["ps", "worker"])
def test_one_task_without_the_plugin(make_job, bare, without):
    job = make_job(ps=1, worker=1).start_daemons()
    if bare == "ps":
        job.start("ps", **without)
        worker = with_plugin = job.start("worker")
    else:
        with_plugin = job.start("ps")
        worker = job.start("worker", **without)
    assert_trains(worker)
    assert_by_grpc(with_plugin, "worker/0" if bare == "worker" else "ps/0")


def test_the_protocol_of_deeprec(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    _, worker = job.start_all(("ps", 0), ("worker", 0), protocol="grpc++")
    assert_trains(worker)
    assert_by_sealane(worker, "ps/0")


def test_a_daemon_that_comes_later(make_job):
    job = make_job(ps=1, worker=1)
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    assert_by_grpc(worker, "ps/0")
    for node in (ps, worker):
        assert "goes by gRPC" in node.log() and "tried again until the daemon is there" in node.log()
    job.start_daemons()
    before = by_sealane(worker.pairs()["ps/0"])

    def changed():
        assert_trains(worker)
        return min(by_sealane(worker.pairs()["ps/0"])) > 0 and worker.pairs()["ps/0"]["route"] == "sealane"

    assert before == (0, 0)
    wait_until("tensors by Sealane both ways", changed)
    grpc = by_grpc(worker.pairs()["ps/0"])
    assert_trains(worker)
    assert by_grpc(worker.pairs()["ps/0"]) == grpc


def test_unreachable_daemon_is_the_logged_reason(make_job):
    job = make_job(ps=1, worker=1, daemons=2)
    job.daemons[1].start()
    _, worker = job.start_all(("ps", 0), ("worker", 0))
    assert_trains(worker)
    why = worker.pairs()["ps/0"]["why"]
    assert "Connection refused" in why and job.cluster["ps"][0] in why, why
    assert why in worker.log()


def test_missing_plugin_is_the_logged_reason(make_job):
    job = make_job(ps=1, worker=1, daemons=2).start_daemons()
    job.start("ps", SEALANE_TF="off")
    worker = job.start("worker")
    assert_trains(worker)
    why = worker.pairs()["ps/0"]["why"]
    assert "nobody takes from it" in why, why


def test_a_task_that_is_reached_by_another_name(make_job):
    """A session that calls the ps by a name that the map does not have goes by gRPC."""
    job = make_job(ps=1, worker=1).start_daemons()
    job.start("ps")
    address = job.cluster["ps"][0].replace("127.0.0.1", "localhost")
    worker = job.start("worker", cluster={**job.cluster, "ps": [address]})
    assert_trains(worker)
    assert worker.pairs()["ps/0"]["sealane"]["received_tensors"] == 0
