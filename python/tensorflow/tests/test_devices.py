"""Tensors in the memory of a device that the host cannot read, as a GPU's: of a fake device, in jobs of one parameter server and one worker.
What gRPC does is what is right."""

import ctypes
import os
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

import cluster
from cluster import Failed, wait_until
from test_graph import outcome, traffic, values_of, written

v1 = tf.compat.v1
PS, WORKER = "/job:ps/task:0/", "/job:worker/task:0/"
FAKE, CPU = "device:FAKE:0", "cpu:0"
FROM_DEVICE, TO_DEVICE = 0, 1


# --- The device ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The fake device, as a shared object that TensorFlow loads."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]} to build the fake device with")
    made = tmp_path_factory.mktemp("fake") / "fake_device.so"
    flags = [flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag for flag in tf.sysconfig.get_compile_flags()]
    flags += ["-O1", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-Wall"]
    libraries = ["-L", tf.sysconfig.get_lib(), "-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2"]
    command = [*compiler, "-shared", *flags, Path(__file__).with_name("fake_device.cc"), "-o", made, *libraries]
    subprocess.run(command, check=True)
    return str(made)


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory):
    """A CUDA driver of the tests' own."""
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).parents[3] / "tests" / "fake_cuda" / "driver.c"
    command = ["cc", "-O1", "-fPIC", "-shared", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", made, source]
    subprocess.run(command, check=True)
    return str(made)


def load(driver):
    """Has this process find the driver by its name."""
    ctypes.CDLL(driver)


def make_server(library, task):
    """Makes this process's server, with the fake device."""
    global fake
    tf.load_library(library)
    fake = ctypes.CDLL(library)
    for each in (fake.fake_waiting, fake.fake_copied, fake.fake_blocks):
        each.restype = ctypes.c_int64
    fake.fake_room.argtypes = [ctypes.c_int64]
    cluster.make_server(task)


def start(job, library, protocol="grpc+sealane", driver=None, **environment):
    """Both tasks of a job, with the device; the worker's environment."""
    nodes = [job.begin("ps", server=False), job.begin("worker", server=False, **environment)]
    for node in nodes:
        cluster.Pending(node, 0).result()
    for node, name in zip(nodes, ("ps", "worker")):
        if driver is not None:
            node.call(load, driver)
        node.call(make_server, library, (job.cluster, name, 0, protocol))
    return nodes


def copied():
    """How many copies were made from this process's device, and to it."""
    return fake.fake_copied(FROM_DEVICE), fake.fake_copied(TO_DEVICE)


def hold(direction, held):
    fake.fake_hold(direction, held)


def fail(direction, failing):
    fake.fake_fail(direction, failing)


def room(bytes):
    fake.fake_room(bytes)


def waiting(direction):
    return fake.fake_waiting(direction)


def blocks():
    return fake.fake_blocks()


@pytest.fixture(scope="module")
def jobs(make_module_job, library):
    """The ps and the worker, by gRPC and by Sealane."""
    given = {}
    for protocol in ("grpc", "grpc+sealane"):
        job = make_module_job(ps=1, worker=1)
        if protocol != "grpc":
            job.start_daemons()
        given[protocol] = start(job, library, protocol)
    return given


@pytest.fixture
def both(jobs):
    """Calls a function on both workers; what it gives must be the same, and as many copies be made. Gives that, and how many tensors came to
    the worker by Sealane, and how many went from it."""

    def call(function, *arguments, by_grpc=0):
        expected, copies = counted(jobs["grpc"], function, arguments)
        worker = jobs["grpc+sealane"][1]
        before = traffic(worker)
        given, made = counted(jobs["grpc+sealane"], function, arguments)
        after = traffic(worker)
        assert repr(given) == repr(expected)
        assert after["grpc"] - before["grpc"] == by_grpc
        if by_grpc == 0:
            assert made == copies
        return given, after["received"] - before["received"], after["sent"] - before["sent"]

    def counted(nodes, function, arguments):
        before = [node.call(copied) for node in nodes]
        given = outcome(nodes[1], function, arguments)
        after = [node.call(copied) for node in nodes]
        return given, [(now[0] - then[0], now[1] - then[1]) for now, then in zip(after, before)]

    return call


# --- There and back -----------------------------------------------------------------------------------------------------------------------


def echo(name, shape, there, here):
    """Sends a tensor from a device of the ps to one of the worker, and back; and gives what it is in the end."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            values = tf.identity(values_of(tf.as_dtype(name), shape))
            first = written(values)
        with tf.device(PS + there):
            source = tf.identity(values)
        with tf.device(WORKER + here):
            came = tf.identity(source)
        with tf.device(WORKER + CPU):
            at_worker = written(came)
        with tf.device(PS + there):
            back = tf.identity(came)
        with tf.device(PS + CPU):
            at_ps = written(back)
    with cluster.session(graph) as session:
        shown = [each if isinstance(each, bytes) else each.tobytes() for each in session.run([first, at_worker, at_ps])]
    assert shown[0] == shown[1] == shown[2], [each[:200] for each in shown]
    return shown[0]


WAYS = pytest.mark.parametrize("there, here", [(FAKE, FAKE), (FAKE, CPU), (CPU, FAKE)], ids=["device-device", "device-cpu", "cpu-device"])
TYPES = "bfloat16 bool complex128 complex64 float16 float32 float64 float8_e5m2 int16 int32 int64 int8 qint8 string uint16 uint32 uint64 uint8"


@WAYS
@pytest.mark.parametrize("name", TYPES.split())
def test_every_type_goes_there_and_back(both, name, there, here):
    outcome, received, sent = both(echo, name, [3, 5], there, here)
    assert not isinstance(outcome, Failed), outcome
    assert (received, sent) == (3, 1)


BYTES = pytest.mark.parametrize("bytes", [400, 40_000, 4 << 20])
# Beside: scalar, empty, within a bundle, announced, several MB, longer than what the arena lends.
SHAPES = [[], [0], [3, 0, 2], [1023], [1024], [1025], [50, 100], [3 << 20]]


@WAYS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_goes_there_and_back(both, shape, there, here):
    outcome, received, sent = both(echo, "float32", shape, there, here)
    assert not isinstance(outcome, Failed), outcome
    assert (received, sent) == (3, 1)


def test_tensors_are_copied_into_an_arena_that_the_driver_has_pinned(make_job, library, cuda_driver):
    job = make_job(ps=1, worker=1).start_daemons()
    nodes = start(job, library, driver=cuda_driver, TF_CPP_MIN_LOG_LEVEL="0")
    for shape in SHAPES:
        values = outcome(nodes[1], echo, ("float32", shape, FAKE, FAKE))
        assert not isinstance(values, Failed), values
    nodes[1].wait_for_line("tensors of GPUs are copied to and from the arena, which is pinned")


def test_an_arena_that_is_not_pinned_is_told_of(jobs):
    values = outcome(jobs["grpc+sealane"][1], echo, ("float32", [50, 100], FAKE, FAKE))
    assert not isinstance(values, Failed), values
    for node in jobs["grpc+sealane"]:
        node.wait_for_line("twice, as the arena is not pinned: Sealane: the CUDA driver is unavailable")


def lists(there, here):
    """Sends a list of tensors, which lie in the device's memory while the list itself does not."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            values = tf.reshape(tf.range(6000.0), [3, 2000])
            made = tf.raw_ops.TensorListFromTensor(tensor=values, element_shape=tf.constant([2000]))
        with tf.device(PS + there):
            source = tf.identity(made)
        with tf.device(WORKER + here):
            came = tf.identity(source)
        with tf.device(WORKER + CPU):
            shown = tf.raw_ops.TensorListStack(input_handle=came, element_shape=tf.constant([2000]), element_dtype=tf.float32)
    with cluster.session(graph) as session:
        return [session.run(shown).sum(axis=1).tolist() for _ in range(2)]


@WAYS
def test_lists_of_tensors_arrive(both, there, here):
    outcome, received, _ = both(lists, there, here)
    assert outcome == [[1999000.0, 5999000.0, 9999000.0]] * 2
    assert received == 2


def shapes():
    """Sends from a device to a device what lies in host memory there: a shape."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            size = v1.placeholder(tf.int32, [])
            source = tf.fill([size, 3], 1.0)
        with tf.device(PS + FAKE):
            shape = tf.shape(tf.identity(source))
        with tf.device(WORKER + FAKE):
            reshaped = tf.reshape(tf.zeros([21]), shape)
        with tf.device(WORKER + CPU):
            shown = tf.identity(reshaped)
    with cluster.session(graph) as session:
        return [session.run(shown, {size: 7}).shape for _ in range(2)]


def test_what_devices_keep_in_host_memory_arrives(both):
    outcome, received, _ = both(shapes)
    assert outcome == [(7, 3)] * 2
    assert received == 2


def branches():
    """Both sides of a condition, from device to device: what is not taken goes as a dead tensor."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            which = v1.placeholder(tf.bool, [])
            source = tf.fill([2000], 1.0)
        with tf.device(PS + FAKE):
            off, on = tf.raw_ops.Switch(data=tf.identity(source), pred=which)
        with tf.device(WORKER + FAKE):
            first, second = tf.identity(off), tf.identity(on)
        with tf.device(PS + FAKE):
            merged = tf.raw_ops.Merge(inputs=[tf.identity(first), tf.identity(second)])
        with tf.device(WORKER + CPU):
            total, index = tf.reduce_sum(merged.output), tf.identity(merged.value_index)
    with cluster.session(graph) as session:
        return [[float(each) for each in session.run([total, index], {which: value})] for value in (True, False, True)]


def test_dead_tensors_go_from_device_to_device(both):
    outcome, received, sent = both(branches)
    assert outcome == [[2000.0, 1.0], [2000.0, 0.0], [2000.0, 1.0]]
    assert (received, sent) == (12, 9)


def edge(kind, session, tensor, device):
    """TensorFlow's own op that sends from device to device, or asks; always under the same key."""
    incarnation = next(each.incarnation for each in session.list_devices() if "job:ps/" in each.name and each.device_type == "FAKE")
    value = v1.AttrValue
    attributes = {
        "tensor_name": value(s=b"twice"),
        "send_device": value(s=b"/job:ps/replica:0/task:0/device:FAKE:0"),
        "send_device_incarnation": value(i=incarnation),
        "recv_device": value(s=b"/job:worker/replica:0/task:0/device:FAKE:0"),
        "client_terminated": value(b=False),
        "T" if kind == "_Send" else "tensor_type": value(type=tf.float32.as_datatype_enum),
    }
    with tf.device(device):
        inputs, types = ([tensor], []) if kind == "_Send" else ([], [tf.float32])
        return session.graph.create_op(kind, inputs, types, attrs=attributes, name="edge")


def again(count, bytes):
    """Sends several tensors under one key in a step, and asks as often: gives the order in which they come."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        came, sent, received = [], [], []
        for number in range(count):
            with tf.device(PS + CPU):
                filled = tf.fill([bytes // 4], float(number))
            with tf.device(PS + FAKE), tf.control_dependencies(sent):
                tensor = tf.identity(filled)
            sent = [edge("_Send", session, tensor, PS + FAKE)]
            with tf.control_dependencies(received):
                received = [edge("_Recv", session, None, WORKER + FAKE)]
            with tf.device(WORKER + CPU):
                came.append(tf.identity(received[0].outputs[0])[0])
        return [session.run([came, *sent])[0] for _ in range(3)]


@BYTES
def test_what_has_one_key_comes_in_order(both, bytes):
    outcome, received, _ = both(again, 5, bytes)
    assert [list(each) for each in outcome] == [[0, 1, 2, 3, 4]] * 3
    assert received == 15


# --- Copies that fail ---------------------------------------------------------------------------------------------------------------------


def once(bytes, there=FAKE, here=FAKE):
    """A step that sends a tensor of so many bytes from device to device: what comes, or how it fails."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            value = v1.placeholder(tf.float32, [])
            source = tf.fill([bytes // 4], value)
        with tf.device(PS + there):
            sent = tf.identity(source)
        with tf.device(WORKER + here):
            came = tf.identity(sent)
        with tf.device(WORKER + CPU):
            shown = tf.reduce_max(came) + tf.reduce_min(came)
    with cluster.session(graph) as session:
        try:
            return float(session.run(shown, {value: 3.0}))
        except tf.errors.OpError as error:
            return type(error).__name__, error.message


@BYTES
@pytest.mark.parametrize("task, direction", [("ps", FROM_DEVICE), ("worker", TO_DEVICE)])
@pytest.mark.parametrize("protocol", ["grpc", "grpc+sealane"])
def test_a_copy_that_fails_fails_the_step(jobs, protocol, task, direction, bytes):
    nodes = jobs[protocol]
    node, worker = nodes[task == "worker"], nodes[1]
    assert worker.call(once, bytes) == 6.0
    node.call(fail, direction, True)
    try:
        kind, message = worker.call(once, bytes)
    finally:
        node.call(fail, direction, False)
    # What gRPC says where it fails at the consumer.
    told = "parse" if (protocol, task) == ("grpc", "worker") else "the fake device was told to fail"
    assert kind == "InternalError" and told in message
    assert worker.call(once, bytes) == 6.0


@BYTES
@pytest.mark.parametrize("protocol", ["grpc", "grpc+sealane"])
def test_a_device_without_room_fails_the_step(jobs, protocol, bytes):
    worker = jobs[protocol][1]
    assert worker.call(once, bytes) == 6.0
    worker.call(room, 64)
    try:
        kind, message = worker.call(once, bytes)
    finally:
        worker.call(room, -1)
    # gRPC says what it says of all that it cannot make a tensor of.
    assert (kind, "parse" in message) == (("InternalError", True) if protocol == "grpc" else ("ResourceExhaustedError", False))
    assert worker.call(once, bytes) == 6.0


# --- Copies that take long ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(make_module_job, jobs):
    """A process that has steps run, so that the tasks' own answer meanwhile."""
    job = make_module_job.jobs[-1]
    node = job.begin("client", server=False)
    cluster.Pending(node, 0).result()
    node.call(connect, f"grpc://{job.cluster['worker'][0]}")
    return node


def connect(target):
    cluster.server = SimpleNamespace(target=target)


def give_up(bytes, path):
    """A step that is aborted, when there is a file, while a tensor is on its way from device to device; gives how it ends."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS + CPU):
            source = tf.fill([bytes // 4], v1.placeholder_with_default(3.0, []))
        with tf.device(PS + FAKE):
            sent = tf.identity(source)
        with tf.device(WORKER + FAKE):
            came = tf.identity(sent)
        with tf.device(WORKER + CPU):
            shown = tf.identity(came)
            queue = v1.FIFOQueue(1, tf.float32, [[]], shared_name=path)
            taken, close = queue.dequeue(), queue.close()
    ended = []

    def run():
        try:
            ended.append(session.run([shown, taken]))
        except tf.errors.OpError as error:
            ended.append(type(error).__name__)

    with cluster.session(graph) as session:
        thread = threading.Thread(target=run)
        thread.start()
        wait_until("what the step is aborted for", lambda: os.path.exists(path))
        session.run(close)
        thread.join(cluster.STUCK)
    return ended[0]


@pytest.mark.parametrize("task, direction", [("ps", FROM_DEVICE), ("worker", TO_DEVICE)])
@BYTES
def test_a_step_may_be_aborted_while_a_tensor_is_copied(jobs, driver, tmp_path, task, direction, bytes):
    node = jobs["grpc+sealane"][task == "worker"]
    assert driver.call(once, bytes) == 6.0
    for number in range(30):
        path = tmp_path / str(number)
        node.call(hold, direction, True)
        try:
            step = driver.begin(give_up, bytes, str(path))
            wait_until("a copy that waits", lambda: node.call(waiting, direction) > 0)
            path.touch()
            # What is sent does not keep the step; what is received does.
            if task == "ps":
                assert step.result() == "OutOfRangeError"
        finally:
            node.call(hold, direction, False)
        # Else the next step may be aborted for this one's copy, before the ps has begun it; TensorFlow then runs it after its
        # clean-up, and keeps what it sends for good.
        wait_until("the copy's end", lambda: node.call(waiting, direction) == 0)
        if task == "worker":
            assert step.result() == "OutOfRangeError"
    assert driver.call(once, bytes) == 6.0
    for each in jobs["grpc+sealane"]:
        wait_until("nothing is left on the device", lambda: each.call(blocks) == 0)


@pytest.mark.parametrize("there", [FAKE, CPU])
def test_a_list_that_is_copied_keeps_nobody_waiting(jobs, driver, there):
    worker = jobs["grpc+sealane"][1]
    worker.call(hold, TO_DEVICE, True)
    try:
        step = driver.begin(lists, there, FAKE)
        wait_until("a copy that waits", lambda: worker.call(waiting, TO_DEVICE) > 0)
        assert worker.call(once, 40_000, FAKE, CPU) == 6.0
    finally:
        worker.call(hold, TO_DEVICE, False)
    assert step.result() == [[1999000.0, 5999000.0, 9999000.0]] * 2


@BYTES
def test_a_tensor_may_be_asked_for_by_grpc_while_it_is_copied(make_job, library, bytes):
    # The worker's arena has no room for what comes by Sealane, as the ps does not know.
    job = make_job(ps=1, worker=1).start_daemons()
    ps, worker = start(job, library, SEALANE_TF_ARENA_BYTES=str(64 << 10))
    assert worker.call(once, bytes) == 6.0
    for _ in range(10):
        before = worker.pairs()["ps/0"]["grpc"]["received_tensors"]
        ps.call(hold, FROM_DEVICE, True)
        step = worker.begin(once, bytes)
        wait_until("a copy that waits", lambda: ps.call(waiting, FROM_DEVICE) > 0)
        ps.call(hold, FROM_DEVICE, False)
        assert step.result() == 6.0
        assert worker.pairs()["ps/0"]["grpc"]["received_tensors"] > before
