"""A peer that says what the plugin never would: what comes from it is checked before TensorFlow sees it."""

import contextlib
import os
import queue
import re
import struct

import capi
import pytest
import steps
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from test_graph import edge

import cluster
from cluster import STUCK, Failed, wait_until

v1 = tf.compat.v1
pytestmark = pytest.mark.skipif(capi.library() is None, reason="Sealane's C library is not there: cargo build --package sealane-c")

QUEUE = "sealane.tensorflow"


def ask(path, kind="float32", name="asked"):
    """A step that asks the ps for a tensor of a type under this key, and tells its number. By gRPC it would be 7."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        dtype = tf.as_dtype(kind)
        with tf.device(steps.device("ps")):
            # Its handle has the number of the step.
            handle, _ = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
            told = tf.io.write_file(path, tf.io.serialize_tensor(handle))
            sent = edge("_Send", session, tf.fill([1], tf.cast(7, dtype)), name, dtype, steps.device("ps"))
        with tf.device(steps.device("worker")):
            came = tf.identity(edge("_Recv", session, None, name, dtype, steps.device("worker")))
        return session.run([came, told, sent])[0].tolist()


def chain(path):
    """A step that asks the ps for "asked" once "first" has come. By gRPC either would be 7."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        with tf.device(steps.device("ps")):
            handle, _ = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
            told = tf.io.write_file(path, tf.io.serialize_tensor(handle))
            sent = [edge("_Send", session, tf.fill([1], 7.0), name, tf.float32, steps.device("ps")) for name in ("first", "asked")]
        with tf.device(steps.device("worker")):
            first = edge("_Recv", session, None, "first", tf.float32, steps.device("worker"))
            with tf.control_dependencies([first]):
                asked = edge("_Recv", session, None, "asked", tf.float32, steps.device("worker"))
        return [each.tolist() for each in session.run([first, asked, told, *sent])[:2]]


def twice(path):
    """A step that asks the ps for "again", and again once it has come. By gRPC it would be 7, then 8."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        with tf.device(steps.device("ps")):
            handle, _ = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
            told, came = [tf.io.write_file(path, tf.io.serialize_tensor(handle))], []
            for value in (7.0, 8.0):
                with tf.control_dependencies(told[-1:]):
                    told.append(edge("_Send", session, tf.fill([1], value), "again", tf.float32, steps.device("ps")))
        for _ in range(2):
            with tf.device(steps.device("worker")), tf.control_dependencies(came[-1:]):
                came.append(edge("_Recv", session, None, "again", tf.float32, steps.device("worker")))
        return [each.tolist() for each in session.run([*came, *told])[:2]]


def knot(path):
    """A step that asks the ps for "slow" and "first", and for "asked" once "first" has come; "slow" is not sent before. By gRPC all would be 7."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        with tf.device(steps.device("worker")):
            slow, first = [edge("_Recv", session, None, name, tf.float32, steps.device("worker")) for name in ("slow", "first")]
            with tf.control_dependencies([first]):
                asked = edge("_Recv", session, None, "asked", tf.float32, steps.device("worker"))
        with tf.device(steps.device("ps")):
            handle, _ = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
            told = tf.io.write_file(path, tf.io.serialize_tensor(handle))
            sent = [edge("_Send", session, tf.fill([1], 7.0), name, tf.float32, steps.device("ps")) for name in ("first", "asked")]
            late = tf.reduce_sum(asked) * 0.0 + tf.fill([1], 7.0)
            sent.append(edge("_Send", session, late, "slow", tf.float32, steps.device("ps")))
        return [each.tolist() for each in session.run([slow, first, asked, told, *sent])[:3]]


MAGIC = b"SlBundl1"
# By these words TensorFlow's coordinators see that a parameter server failed, and not a worker.
FROM_PS = "GRPC error information from remote target /job:ps/replica:0/task:0"


def entry(key, tensor, announced=None, number=0):
    """An entry of a bundle: a tensor, or so many bytes that are announced. See bundle.h."""
    meta, data = tensor.meta, tensor.content
    dims = struct.pack(f"<{meta.rank}Q", *meta.dims[: meta.rank])
    length = len(data) if announced is None else announced
    head = struct.pack("<6BHQ", announced is not None, meta.flags, meta.code, meta.bits, meta.rank, number, len(key), length)
    whole = head + dims + key.encode() + (data if announced is None else b"")
    return whole + b"\0" * (-len(whole) % 8)


# What a producer has out of a tensor, see held.h.
ENTRY, DATA = 1, 2
# By what the peers here say.
MAY_BE_UNMET = True


def key_hash(key):
    """TensorFlow's own, a 64-bit MurmurHash 2."""
    data, factor, all_bits = key.encode(), 0xC6A4A7935BD1E995, 2**64 - 1
    value = 0xDECAFCAFFE ^ (len(data) * factor & all_bits)
    whole = len(data) // 8 * 8
    for (part,) in struct.iter_unpack("<Q", data[:whole]):
        part = part * factor & all_bits
        value = (value ^ ((part ^ part >> 47) * factor & all_bits)) * factor & all_bits
    if data[whole:]:
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & all_bits
    value = (value ^ value >> 47) * factor & all_bits
    return value ^ value >> 47


def incarnation_of_ps():
    with cluster.session(tf.Graph()) as session:
        return next(each.incarnation for each in session.list_devices() if "job:ps/" in each.name and each.device_type == "CPU")


def send_and_wait(told, consumer):
    """A step that sends a small tensor and a large one to a task that does not run it, and waits for a file."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        sent = []
        for name, count in (("small", 2), ("large", 2000)):
            op = edge("_Send", session, tf.fill([count], 1.0), name, tf.float32, steps.device("ps"))
            op._set_attr("recv_device", v1.AttrValue(s=consumer.encode()))
            sent.append(op)
        with tf.device(steps.device("ps")):
            over = tf.numpy_function(lambda: wait_until("the test has seen enough", lambda: os.path.exists(told)), [], tf.bool)
        session.run([over.op, *sent])


def send_many_and_wait(told, consumer, count):
    """As `send_and_wait`, with so many small tensors."""
    v1.disable_control_flow_v2()
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default(), tf.device(steps.device("ps")):

        def body(number):
            op = edge("_Send", session, number, "many", tf.int32, steps.device("ps"))
            op._set_attr("recv_device", v1.AttrValue(s=consumer.encode()))
            with tf.control_dependencies([op]):
                return number + 1

        sent = v1.while_loop(lambda number: number < count, body, [tf.constant(0)])
        over = tf.numpy_function(lambda: wait_until("the test has seen enough", lambda: os.path.exists(told)), [], tf.bool)
        session.run([over.op, sent])


class Peer:
    """The task of a ps whose server knows nothing of Sealane, and what it says for it."""

    def __init__(self, job, worker):
        self.job, self.worker = job, worker
        self.address = job.cluster["worker"][0]
        self.messages = queue.Queue()
        self.task = capi.Task(job.cluster["ps"][0], job.daemons[0].socket)
        self.task.listen(QUEUE, lambda _, message: self.messages.put(message))
        self.pair = None
        # Settles the pair. Where the answer to the hello is late, the tensor of this step goes by gRPC, and none after it.
        call, step, key = self.begin()
        self.send(step, MAGIC + entry(key, RIGHT))
        with contextlib.suppress(Failed):
            call.result()
        wait_until("the pair goes by Sealane", lambda: worker.pairs()["ps/0"]["route"] == "sealane")

    def begin(self, *arguments, what=ask):
        """Begins a step that asks for a tensor. Gives the call, the step and the key."""
        path = self.job.directory / f"step{self.worker.calls}"
        call = self.worker.begin(what, str(path), *arguments)
        if self.pair is None:
            hello, self.pair, self.number = self.messages.get(timeout=STUCK).decode().split("\n")
            assert hello == "hello5"
            self.say(f"welcome5\n{self.pair}".encode())
        step = wait_until(
            "the step's number", lambda: path.exists() and re.search(rb"__per_step_(\d+)\D", path.read_bytes())
        )
        return call, int(step[1]), f"{self.pair}asked;0:0"

    def send(self, step, content):
        """Sends a bundle of this content."""
        self.task.send(self.address, step, f"{self.pair}bundles", capi.source(content))

    def answer(self, whole=None, announced=None, alone=None, kind="float32"):
        """Runs a step that is given this tensor."""
        call, step, key = self.begin(kind)
        try:
            if whole is not None:
                self.send(step, MAGIC + entry(key, whole))
            if announced is not None:
                self.send(step, MAGIC + entry(key, announced, announced.bytes))
                alone = capi.source(announced.content)
            if alone is not None:
                self.task.send(self.address, step, f"{key};data", alone)
        except RuntimeError as refused:  # By the client's library: so that the step ends.
            self.say(f"abort1\n{step}\n0\n10\n{refused}".encode())
        return call.result()

    def held(self, step, key, out, number=0):
        """Says that a tensor is not taken; `out`: what of it."""
        self.say(f"held1\n{step}\n0\n{self.pair}\n{key_hash(key):x} {number:x} {out}".encode())

    def say(self, message):
        self.task.push(self.address, QUEUE, message)


@pytest.fixture(scope="module")
def peer(make_module_job):
    job = make_module_job(ps=1, worker=1, other=1).start_daemons()
    known = {each: job.cluster[each] for each in ("ps", "worker")}
    job.start("ps", protocol="grpc", cluster=known)
    return Peer(job, job.start("worker", cluster=known))


def proto(dtype, dims=(), **fields):
    tensor = tensor_pb2.TensorProto(dtype=dtype, **fields)
    for size in dims:
        tensor.tensor_shape.dim.add(size=size)
    return tensor.SerializeToString()


RIGHT = capi.source(b"\0\0\x80?\0\0\0@", capi.FLOAT, 32, [2])
NOTHING = capi.source(b"")


def test_what_is_right_arrives(peer):
    assert peer.answer(RIGHT) == [1.0, 2.0]
    assert peer.answer(capi.source(proto(1, [2], float_val=[1, 2]))) == [1.0, 2.0]
    assert peer.answer(announced=RIGHT) == [1.0, 2.0]


WRONG = {
    "a code that TensorFlow has not": capi.source(b"\0\0", 17, 8),
    "bits that TensorFlow has not": capi.source(b"\0" * 6, capi.INT, 24, [2]),
    "a float of 128 bits": capi.source(b"\0" * 16, capi.FLOAT, 128, [1]),
    "a list of strings": capi.source(b"\0" * 16, capi.UINT, 8, [1], flags=capi.STRINGS),
    "fewer elements than its shape has": capi.source(b"\0" * 8, capi.FLOAT, 32, [3]),
    "half an element": capi.source(b"\0" * 6, capi.FLOAT, 32, [1]),
    "too many elements": capi.source(b"", capi.FLOAT, 32, [1 << 40, 1 << 40, 0]),
    "a dimension beyond all": capi.source(b"", capi.FLOAT, 32, [1 << 63, 0]),
    "more dimensions than there are": capi.source(b"\0" * 4, capi.FLOAT, 32, [1] * 255),
    "opaque, of 16 bits": capi.source(b"\0\0", capi.OPAQUE, 16, [1]),
    "no proto": capi.source(b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_lost_data(peer, what):
    with pytest.raises(Failed, match="^DataLossError(.|\n)*Sealane: a peer's tensor was refused"):
        peer.answer(WRONG[what])
    test_what_is_right_arrives(peer)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_announced_and_wrong_is_lost_data_or_nothing_that_is_sent(peer, what):
    # Some of it is refused by Sealane itself, before it is sent.
    with pytest.raises(Failed, match="^(DataLoss|Aborted|InvalidArgument)Error"):
        peer.answer(announced=WRONG[what])
    test_what_is_right_arrives(peer)


def broken(key):
    right = entry(key, RIGHT)
    return {
        "nothing": b"",
        "half a magic number": MAGIC[:4],
        "another magic number": b"SlBundl2" + right,
        "half an entry": MAGIC + right[:12],
        "an entry without its end": MAGIC + right[: 16 + len(key)],
        "a right one and half an entry": MAGIC + right + right[:8],
        "an unknown kind": MAGIC + b"\2" + right[1:],
        "a key beyond its end": MAGIC + right[:6] + b"\xff\xff" + right[8:],
        "dimensions beyond its end": MAGIC + right[:4] + b"\xff" + right[5:],
        "bytes beyond its end": MAGIC + right[:8] + b"\xff" * 8 + right[16:],
        "a whole tensor that is to be announced": MAGIC + entry(key, capi.source(b"\0" * 4096, capi.FLOAT, 32, [1024])),
        "bytes that wrap around": MAGIC + right[:8] + struct.pack("<q", -16) + right[16:],
    }


@pytest.mark.parametrize("what", broken(""))
def test_a_bundle_that_is_none_is_lost_data(peer, what):
    call, step, key = peer.begin()
    peer.send(step, broken(key)[what])
    with pytest.raises(Failed, match="^DataLossError(.|\n)*it is no bundle"):
        call.result()
    test_what_is_right_arrives(peer)


def test_what_nobody_asked_for_changes_nothing(peer):
    call, step, key = peer.begin()
    strange = entry("strange", capi.source(b"\0" * 4092, capi.FLOAT, 32, [1023]))
    peer.send(step, MAGIC + strange * 20 + entry("announced", NOTHING, 1 << 60) + entry(key, RIGHT) + entry(key, RIGHT))
    assert call.result() == [1.0, 2.0]
    test_what_is_right_arrives(peer)


def test_more_than_is_borne_unasked_fails_the_step(peer):
    call, step, _ = peer.begin()
    strange = entry("strange", capi.source(b"\0" * 4000, capi.FLOAT, 32, [1000]))
    content = MAGIC + strange * 31
    for _ in range((64 << 20) // (31 * (len(strange) + 256))):
        peer.task.send_and_wait(peer.address, step, f"{peer.pair}bundles", capi.source(content))
    peer.send(step, content)
    with pytest.raises(Failed, match="^ResourceExhaustedError(.|\n)*came unasked"):
        call.result()
    test_what_is_right_arrives(peer)


def test_a_bundle_that_is_longer_than_any_is_asked_for_by_grpc(peer):
    call, step, key = peer.begin()
    peer.send(step, MAGIC + entry(key, RIGHT) + b"\0" * (128 << 10))
    assert call.result() == [7.0]
    test_what_is_right_arrives(peer)


PROTOS = {
    "content that is too short": proto(1, [4], tensor_content=b"123"),
    "no type": proto(0, [1]),
    "a type that is not": proto(99, [1]),
    "a negative dimension": proto(1, [-5], float_val=[1]),
    "more than memory": proto(1, [1 << 50], float_val=[1]),
    "too many elements": proto(1, [1 << 40, 1 << 40], float_val=[1]),
    "an unknown variant": proto(21, [], variant_val=[{"type_name": "unheard of", "metadata": b"1"}]),
}


@pytest.mark.parametrize("what", PROTOS)
def test_a_proto_that_is_wrong_fails_the_step(peer, what):
    with pytest.raises(Failed, match="^(DataLoss|InvalidArgument|Internal|ResourceExhausted)Error"):
        peer.answer(capi.source(PROTOS[what]))
    test_what_is_right_arrives(peer)


@pytest.mark.parametrize("form", ["plain", "proto", "large"])
def test_another_type_than_was_asked_for_fails_the_step(peer, form):
    plain = capi.source(b"\0" * 8, capi.FLOAT, 64, [1])
    answers = {"plain": {"whole": plain}, "proto": {"whole": capi.source(proto(2, [1], double_val=[1]))}, "large": {"announced": plain}}
    with pytest.raises(Failed, match="^(DataLoss|InvalidArgument|Internal)Error"):
        peer.answer(**answers[form])
    test_what_is_right_arrives(peer)


def floats(*values):
    return capi.source(struct.pack(f"<{len(values)}f", *values), capi.FLOAT, 32, [len(values)])


def test_what_was_announced_twice_may_come_alone_and_need_not(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    job.start("ps", protocol="grpc")
    peer = Peer(job, job.start("worker"))
    for _ in range(2):
        assert peer.messages.empty()
        assert peer.answer(announced=floats(1, 2, 3)) == [1, 2, 3]
    told = f"alone1\n{peer.pair}\n{peer.number}\n{{}}\n{peer.pair}asked;0:0"
    assert peer.messages.get(timeout=STUCK).decode() == told.format(12)
    # Before the producer agrees, in any form.
    peer.say(f"agreed1\n{peer.pair}\n{1 ^ int(peer.number, 16):x}\n{peer.pair}asked;0:0".encode())  # As to another hello.
    assert peer.answer(alone=floats(6, 7)) == [6, 7]
    assert peer.answer(floats(4)) == [4]
    assert peer.answer(announced=floats(5)) == [5]
    peer.say(f"agreed1\n{peer.pair}\n{peer.number}\n{peer.pair}asked;0:0".encode())
    assert peer.answer(alone=floats(6, 7)) == [6, 7]
    # Afterwards, what is announced comes all the same, longer than it was told or not.
    assert peer.answer(announced=floats(8)) == [8]
    assert peer.answer(alone=floats(9, 10)) == [9, 10]
    assert peer.answer(announced=floats(*range(16))) == list(range(16))
    assert peer.messages.get(timeout=STUCK).decode() == told.format(64 + 8)
    assert peer.answer(alone=floats(*range(18))) == list(range(18))
    for what, status in (("fewer elements than its shape has", "DataLoss"), ("a float of 128 bits", "DataLoss")):
        with pytest.raises(Failed, match=f"^({status}|Aborted)Error"):
            peer.answer(alone=WRONG[what])
        assert peer.answer(alone=RIGHT) == [1.0, 2.0]
    with pytest.raises(Failed, match="^(DataLoss|InvalidArgument|Internal)Error"):
        peer.answer(alone=capi.source(b"\0" * 8, capi.FLOAT, 64, [1]))
    assert peer.answer(alone=RIGHT) == [1.0, 2.0] and peer.messages.empty()
    # What it agreed not to send, and does: nobody asks for that bundle, until the producer says what is not taken.
    call, step, key = peer.begin()
    peer.send(step, MAGIC + entry(key, RIGHT))
    peer.held(step, key, ENTRY)
    assert call.result() == [7.0]
    assert peer.worker.pairs()["ps/0"]["unmet"] == 1
    peer.worker.wait_for_line("sent in another way than it was waited for")
    assert peer.answer(alone=RIGHT) == [1.0, 2.0]


def test_a_word_on_what_is_not_taken_changes_nothing_where_it_is_waited_for(peer):
    for whole in (True, False):
        call, step, key = peer.begin()
        other = key.replace("asked", "other")
        for held in ((key, ENTRY), (key, ENTRY | DATA), (other, 0), (other, DATA)):
            peer.held(step, *held)
        peer.held(step, key, DATA, number=1)
        peer.say(f"held1\n{step}\n1\n{peer.pair}\n{key_hash(key):x} 0 2".encode())  # Of collectives.
        if whole:
            peer.send(step, MAGIC + entry(key, RIGHT))
        else:
            peer.send(step, MAGIC + entry(key, RIGHT, 8))
            peer.task.send(peer.address, step, f"{key};data", capi.source(RIGHT.content))
        assert call.result() == [1.0, 2.0]
    assert peer.worker.pairs()["ps/0"]["unmet"] == 0


def test_a_tensor_under_a_key_that_is_not_asked_for_comes_by_grpc(peer):
    call, step, key = peer.begin("float32", "unmet")
    key = key.replace("asked", "unmet")
    peer.task.send(peer.address, step, f"{key};data", RIGHT)
    peer.held(step, key, DATA)
    assert call.result() == [7.0]
    assert peer.worker.pairs()["ps/0"]["unmet"] == 1


@pytest.fixture
def idle(make_job):
    """A consumer that has said hello for a pair, and asks for nothing: what it hears, the pair, and a call of the ps that sends to it."""
    job = make_job(ps=1, other=1).start_daemons()
    ps = job.start("ps", cluster={"ps": job.cluster["ps"]})
    told = job.directory / "told"
    messages = queue.Queue()
    task = capi.Task(job.cluster["other"][0], job.daemons[0].socket)
    task.listen(QUEUE, lambda _, message: messages.put(message))
    incarnation = ps.call(incarnation_of_ps)
    consumer = "/job:other/replica:0/task:0/device:CPU:0"
    pair = f"/job:ps/replica:0/task:0/device:CPU:0;{incarnation & (2**64 - 1):016x};{consumer};"
    task.push(job.cluster["ps"][0], QUEUE, f"hello5\n{pair}\n1".encode())
    assert messages.get(timeout=STUCK) == f"welcome5\n{pair}".encode()

    def begin(what, *arguments):
        call = ps.begin(what, str(told), consumer, *arguments)

        def end():
            told.touch()
            call.result()

        return end

    yield messages, pair, begin
    task.detach()


def test_a_producer_says_again_and_again_what_is_not_taken(idle):
    messages, pair, begin = idle
    end = begin(send_and_wait)
    said = [messages.get(timeout=STUCK).decode().split("\n") for _ in range(2)]
    for kind, _, of, of_pair, *lines in said:
        assert (kind, of, of_pair) == ("held1", "0", pair)
        keys = {f"{pair}small;0:0": ENTRY, f"{pair}large;0:0": ENTRY | DATA}
        assert sorted(lines) == sorted(f"{key_hash(key):x} 0 {out}" for key, out in keys.items())
    end()


def test_a_producer_says_all_that_is_not_taken_however_much_it_is(idle):
    messages, pair, begin = idle
    count, said = 40_000, set()  # A sweep has 32 messages, with 24,000 of them at most.
    end = begin(send_many_and_wait, count - 1)  # And a dead one, of the iteration that the loop does not enter.
    for _ in range(32 * 20):
        kind, _, of, of_pair, *lines = messages.get(timeout=STUCK).decode().split("\n")
        assert (kind, of, of_pair) == ("held1", "0", pair)
        said.update(lines)
        if len(said) == count:
            break
    assert len(said) == count
    end()


def test_more_notes_than_are_kept_turn_their_producer_away(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    job.start("ps", protocol="grpc")
    peer = Peer(job, job.start("worker"))
    test_what_is_right_arrives(peer)
    key = peer.pair + "x" * (4000 - len(peer.pair))
    for step in range(270):  # 4128 bytes each, of 1 MiB.
        peer.say(f"unsent2\n{step << 40}\n0\n{key}".encode())
    call, step, key = peer.begin()
    assert call.result() == [7.0]
    assert "left more tensors for gRPC than are noted" in peer.worker.pairs()["ps/0"]["why"]


def test_a_large_tensor_that_is_longer_than_was_said_is_asked_for_by_grpc(peer):
    call, step, key = peer.begin()
    peer.send(step, MAGIC + entry(key, NOTHING, 8))
    peer.task.send(peer.address, step, f"{key};data", capi.source(b"\0" * 4000, capi.FLOAT, 32, [1000]))
    assert call.result() == [7.0]
    test_what_is_right_arrives(peer)


@pytest.mark.parametrize("size", [1 << 40, 1 << 63, (1 << 64) - 1], ids=str)
def test_a_large_tensor_for_which_there_is_no_room_is_asked_for_by_grpc(peer, size):
    name = f"room{size}"
    call, step, key = peer.begin("float32", name)
    peer.send(step, MAGIC + entry(key.replace("asked", name), NOTHING, size))
    assert call.result() == [7.0]
    test_what_is_right_arrives(peer)


MESSAGES = [
    b"",
    b"\n\n\n",
    b"\xff\xfe\0",
    b"hello",
    b"hello5",
    b"hello5\n;;;\n1",
    b"hello5\n/job:a/replica:0/task:0/device:CPU:0;0000000000000000;/job:b/replica:0/task:0/device:CPU:0;\n1",
    b"hello5\n" + b";" * 10_000,
    b"alone1",
    b"alone1\nnobody\n1\n4096\nkey",
    b"alone1\nnobody\nx\n-1\nkey",
    b"agreed1",
    b"agreed1\nnobody\n1\nkey",
    b"agreed1\nnobody\nx\nkey",
    b"held1",
    b"held1\nx\n0\nnobody\n1 0 1",
    b"held1\n7\n0\nnobody\n1 0 1",
    b"held1\n7\n0\nnobody\n1 100 1\n1 0 4\n1 1\n\n",
    b"hello1\nwhatever",
    b"welcome5",
    b"welcome5\nnobody",
    b"refuse1\nnobody\nno",
    b"unsent2\nx\n0\ny",
    b"unsent2\n7\n0\nno such key",
    b"unsent2\n7\n256\nno such number",
    b"unsent2\n99999999999999999999999\n0\nkey",
    b"abort1\n7\n0\n99\nno such code",
    b"abort1\n7\n9\n-3\nno such code",
    b"abort1\n7\n0\n0\nall is well",
    b"abort1\n",
    b"a" * 20_000,
    capi.source(b"\0" * 400, capi.FLOAT, 32, [100]),
]


def test_garbage_among_the_messages_is_ignored_aloud(peer):
    call, step, key = peer.begin()
    for message in MESSAGES:
        peer.say(message)
    peer.send(step, MAGIC + entry(key, RIGHT))
    assert call.result() == [1.0, 2.0]
    peer.worker.wait_for_line("has said something that is not understood")
    test_what_is_right_arrives(peer)


def test_a_step_that_is_aborted_with_garbage_ends(peer):
    call, step, _ = peer.begin()
    peer.say(b"abort1\n%d\n0\n14\n\xff\xfe\0broken" % step)
    with pytest.raises(Failed, match="^(UnavailableError|AbortedError)"):
        call.result()
    test_what_is_right_arrives(peer)


def test_a_step_that_is_aborted_ends_with_the_error_that_is_said(peer):
    call, step, _ = peer.begin()
    peer.say(b"abort1\n%d\n0\n14\nthe reason" % step)
    with pytest.raises(Failed, match=f"^UnavailableError(.|\n)*the reason(.|\n)*{FROM_PS}"):
        call.result()
    test_what_is_right_arrives(peer)


def test_a_step_whose_peer_is_lost_ends_with_an_error_that_names_the_peer(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    job.start("ps", protocol="grpc")
    peer = Peer(job, job.start("worker"))
    call, step, _ = peer.begin()
    # Taken where the worker waits for its tensor; it asks for the next bundle before it answers what it does not understand.
    peer.task.send_and_wait(peer.address, step, f"{peer.pair}bundles", capi.source(MAGIC + entry("strange", RIGHT)))
    peer.say(b"hello5\nwhat?\n1")
    assert peer.messages.get(timeout=STUCK).startswith(b"refuse1\nwhat?")
    peer.task.detach()
    with pytest.raises(Failed, match=f"^UnavailableError(.|\n)*(is unavailable|has left)(.|\n)*{FROM_PS}"):
        call.result()


def test_what_another_than_the_producer_says_of_its_tensors_is_ignored(peer):
    call, step, key = peer.begin()
    other = capi.Task(peer.job.cluster["other"][0], peer.job.daemons[0].socket)
    other.push(peer.address, QUEUE, f"refuse1\n{peer.pair}\nno".encode())
    other.push(peer.address, QUEUE, f"unsent2\n{step}\n0\n{key}".encode())
    other.push(peer.address, QUEUE, f"held1\n{step}\n0\n{peer.pair}\n{key_hash(key):x} 0 {DATA}".encode())
    peer.send(step, MAGIC + entry(key, RIGHT))
    assert call.result() == [1.0, 2.0]
    other.detach()


def test_what_was_announced_early_and_is_unsent_is_asked_for_by_grpc(peer):
    call, step, key = peer.begin(what=chain)
    peer.say(f"unsent2\n{step}\n0\n{key}".encode())
    peer.send(step, MAGIC + entry(key.replace("asked", "first"), RIGHT) + entry(key, RIGHT, 8))
    assert call.result() == [[1.0, 2.0], [7.0]]


TOO_LONG = 1 << 40


def again(peer):
    """As Peer.begin, of `twice`. The key is its own: nothing of it comes alone."""
    call, step, key = peer.begin(what=twice)
    return call, step, key.replace("asked", "again")


def test_what_sealane_has_of_a_tensor_that_grpc_took_is_not_taken_for_the_next_of_its_key(peer):
    call, step, key = again(peer)
    first, second = floats(1, 2), floats(3, 4)
    peer.task.send(peer.address, step, f"{key};data", first)
    peer.send(step, MAGIC + entry(key, NOTHING, TOO_LONG) + entry(key, first) + entry(key, second, number=1))
    assert call.result() == [[7.0], [3.0, 4.0]]
    call, step, key = again(peer)
    peer.task.send(peer.address, step, f"{key};data", first)
    peer.send(step, MAGIC + entry(key, NOTHING, TOO_LONG) + entry(key, second, 8, number=1))
    peer.task.send(peer.address, step, f"{key};data1", capi.source(second.content))
    assert call.result() == [[7.0], [3.0, 4.0]]


def test_what_comes_before_the_word_that_the_one_before_it_is_unsent_waits_for_its_turn(peer):
    call, step, key = again(peer)
    peer.send(step, MAGIC + entry(key, floats(3, 4), number=1))
    peer.say(f"unsent2\n{step}\n0\n{key}".encode())
    assert call.result() == [[7.0], [3.0, 4.0]]


def test_a_word_that_comes_late_is_not_taken_for_one_on_the_next_of_the_key(peer):
    call, step, key = again(peer)
    peer.send(step, MAGIC + entry(key, NOTHING, TOO_LONG))
    for _ in range(3):
        peer.say(f"unsent2\n{step}\n0\n{key}".encode())
    peer.send(step, MAGIC + entry(key, floats(3, 4), number=1))
    assert call.result() == [[7.0], [3.0, 4.0]]


def test_what_came_early_is_used_although_others_go_by_grpc(peer):
    call, step, key = peer.begin(what=knot)
    peer.send(step, MAGIC + entry(key, RIGHT))
    peer.send(step, MAGIC + entry(key, RIGHT) + b"\0" * (128 << 10))
    assert call.result() == [[7.0], [7.0], [1.0, 2.0]]


def test_a_tensor_that_is_said_to_be_unsent_is_asked_for_by_grpc(peer):
    call, step, key = peer.begin()
    peer.say(f"unsent2\n{step}\n0\n{key}".encode())
    assert call.result() == [7.0]
    test_what_is_right_arrives(peer)
