"""A task that exchanges tensors through gRPC, in the shape of a Sealane task: what `dlrm_compare.py` compares with.

It is what a careful user of grpcio would write, and the fastest of what was tried: one bidirectional stream for each
worker, open for the whole job, and one message for all tensors of a call. A message is the bytes of the arrays after a
short header, so that nothing is encoded element by element; it is joined in one copy, and arrays that arrive lie in it
without any. Nobody waits for an acknowledgement. Threads read from streams themselves, and what a header says is parsed
once. With a unary call for each exchange, half as many steps were done in a second; with ``grpc.aio``, as many; over a Unix
socket, no more.
"""

import functools
import json
import queue
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

SERVICE, METHOD = "sealane.example.Exchange", "Stream"
# gRPC's own limit of 4 MiB would refuse large tensors.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
# The step, and how long the layout is that follows.
HEAD = struct.Struct("<qq")
# Layouts that are kept parsed: there are few kinds of messages, but the number of rows that are touched varies.
LAYOUTS = 4096
ALIGNMENT = 8
# A worker that has not come after so many seconds will not.
STARTING_SECONDS = 60


@functools.lru_cache(LAYOUTS)
def layout(tensors):
    """Keys, types and shapes as bytes."""
    said = json.dumps(tensors, separators=(",", ":")).encode()
    return said.ljust(-(-len(said) // ALIGNMENT) * ALIGNMENT)


@functools.lru_cache(LAYOUTS)
def parsed(said):
    """Key, type, shape, count and offset of each tensor behind this layout."""
    tensors, offset = [], HEAD.size + len(said)
    for key, dtype, shape in json.loads(said):
        dtype, count = np.dtype(dtype), int(np.prod(shape))
        tensors.append((key, dtype, tuple(shape), count, offset))
        offset += dtype.itemsize * count
    return tensors


def message(step, tensors):
    arrays = [np.ascontiguousarray(tensor).reshape(np.shape(tensor)) for tensor in tensors.values()]
    said = layout(tuple((key, array.dtype.str, array.shape) for key, array in zip(tensors, arrays)))
    return b"".join([HEAD.pack(step, len(said)), said, *arrays])


def arrays(received, step, keys, out):
    """The arrays of a message, which must be that of this step with these keys."""
    its_step, length = HEAD.unpack_from(received)
    found = {}
    for key, dtype, shape, count, offset in parsed(received[HEAD.size : HEAD.size + length]):
        found[key] = np.frombuffer(received, dtype, count, offset).reshape(shape)
        if key in out:
            out[key][...] = found[key]
            found[key] = out[key]
    if its_step != step or list(found) != list(keys):
        raise ValueError(f"step {step} of {list(keys)} was asked for, and step {its_step} of {list(found)} came")
    return found


class Sent:
    """What was sent is on its way: there is nothing to wait for."""

    def result(self):
        pass


class Receiving:
    """The next message of a stream. To be asked for in the order in which they were sent."""

    def __init__(self, stream, *asked):
        self.stream, self.asked = stream, asked

    def result(self):
        received = next(self.stream.incoming, None)
        if received is None:
            raise ConnectionError(f"the other side has ended its stream, and step {self.asked[0]} has not come")
        return arrays(received, *self.asked)


class Stream:
    """One direction is a queue, which gRPC reads; the other an iterator that the receiver reads."""

    def __init__(self):
        self.outgoing, self.arrived = queue.SimpleQueue(), threading.Event()

    def begin(self, incoming):
        self._incoming = incoming
        self.arrived.set()

    @property
    def incoming(self):
        if not self.arrived.wait(STARTING_SECONDS):
            raise TimeoutError(f"a worker has not come within {STARTING_SECONDS} s")
        return self._incoming

    def messages(self):
        return iter(self.outgoing.get, None)


class Task:
    """One end of the streams of a job: the server, which is the parameter server, or a worker's client."""

    def __init__(self, name, address, server, workers):
        if name == server:
            self.streams = {worker: Stream() for worker in workers}
            # A thread for each stream, which does not end before the job, and some for gRPC itself.
            self.server = grpc.server(ThreadPoolExecutor(len(workers) + 4), options=OPTIONS)
            handler = grpc.stream_stream_rpc_method_handler(self._accept)
            self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
            self.server.add_insecure_port(address)
            self.server.start()
        else:
            self.server, self.streams = None, {server: Stream()}
            self.channel = grpc.insecure_channel(address, options=OPTIONS)
            call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")
            stream = self.streams[server]
            stream.begin(call(stream.messages(), metadata=[("worker", name)], wait_for_ready=True))

    def _accept(self, incoming, context):
        stream = self.streams[dict(context.invocation_metadata())["worker"]]
        stream.begin(incoming)
        return stream.messages()

    def send_all_async(self, peer, step, tensors):
        self.streams[peer].outgoing.put(message(step, tensors))
        return Sent()

    def recv_all_async(self, peer, step, keys, out={}):
        return Receiving(self.streams[peer], step, keys, out)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in self.streams.values():
            stream.outgoing.put(None)
        if self.server:
            self.server.stop(STARTING_SECONDS).wait()
        else:
            # The server's end of the stream comes when it has read this one's.
            for stream in self.streams.values():
                for _ in stream.incoming:
                    pass
            self.channel.close()
