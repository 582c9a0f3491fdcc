"""A peer that says what the plugin never would: what comes from it is checked before TensorFlow sees it."""

import queue
import re

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


def ask(kind, path):
    """A step that asks the ps for a tensor of a type under the key "asked", and tells its number. By gRPC it would be 7."""
    graph = tf.Graph()
    with cluster.session(graph) as session, graph.as_default():
        dtype = tf.as_dtype(kind)
        with tf.device(steps.device("ps")):
            # Its handle has the number of the step.
            handle, _ = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
            told = tf.io.write_file(path, tf.io.serialize_tensor(handle))
            sent = edge("_Send", session, tf.fill([1], tf.cast(7, dtype)), "asked", dtype, steps.device("ps"))
        with tf.device(steps.device("worker")):
            came = tf.identity(edge("_Recv", session, None, "asked", dtype, steps.device("worker")))
        return session.run([came, told, sent])[0].tolist()


class Peer:
    """The task of a ps whose server knows nothing of Sealane, and what it says for it."""

    def __init__(self, job, worker):
        self.job, self.worker = job, worker
        self.address = job.cluster["worker"][0]
        self.messages = queue.Queue()
        self.task = capi.Task(job.cluster["ps"][0], job.daemons[0].socket)
        self.task.listen(QUEUE, lambda _, message: self.messages.put(message))
        self.pair = None

    def begin(self, kind="float32"):
        """Begins a step that asks for a tensor. Gives the call, the step and the key."""
        path = self.job.directory / f"step{self.worker.calls}"
        call = self.worker.begin(ask, kind, str(path))
        if self.pair is None:
            hello, self.pair = self.messages.get(timeout=STUCK).decode().split("\n")
            assert hello == "hello1"
            self.say(f"welcome1\n{self.pair}".encode())
        step = wait_until(
            "the step's number", lambda: path.exists() and re.search(rb"__per_step_(\d+)\D", path.read_bytes())
        )
        return call, int(step[1]), f"{self.pair}asked;0:0"

    def answer(self, tensor, data=None, kind="float32"):
        """Runs a step that is given this tensor, and, under the key of a large one's bytes, another."""
        call, step, key = self.begin(kind)
        try:
            if data is not None:
                self.task.send(self.address, step, f"{key};data", data)
            self.task.send(self.address, step, key, tensor)
        except RuntimeError as refused:  # By the client's library: so that the step ends.
            self.say(f"abort1\n{step}\n0\n10\n{refused}".encode())
        return call.result()

    def say(self, message):
        self.task.push(self.address, QUEUE, message)


@pytest.fixture(scope="module")
def peer(make_module_job):
    job = make_module_job(ps=1, worker=1).start_daemons()
    job.start("ps", protocol="grpc")
    return Peer(job, job.start("worker"))


def proto(dtype, dims=(), **fields):
    tensor = tensor_pb2.TensorProto(dtype=dtype, **fields)
    for size in dims:
        tensor.tensor_shape.dim.add(size=size)
    return tensor.SerializeToString()


def test_what_is_right_arrives(peer):
    assert peer.answer(capi.source(b"\0\0\x80?\0\0\0@", capi.FLOAT, 32, [2])) == [1.0, 2.0]
    assert peer.answer(capi.source(b"p" + proto(1, [2], float_val=[1, 2]))) == [1.0, 2.0]
    ahead = capi.source(b"a" + proto(1, [2]))
    assert peer.answer(ahead, capi.source(b"\0\0\x80?\0\0\0@", capi.FLOAT, 32, [2])) == [1.0, 2.0]


WRONG = {
    "a code that TensorFlow has not": capi.source(b"\0\0", 17, 8),
    "bits that TensorFlow has not": capi.source(b"\0" * 6, capi.INT, 24, [2]),
    "a float of 128 bits": capi.source(b"\0" * 16, capi.FLOAT, 128, [1]),
    "lanes": capi.source(b"\0" * 8, capi.FLOAT, 32, [1], lanes=2),
    "a list of strings": capi.source(b"\0" * 16, capi.UINT, 8, [1], flags=capi.STRINGS),
    "too many elements": capi.source(b"", capi.FLOAT, 32, [1 << 40, 1 << 40, 0]),
    "a dimension beyond all": capi.source(b"", capi.FLOAT, 32, [1 << 63, 0]),
    "nothing opaque": capi.source(b""),
    "of an unknown kind": capi.source(b"x1234"),
    "no proto": capi.source(b"p\xff\xff\xff\xff"),
    "nothing ahead": capi.source(b"a\xff\xff\xff"),
    "strings ahead": capi.source(b"a" + proto(7, [3])),
    "no type ahead": capi.source(b"a" + proto(0, [3])),
    "a type that is not, ahead": capi.source(b"a" + proto(99, [3])),
    "a negative dimension ahead": capi.source(b"a" + proto(1, [-5])),
    "too many elements ahead": capi.source(b"a" + proto(1, [1 << 40, 1 << 40])),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_lost_data(peer, what):
    with pytest.raises(Failed, match="^DataLossError(.|\n)*Sealane: a peer's tensor was refused"):
        peer.answer(WRONG[what])
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
        peer.answer(capi.source(b"p" + PROTOS[what]))
    test_what_is_right_arrives(peer)


@pytest.mark.parametrize("form", ["plain", "proto", "large"])
def test_another_type_than_was_asked_for_fails_the_step(peer, form):
    plain = capi.source(b"\0" * 8, capi.FLOAT, 64, [1])
    answers = {"plain": [plain], "proto": [capi.source(b"p" + proto(2, [1], double_val=[1]))], "large": [capi.source(b"a" + proto(1, [2])), plain]}
    with pytest.raises(Failed, match="^(DataLoss|InvalidArgument|Internal)Error"):
        peer.answer(*answers[form])
    test_what_is_right_arrives(peer)


def test_a_large_tensor_that_is_longer_than_was_said_is_asked_for_by_grpc(peer):
    assert peer.answer(capi.source(b"a" + proto(1, [2])), capi.source(b"\0" * 4000, capi.FLOAT, 32, [1000])) == [7.0]
    test_what_is_right_arrives(peer)


@pytest.mark.parametrize("dims", [[1 << 45], [1 << 62], [(1 << 62) + 1]], ids=str)
def test_a_large_tensor_for_which_there_is_no_room_is_asked_for_by_grpc(peer, dims):
    # The second and the third have a number of bytes that is 0 and 4 where it has 64 bits.
    try:
        assert peer.answer(capi.source(b"a" + proto(1, dims))) == [7.0]
    except Failed as failed:
        assert str(failed).startswith(("DataLossError", "ResourceExhaustedError")), failed
    test_what_is_right_arrives(peer)


MESSAGES = [
    b"",
    b"\n\n\n",
    b"\xff\xfe\0",
    b"hello",
    b"hello1",
    b"hello1\n;;;",
    b"hello1\n/job:a/replica:0/task:0/device:CPU:0;0000000000000000;/job:b/replica:0/task:0/device:CPU:0;",
    b"hello1\n" + b";" * 10_000,
    b"hello2\nwhatever",
    b"welcome1",
    b"welcome1\nnobody",
    b"refuse1\nnobody\nno",
    b"unsent1\nx\ny",
    b"unsent1\n7\nno such key",
    b"unsent1\n99999999999999999999999\nkey",
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
    peer.task.send(peer.address, step, key, capi.source(b"\0\0\x80?", capi.FLOAT, 32, [1]))
    assert call.result() == [1.0]
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
    with pytest.raises(Failed, match="^UnavailableError(.|\n)*the reason"):
        call.result()
    test_what_is_right_arrives(peer)


def test_a_tensor_that_is_said_to_be_unsent_is_asked_for_by_grpc(peer):
    call, step, key = peer.begin()
    peer.say(f"unsent1\n{step}\n{key}".encode())
    assert call.result() == [7.0]
    test_what_is_right_arrives(peer)
