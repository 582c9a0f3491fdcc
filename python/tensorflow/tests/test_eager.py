"""Eager jobs and strategies: clusters that a chief connects to, ParameterServerStrategy, MultiWorkerMirroredStrategy."""

import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from cluster import Failed, pairs, wait_until
from tensorflow.python.eager import context

# --- A chief that connects --------------------------------------------------------------------------------------------------------------


def connect(cluster, job, protocol):
    """Connects this process, which has no server, to a cluster; and moves tensors between its tasks, eagerly and in functions."""
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster), job_name=job, protocol=protocol)
    given = []
    with tf.device("/job:ps/task:0"):
        variable = tf.Variable(tf.reshape(tf.range(10_000, dtype=tf.float32), [100, 100]))
        words = tf.constant(["a", "bc"])

    @tf.function
    def step():
        with tf.device("/job:worker/task:0"):
            total = tf.reduce_sum(variable.read_value() * 2.0)
            ones = tf.ones([100, 100]) + 0.0 * total
        with tf.device("/job:ps/task:0"):
            variable.assign_add(ones)
        return total

    for _ in range(3):
        given.append(float(step()))
    with tf.device("/job:worker/task:0"):
        given.append(float(tf.reduce_sum(variable.read_value())))
        given.append([each.decode() for each in tf.strings.join([words, "!"]).numpy()])
    given.append(float(variable.numpy().sum()))
    return given


SUM = float(np.arange(10_000).sum())


@pytest.mark.parametrize("mapped", [True, False])
def test_a_chief_connects_to_a_cluster(make_job, mapped):
    unmapped = () if mapped else [("chief", 0)]
    job = make_job(ps=1, worker=1, chief=1, unmapped=unmapped).start_daemons()
    # The chief tells them of itself.
    known = {each: job.cluster[each] for each in ("ps", "worker")}
    ps, worker = job.start_all(("ps", 0), ("worker", 0), cluster=known)
    chief = job.start("chief", server=False)
    given = chief.call(connect, job.cluster, "chief", "grpc+sealane")
    totals = [2 * (SUM + 10_000 * step) for step in range(3)]
    assert given[:4] == pytest.approx([*totals, SUM + 30_000], rel=1e-5)
    assert given[4] == ["a!", "bc!"] and given[5] == pytest.approx(SUM + 30_000, rel=1e-5)
    between = worker.pairs()["ps/0"]
    assert between["sealane"]["received_tensors"] >= 3 and between["sealane"]["sent_tensors"] >= 3, between
    assert between["grpc"]["received_tensors"] == between["grpc"]["sent_tensors"] == 0, between
    if not mapped:
        assert all(pair["sealane"]["received_tensors"] == 0 for pair in chief.pairs().values())


# --- ParameterServerStrategy --------------------------------------------------------------------------------------------------------------


def exchange(cluster, steps):
    """A coordinator's own pulls and pushes: reads variables of the parameter servers, and adds to them what is made here."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc+sealane"
    )
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(tf.fill([size], float(size))) for size in (10, 5000)]

    @tf.function
    def step(number):
        with tf.device("/job:chief/task:0/cpu:0"):
            pulled = [variable.read_value() * 1.0 for variable in variables]
            pushed = [tf.fill(tf.shape(value), number) + value for value in pulled]
        for variable, value in zip(variables, pushed):
            with tf.device(variable.device):
                variable.assign(value)
        return [tf.reduce_max(value) for value in pulled]

    given = [[float(value) for value in step(tf.constant(float(number)))] for number in range(steps)]
    return given, [float(variable.numpy().min()) for variable in variables], [variable.device for variable in variables]


def test_a_coordinators_own_tensors_go_by_sealane(make_job):
    job = make_job(ps=2, worker=1, chief=1).start_daemons()
    known = {each: job.cluster[each] for each in ("ps", "worker")}
    job.start_all(("ps", 0), ("ps", 1), ("worker", 0), cluster=known)
    chief = job.start("chief", server=False)
    given, last, devices = chief.call(exchange, job.cluster, 4)
    assert given == [[size + total for size in (10.0, 5000.0)] for total in (0, 0, 1, 3)]
    assert last == [16.0, 5006.0]
    assert ["/task:0/" in devices[0], "/task:1/" in devices[1]] == [True, True]
    found = chief.pairs()
    for name in ("ps/0", "ps/1"):
        # Four steps each way, and what is read in the end.
        assert found[name]["sealane"]["received_tensors"] >= 5 and found[name]["sealane"]["sent_tensors"] >= 4, found[name]
        assert found[name]["grpc"]["received_tensors"] == found[name]["grpc"]["sent_tensors"] == 0, found[name]


def coordinate(cluster, began, resume, protocol="grpc+sealane"):
    """Trains until the file `began` is there and, once `resume` is, some more. Gives the variables' values and how many steps there were."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer=protocol
    )
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([1000])) for _ in range(4)]

    @tf.function
    def step():
        pulled = [variable.read_value() for variable in variables]
        for variable, value in zip(variables, pulled):
            variable.assign_add(value * 0.0 + 1.0)
        return tf.add_n(pulled)

    steps = 0

    def some(count):
        nonlocal steps
        for _ in range(count):
            coordinator.schedule(step)
        coordinator.join()
        steps += count

    some(20)
    open(began, "w").close()
    while not os.path.exists(resume):
        some(5)
    some(20)
    return [float(variable.numpy().min()) for variable in variables], steps


def test_a_strategy_of_parameter_servers_goes_on_without_a_worker_that_was_preempted(make_job):
    job = make_job(ps=2, worker=2, chief=1).start_daemons()
    known = {each: job.cluster[each] for each in ("ps", "worker")}
    _, _, worker0, worker1 = job.start_all(("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), cluster=known)
    chief = job.start("chief", server=False)
    began, resume = job.directory / "began", job.directory / "resume"
    call = chief.begin(coordinate, job.cluster, str(began), str(resume))
    wait_until("the first steps", began.exists)
    worker1.kill()
    worker1 = job.start("worker", 1, cluster=known)

    def works():
        found = worker1.pairs()
        return all(name in found and found[name]["sealane"]["received_tensors"] > 0 for name in ("ps/0", "ps/1"))

    wait_until("the new worker pulls by Sealane", works)
    resume.touch()
    values, steps = call.result()
    # A step may have been made again whose worker was killed.
    assert all(steps <= value <= steps + 4 for value in values), (values, steps)
    for name in ("ps/0", "ps/1"):
        pair = worker0.pairs()[name]
        assert pair["sealane"]["received_tensors"] > 10 and pair["grpc"]["received_tensors"] == 0, pair


def test_a_strategy_of_parameter_servers_says_that_one_was_lost(make_job):
    job = make_job(ps=1, worker=1, chief=1).start_daemons()
    known = {each: job.cluster[each] for each in ("ps", "worker")}
    ps, worker = job.start_all(("ps", 0), ("worker", 0), cluster=known)
    began, never = job.directory / "began", job.directory / "never"
    chief = job.start("chief", server=False)
    call = chief.begin(coordinate, job.cluster, str(began), str(never))
    wait_until("the first steps", began.exists)
    ps.kill()
    with pytest.raises(Failed, match="^(Unavailable|Aborted)Error"):
        call.result()
    chief.kill()
    worker.kill()
    # As over gRPC, the job begins anew then.
    _, worker = job.start_all(("ps", 0), ("worker", 0), cluster=known)
    began.unlink()
    never.touch()
    values, steps = job.start("chief", server=False).call(coordinate, job.cluster, str(began), str(never))
    assert values == [float(steps)] * 4
    assert worker.pairs()["ps/0"]["sealane"]["received_tensors"] > 10


# --- MultiWorkerMirroredStrategy ----------------------------------------------------------------------------------------------------------


def mirrored(cluster, index, protocol="grpc+sealane"):
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}, "rpc_layer": protocol})
    implementation = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def mirror(cluster, index, protocol, types, count):
    """Adds and gathers tensors of all workers."""
    strategy = mirrored(cluster, index, protocol)
    given = []
    for name in types:

        @tf.function
        def step():
            def mine():
                replica = tf.distribute.get_replica_context()
                value = tf.cast(tf.range(count) % 5 + 1 + index, name)
                return replica.all_reduce("SUM", value), replica.all_gather(value[:4], axis=0)

            return strategy.run(mine)

        for _ in range(2):
            total, gathered = step()
        given.append((np.array(total, np.float64).sum(), np.array(gathered, np.float64).tolist()))
    return given, pairs()


@pytest.mark.parametrize("daemons", [1, 2])
@pytest.mark.parametrize("count", [10, 100_000])
def test_mirrored_workers_add_by_sealane(make_job, daemons, count):
    # Two daemons serve a worker each if one of them is called a ps: the addresses are what counts.
    job = make_job(ps=1, worker=1, daemons=daemons).start_daemons()
    workers = [job.begin(name, server=False) for name in ("ps", "worker")]
    cluster = {"worker": [*job.cluster["ps"], *job.cluster["worker"]]}
    types = ["float32", "float64", "float16", "int32", "int64"]
    calls = [worker.begin(mirror, cluster, index, "grpc+sealane", types, count) for index, worker in enumerate(workers)]
    for number, call in enumerate(calls):
        given, found = call.result()
        for total, gathered in given:
            assert total == sum(2 * (each % 5) + 3 for each in range(count))
            assert gathered == [1, 2, 3, 4, 2, 3, 4, 5]
        pair = found[f"worker/{1 - number}"]
        assert pair["sealane"]["sent_tensors"] >= 4 * len(types) and pair["sealane"]["received_tensors"] >= 4 * len(types), pair
        assert pair["grpc"]["received_tensors"] == pair["grpc"]["sent_tensors"] == 0, pair


def mirror_many(cluster, index, steps):
    """Adds a large tensor and many small ones of all workers at a time."""
    strategy = mirrored(cluster, index)

    @tf.function
    def step(number):
        def mine():
            replica = tf.distribute.get_replica_context()
            values = [tf.fill([size], number + index) for size in [400_000, *range(40, 60)]]
            return [tf.reduce_max(replica.all_reduce("SUM", value)) for value in values]

        return strategy.run(mine)

    return [set(np.array(step(tf.constant(float(number)))).tolist()) for number in range(steps)]


def mirror_until(cluster, index, began, given_up):
    """Adds until the other worker has given up, and once more; this worker gives up instead if it is the first."""
    strategy = mirrored(cluster, index)

    @tf.function
    def step():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.range(100)))

    for _ in range(3):
        step()
    if index == 0:
        tf.io.write_file(began, "")
        wait_until("the other worker is stopped", lambda: tf.io.gfile.exists(given_up))
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, "the first gives up")
        return pairs()
    wait_until("the first worker has given up", lambda: tf.io.gfile.exists(given_up))
    return step()


def test_a_mirrored_worker_that_was_stopped_hears_that_the_other_gave_up(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    workers = [job.begin(name, server=False) for name in ("ps", "worker")]
    cluster = {"worker": [*job.cluster["ps"], *job.cluster["worker"]]}
    began, given_up = job.directory / "began", job.directory / "given_up"
    calls = [worker.begin(mirror_until, cluster, index, str(began), str(given_up)) for index, worker in enumerate(workers)]
    wait_until("the first steps", began.exists)
    os.kill(workers[1].pid, signal.SIGSTOP)
    given_up.touch()
    assert calls[0].result()["worker/1"]["sealane"]["received_tensors"] > 0
    os.kill(workers[1].pid, signal.SIGCONT)
    with pytest.raises(Failed, match="^UnavailableError(.|\n)*the first gives up"):
        calls[1].result()


def test_mirrored_workers_go_on_by_grpc_where_an_arena_is_full(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    workers = [job.begin(name, server=False, SEALANE_TF_ARENA_BYTES=str(1 << 20)) for name in ("ps", "worker")]
    cluster = {"worker": [*job.cluster["ps"], *job.cluster["worker"]]}
    calls = [worker.begin(mirror_many, cluster, index, 100) for index, worker in enumerate(workers)]
    for call in calls:
        assert call.result() == [{2.0 * number + 1} for number in range(100)]
    assert any("use gRPC from now on" in worker.log_file.read_text() for worker in workers)
