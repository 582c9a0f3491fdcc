"""Keys whose tensors go alone, without a bundle (alone.h): what changes about such a key, and steps side by side."""

import json
import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf
from test_graph import PS, TYPES, WORKER, edge, values_of, written

import cluster

v1 = tf.compat.v1


# --- Every order, of a model ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Runs the model with a fault, or with none: how many states it has, and in how many of them something would wait for ever."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]} to build the model with")
    made, here = tmp_path_factory.mktemp("model") / "alone_model", Path(__file__).parent
    plugin = here.parent / "plugin"
    flags = [flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag for flag in tf.sysconfig.get_compile_flags()]
    libraries = [f"-L{tf.sysconfig.get_lib()}", f"-Wl,-rpath,{tf.sysconfig.get_lib()}", "-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2"]
    sources = [here / "alone_model.cc", plugin / "alone.cc"]
    subprocess.run([*compiler, *flags, "-O1", "-Wall", "-Wextra", "-I", plugin, *sources, "-o", made, *libraries], check=True)

    def run(*faults):
        done = subprocess.run([made, *faults], capture_output=True, text=True, check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        counts, _, shown = done.stdout.partition("\n")
        return json.loads(counts), shown

    return run


def test_no_order_of_events_makes_a_step_wait_for_ever(model):
    found, shown = model()
    assert found["stuck"] == found["unseen"] == 0, shown
    assert found["states"] > 100_000


@pytest.mark.parametrize("fault", ["believes", "hides", "gives_up", "hastes", "forgets"])
def test_the_model_finds_faults_and_so_do_the_sweeps_of_the_plugin(model, fault):
    found, shown = model(fault)
    assert found["stuck"] > 0 and found["unseen"] == 0, shown


# --- Jobs ---------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(make_module_job):
    """A job whose worker asks its ps by Sealane."""
    job = make_module_job(ps=1, worker=1).start_daemons()
    _, worker = job.start_all(("ps", 0), ("worker", 0))
    return worker


def by_grpc(worker):
    """How many tensors of the ps came by gRPC, and how many of those because they were sent in another way than they were waited for."""
    pair = worker.pairs().get("ps/0")
    return (pair["grpc"]["received_tensors"], pair["unmet"]) if pair else (0, 0)


# A step that takes as long is a hang. Of another than the first of a worker, no step here takes a hundredth of it.
STEP_MS = 30_000


# Stands for the type of a tensor without a value, of a branch that is not taken.
DEAD = "dead"


def fetch(key, kinds):
    """Sends the worker tensors of these types and shapes under one key, each in a session of its own; gives what came, in bytes."""
    came = []
    for name, shape in kinds:
        graph = tf.Graph()
        with cluster.session(graph) as session, graph.as_default():
            dead = name == DEAD
            dtype = tf.as_dtype("float32" if dead else name)
            with tf.device(PS):
                source = tf.identity(values_of(dtype, shape))
                first = tf.constant(DEAD) if dead else written(source)
                if dead:
                    source = tf.raw_ops.Switch(data=source, pred=False).output_true
                sent = edge("_Send", session, source, key, dtype, PS)
            with tf.device(WORKER):
                there = written(edge("_Recv", session, None, key, dtype, WORKER))
                if dead:
                    there = tf.raw_ops.Merge(inputs=[there, tf.raw_ops.Switch(data=DEAD, pred=True).output_true]).output
            first, there, _ = session.run([first, there, sent], options=v1.RunOptions(timeout_in_ms=STEP_MS))
        first, there = (each if isinstance(each, bytes) else each.tobytes() for each in (first, there))
        came.append(first == there)
    return came


LARGE = ("float32", [2000])


# Of those that this release of TensorFlow has.
KINDS = {"string": [3], "int4": [3], "float4_e2m1fn": [4], "qint8": [5], "variant": [2, 2], "bool": [], DEAD: [2000]}


@pytest.mark.parametrize("kind", [(name, shape) for name, shape in KINDS.items() if name in [*TYPES, DEAD]], ids=str)
def test_a_key_may_change_its_type(worker, kind):
    before = by_grpc(worker)
    kinds = [LARGE] * 4 + [kind] * 2 + [LARGE] * 2 + [("string", [3000]), kind, LARGE]
    assert worker.call(fetch, f"changes {kind}", kinds) == [True] * len(kinds)
    assert by_grpc(worker) == before


def side_by_side(threads, steps, small):
    """Steps of one session side by side, whose tensor grows or, where `small`, is large at first and then small; gives how many were right."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            count = v1.placeholder(tf.int32, [])
            source = tf.range(count)
        with tf.device(WORKER):
            total = tf.reduce_sum(tf.cast(tf.identity(source), tf.int64))
    with cluster.session(graph) as session:

        def run(count):
            given = session.run(total, {count_of: count}, options=v1.RunOptions(timeout_in_ms=STEP_MS))
            return int(given) == count * (count - 1) // 2

        count_of = count
        sizes = [2000 if step < 8 else 100 + step for step in range(steps)] if small else [1500 + 40 * step for step in range(steps)]
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(run, sizes))


@pytest.mark.parametrize("small", [False, True])
def test_steps_side_by_side_whose_tensors_differ(worker, small):
    steps = 400
    before = by_grpc(worker)
    assert worker.call(side_by_side, 4, steps, small) == steps
    # None of those that Sealane lost was brought by gRPC.
    assert by_grpc(worker) == before
