"""Graph jobs of one parameter server and one worker: every type and shape, control flow, failures. What gRPC does is what is right."""

import numpy as np
import pytest
import tensorflow as tf

import cluster
from cluster import Failed

v1 = tf.compat.v1
PS, WORKER = "/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0"
TYPES = sorted({each.name for module in (tf.dtypes, tf.dtypes.experimental) for each in vars(module).values() if isinstance(each, tf.DType)})
# Those for which TensorFlow has hardly any kernels.
NARROW = [tf.as_dtype(name) for name in TYPES if name.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2"))]


@pytest.fixture(scope="module")
def pairs(make_module_job):
    """A worker each whose parameter server is reached by gRPC, and by Sealane."""
    workers = {}
    for protocol in ("grpc", "grpc+sealane"):
        job = make_module_job(ps=1, worker=1)
        if protocol != "grpc":
            job.start_daemons()
        _, workers[protocol] = job.start_all(("ps", 0), ("worker", 0), protocol=protocol)
    return workers


@pytest.fixture
def both(pairs):
    """Calls a function on both workers; what it gives must be the same. Gives that, and how many tensors came to the worker by Sealane, and
    how many went from it."""

    def call(function, *arguments, by_grpc=0):
        expected = outcome(pairs["grpc"], function, arguments)
        worker = pairs["grpc+sealane"]
        before = traffic(worker)
        given = outcome(worker, function, arguments)
        after = traffic(worker)
        assert repr(given) == repr(expected)
        assert after["grpc"] - before["grpc"] == by_grpc
        return given, after["received"] - before["received"], after["sent"] - before["sent"]

    return call


def outcome(worker, function, arguments):
    try:
        return worker.call(function, *arguments)
    except Failed as failed:
        return failed


def traffic(worker):
    pair = worker.pairs().get("ps/0")
    if pair is None:
        return {"received": 0, "sent": 0, "grpc": 0}
    return {
        "received": pair["sealane"]["received_tensors"],
        "sent": pair["sealane"]["sent_tensors"],
        "grpc": pair["grpc"]["received_tensors"] + pair["grpc"]["sent_tensors"],
    }


# --- Types and shapes ---------------------------------------------------------------------------------------------------------------------


def values_of(dtype, shape):
    """Values of a type, on the device of the caller's; as TensorFlow makes them of what it can be fed with."""
    count = int(np.prod(shape))
    if dtype == tf.string:
        return tf.constant(np.array([b"\0x%d" % i * (i % 7) for i in range(count)], object).reshape(shape), tf.string)
    if dtype == tf.variant:
        return tf.raw_ops.TensorListFromTensor(tensor=tf.reshape(tf.range(count), shape), element_shape=tf.constant(shape[1:], tf.int32))
    if dtype == tf.resource:
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="far", container="")
    if dtype in NARROW:
        return tf.constant((np.arange(count).reshape(shape) % 2).astype(dtype.as_numpy_dtype), dtype)
    numbers = tf.constant(np.arange(count).reshape(shape) % 100, tf.int32)
    if dtype.is_quantized:
        plain = {1: tf.uint8 if dtype == tf.quint8 else tf.int8, 2: tf.int16, 4: tf.int32}[dtype.size]
        return tf.bitcast(tf.cast(numbers, plain), dtype)
    if dtype.is_complex:
        return tf.complex(tf.cast(numbers, dtype.real_dtype), tf.cast(-numbers, dtype.real_dtype))
    return tf.cast(numbers % 2 if dtype == tf.bool else numbers, dtype)


def written(tensor):
    """A tensor as a string; or, where TensorFlow has no kernels for its type, as it is."""
    dtype = tensor.dtype
    if dtype.is_quantized:
        tensor = tf.bitcast(tensor, {1: tf.uint8, 2: tf.uint16, 4: tf.int32}[dtype.size])
    return tf.identity(tensor) if dtype in NARROW else tf.io.serialize_tensor(tensor)


def echo(name, shape):
    """Sends a tensor from the ps to the worker and back, and gives what it is in the end."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            source = tf.identity(values_of(tf.as_dtype(name), shape))
            first = written(source)
        with tf.device(WORKER):
            here = tf.identity(source)
            there = written(here)
        with tf.device(PS):
            back = written(tf.identity(here))
    with cluster.session(graph) as session:
        first, there, back = (each if isinstance(each, bytes) else each.tobytes() for each in session.run([first, there, back]))
    assert first == there == back, (first[:200], there[:200], back[:200])
    return first


@pytest.mark.parametrize("name", [name for name in TYPES if name != "resource"])
def test_every_type_goes_there_and_back(both, name):
    outcome, received, sent = both(echo, name, [3, 5])
    assert not isinstance(outcome, Failed), outcome
    assert (received, sent) == (3, 1)  # What is fetched from the ps goes to the worker too, as a string.


SHAPES = [[], [0], [0, 3], [3, 0, 2], [1], [1, 2, 1, 3, 1, 2, 1, 2], [127], [129], [1023], [1024], [5000]]


@pytest.mark.parametrize("name", ["float32", "string", "bool", "complex128", "qint8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_goes_there_and_back(both, name, shape):
    outcome, received, sent = both(echo, name, shape)
    assert not isinstance(outcome, Failed), outcome
    assert (received, sent) == (3, 1)


def sums(count, steps):
    """Sends so many float32 from the ps to the worker and, increased, back; gives sums of both."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            start = v1.placeholder(tf.float32, [])
            source = tf.fill([count], start)
        with tf.device(WORKER):
            here = source + 1.0
            there = tf.reduce_max(here) + tf.reduce_min(here)
        with tf.device(PS):
            back = tf.reduce_max(here) + tf.reduce_min(here)
    with cluster.session(graph) as session:
        return [session.run([there, back], {start: step}) for step in range(steps)]


# Bytes of a tensor, beside: in the daemon's ring; copied; lent; announced, as it is longer than 8 MiB; longer than the daemon's own room.
@pytest.mark.parametrize("bytes", [512, 516, 4 << 20, 8 << 20, (8 << 20) + 4, 100 << 20])
def test_long_tensors_arrive(both, bytes):
    outcome, received, sent = both(sums, bytes // 4, 3)
    assert outcome == [[2.0 * step + 2] * 2 for step in range(3)]
    assert sent >= 3 and received >= 3


def varied(counts):
    """Sends as many float32 as are named, step after step, or a dead tensor where none are; gives their sums."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            count = v1.placeholder(tf.int32, [])
            source = tf.raw_ops.Switch(data=tf.range(tf.abs(count)), pred=count >= 0).output_true
        with tf.device(WORKER):
            total = tf.reduce_sum(tf.identity(source))
            result = tf.raw_ops.Merge(inputs=[total, tf.raw_ops.Switch(data=-1, pred=count < 0).output_true]).output
    with cluster.session(graph) as session:
        return [int(session.run(result, {count: each})) for each in counts]


def test_tensors_of_a_key_may_differ_in_size_from_step_to_step(both):
    counts = [1500] * 4 + [0, 3, 128, 129, 1500, -1, 1023, 1024, 1501, 1500, 9000, 9500, -1, 0, 60_000, 1500, 5000, 1] * 2
    outcome, _, sent = both(varied, counts)
    assert outcome == [-1 if each < 0 else sum(range(each)) for each in counts]
    assert sent >= len(counts)


def keep(count, variables):
    """Assigns tensors of the ps to variables of the worker, step after step; gives the values of all in the end."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            start = v1.placeholder(tf.float32, [])
            sources = [tf.fill([count], start + number) for number in range(variables)]
        with tf.device(WORKER):
            kept = [v1.get_variable(f"kept{number}", [count], tf.float32, use_resource=True) for number in range(variables)]
            assigned = tf.group(*[variable.assign(source) for variable, source in zip(kept, sources)])
            shown = tf.stack([tf.reduce_max(variable) + tf.reduce_min(variable) for variable in kept])
            raised = tf.group(*[variable.assign_add(tf.ones([count])) for variable in kept])
    with cluster.session(graph) as session:
        for step in range(4):
            session.run(assigned, {start: step})
            session.run(raised)
        return session.run(shown).tolist()


def test_variables_may_keep_what_came(both):
    # 48 MiB at a time, of which some are lent.
    outcome, received, _ = both(keep, 1 << 20, 12)
    assert outcome == [2.0 * (3 + 1 + number) for number in range(12)]
    assert received >= 48


@pytest.fixture
def small(make_job):
    """A worker with hardly any arena, and a parameter server likewise."""
    job = make_job(ps=1, worker=1, settings=["daemon.area_bytes=4MiB"]).start_daemons()
    return job.start_all(("ps", 0), ("worker", 0), SEALANE_TF_ARENA_BYTES=str(1 << 20), SEALANE_TF_LENT_BYTES=str(64 << 10))[1]


def test_without_room_in_the_arena_tensors_arrive_all_the_same(small):
    # The first is small, so that the pair is settled.
    for bytes in (400, 100_000, 2 << 20, 12 << 20):
        assert small.call(sums, bytes // 4, 3) == [[2.0 * step + 2] * 2 for step in range(3)]
    assert small.call(keep, 10_000, 20) == [2.0 * (3 + 1 + number) for number in range(20)]
    pair = small.pairs()["ps/0"]
    assert pair["sealane"]["received_tensors"] >= 10 and pair["sealane"]["sent_tensors"] >= 6, pair
    assert pair["route"] == "sealane", pair


# --- Control flow -------------------------------------------------------------------------------------------------------------------------


def branches():
    """Both sides of a condition that the ps has, with branches at both tasks: what is not taken goes as a dead tensor."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            which = v1.placeholder(tf.bool, [])
            source = tf.fill([1000], 1.0)
            off, on = tf.raw_ops.Switch(data=source, pred=which)
        with tf.device(WORKER):
            doubled = on * 2.0
            tripled = off * 3.0
        with tf.device(PS):
            merged = tf.raw_ops.Merge(inputs=[tripled, doubled])
        with tf.device(WORKER):
            total, index = tf.reduce_sum(merged.output), tf.identity(merged.value_index)
    with cluster.session(graph) as session:
        return [[float(each) for each in session.run([total, index], {which: value})] for value in (True, False, True)]


def test_dead_tensors_go_both_ways(both):
    outcome, received, sent = both(branches)
    assert outcome == [[2000.0, 1.0], [3000.0, 0.0], [2000.0, 1.0]]
    # A step: a live one and a dead one there, the same back, then two of the result; and what is fed, from the worker.
    assert (received, sent) == (12, 9)


def conditions():
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            which = v1.placeholder(tf.bool, [])
            source = tf.range(10)

        def taken():
            with tf.device(WORKER):
                doubled = source * 2
            with tf.device(PS):
                return doubled + 1

        def otherwise():
            with tf.device(WORKER):
                return source * 3

        with tf.device(WORKER):
            result = tf.identity(v1.cond(which, taken, otherwise))
    with cluster.session(graph) as session:
        return [session.run(result, {which: value}).tolist() for value in (True, False, True)]


def test_conditions_span_tasks(both):
    outcome, received, sent = both(conditions)
    assert outcome == [[2 * each + 1 for each in range(10)], [3 * each for each in range(10)], [2 * each + 1 for each in range(10)]]
    assert received > 0 and sent > 0


def loop(rounds):
    """Each round goes to the worker and back: the same edge again and again, by the number of the iteration."""
    v1.disable_control_flow_v2()
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            start = v1.placeholder(tf.int32, [])

            def body(number, total):
                with tf.device(WORKER):
                    more = total + number
                with tf.device(PS):
                    return number + 1, more * 2 % 1009

            _, total = v1.while_loop(lambda number, _: number < rounds, body, (0, start))
        with tf.device(WORKER):
            result = tf.identity(total)
    with cluster.session(graph) as session:
        return [int(session.run(result, {start: value})) for value in (1, 5)]


def test_loops_span_tasks(both):
    def expected(total):
        for number in range(100):
            total = (total + number) * 2 % 1009
        return total

    outcome, received, sent = both(loop, 100)
    assert outcome == [expected(1), expected(5)]
    assert received >= 200 and sent >= 200


def edge(kind, session, tensor, key, dtype, device):
    """TensorFlow's own op that sends to another task, or asks it; which Python has no function for."""
    incarnation = next(each.incarnation for each in session.list_devices() if "job:ps/" in each.name and each.device_type == "CPU")
    value = v1.AttrValue
    attributes = {
        "tensor_name": value(s=key.encode()),
        "send_device": value(s=b"/job:ps/replica:0/task:0/device:CPU:0"),
        "send_device_incarnation": value(i=incarnation),
        "recv_device": value(s=b"/job:worker/replica:0/task:0/device:CPU:0"),
        "client_terminated": value(b=False),
        "T" if kind == "_Send" else "tensor_type": value(type=dtype.as_datatype_enum),
    }
    with tf.device(device):
        if kind == "_Send":
            return session.graph.create_op(kind, [tensor], [], attrs=attributes, name="edge")
        return session.graph.create_op(kind, [], [dtype], attrs=attributes, name="edge").outputs[0]


def duplicates(sizes, ask_first, key="twice"):
    """Sends tensors of so many bytes under one key in a step, and asks as often: gives the order in which they come."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        came, last = [], []
        for number, bytes in enumerate(sizes):
            with tf.device(PS):
                with tf.control_dependencies(last):
                    tensor = tf.identity(tf.fill([bytes // 4], float(number)))
            last = [edge("_Send", session, tensor, key, tf.float32, PS)]
        sent, last = last, []
        for _ in sizes:
            with tf.control_dependencies(last):
                received = edge("_Recv", session, None, key, tf.float32, WORKER)
            came.append(received[0])
            if not ask_first:
                last = [received.op]
        return [session.run([came, *sent])[0] for _ in range(3)]


@pytest.mark.parametrize("bytes", [4, 40_000, 9 << 20])
def test_what_has_one_key_comes_in_order(both, bytes):
    outcome, received, _ = both(duplicates, [bytes] * 5, False)
    assert [list(each) for each in outcome] == [[0, 1, 2, 3, 4]] * 3
    assert received == 15


def test_what_has_one_key_comes_in_order_where_grpc_takes_some_of_it(small):
    small.call(sums, 100, 1)  # Settles the pair.
    sizes = [40_000, 2 << 20, 40_000, 40, 2 << 20, 2 << 20, 60_000, 40] * 3
    for attempt in range(12):
        for step in small.call(duplicates, sizes, False, f"twice {attempt}"):
            assert list(step) == list(range(len(sizes))), attempt
    pair = small.pairs()["ps/0"]
    assert pair["sealane"]["received_tensors"] > 40 and pair["grpc"]["received_tensors"] > 20, pair


def test_what_is_asked_for_at_once_under_one_key_comes_once_each(pairs):
    worker = pairs["grpc+sealane"]
    for step in worker.call(duplicates, [400] * 20, True):
        assert sorted(step) == list(range(20))


def handles():
    """A resource's handle, which TensorFlow itself would keep on its device."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        with tf.device(PS):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2, 3], shared_name="far", container="here")
            sent = edge("_Send", session, handle, "handle", tf.resource, PS)
        with tf.device(WORKER):
            shown = tf.io.serialize_tensor(edge("_Recv", session, None, "handle", tf.resource, WORKER))
        return session.run([shown, sent])[0]


def test_handles_of_resources_are_sent(both):
    outcome, received, _ = both(handles)
    assert b"far" in outcome and b"here" in outcome
    assert received == 1


# --- Failures -----------------------------------------------------------------------------------------------------------------------------


def fails(where):
    """A step whose op fails at one task while the other waits for it; then one that does not."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            divisor = v1.placeholder(tf.int32, [])
        with tf.device(PS if where == "ps" else WORKER):
            result = tf.constant(12) // divisor
        with tf.device(WORKER if where == "ps" else PS):
            result = result + 1
        with tf.device(PS if where == "ps" else WORKER):
            result = result + 1
        with tf.device(WORKER):
            result = tf.identity(result)
    given = []
    with cluster.session(graph) as session:
        for value in (4, 0, 3):
            try:
                given.append(int(session.run(result, {divisor: value})))
            except tf.errors.OpError as error:
                given.append((type(error).__name__, "Integer division by zero" in error.message))
    return given


@pytest.mark.parametrize("where", ["ps", "worker"])
def test_an_op_that_fails_ends_the_step_with_its_error(both, where):
    outcome, received, sent = both(fails, where)
    assert outcome == [5, ("InvalidArgumentError", True), 6]
    assert received >= 2 and sent >= 2


def times_out():
    """A step that waits on the ps for what never comes, and the step after it."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            queue = v1.FIFOQueue(4, tf.float32, [[]])
            put = queue.enqueue(7.0)
            taken = queue.dequeue()
        with tf.device(WORKER):
            result = taken + 1.0
    with cluster.session(graph) as session:
        try:
            session.run(result, options=v1.RunOptions(timeout_in_ms=300))
        except tf.errors.OpError as error:
            kind = type(error).__name__
        # The step that is over may still take one of them.
        session.run(put)
        session.run(put)
        return kind, float(session.run(result))


def test_a_step_that_times_out_is_over(both):
    outcome, received, _ = both(times_out)
    assert outcome == ("DeadlineExceededError", 8.0)
    assert received >= 1


def in_parts():
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            first, second = v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [])
            doubled = first * 2.0
        with tf.device(WORKER):
            result = doubled + 1.0
            product = result * second
    with cluster.session(graph) as session:
        handle = session.partial_run_setup([result, product], [first, second])
        return [float(session.partial_run(handle, result, {first: 5.0})), float(session.partial_run(handle, product, {second: 3.0}))]


def test_a_step_in_parts(both):
    outcome, received, _ = both(in_parts)
    assert outcome == [11.0, 33.0]
    assert received >= 1
