"""The parameters of `dlrm_job.py` through gRPC: what `dlrm_compare.py` compares with.

It is what a careful user of grpcio would write: one bidirectional stream for each worker, open for the whole job, and in
each step one message in each direction. A worker sends the gradients of a step and the numbers of the rows for the next
one, each once, and gets these rows and the dense parameters. A message is the bytes of the arrays behind a header, so that
nothing is encoded element by element; it is joined in one copy, and arrays that arrive lie in it without any. Threads read
from streams themselves. With a unary call for each step, two thirds as many were done in a second.
"""

import queue
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from dlrm_adagrad import Part, digest, summed
from dlrm_model import DENSE, WIDTH

SERVICE, METHOD = "sealane.example.Exchange", "Stream"
# gRPC's own limit of 4 MiB would refuse large batches.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
# How many rows are asked for, and of how many there are gradients; of none, if none of the dense parameters either.
HEAD = struct.Struct("<qq")
# A worker that has not come after so many seconds will not.
STARTING_SECONDS = 60


def request(wanted, learned=None):
    """Numbers of rows; then what was learned: numbers of rows, their gradients, and the dense ones."""
    arrays = [wanted.astype(np.uint32)]
    if learned:
        touched, rows, dense = learned
        arrays += [touched.astype(np.uint32), rows, dense]
    return b"".join([HEAD.pack(len(wanted), len(touched) if learned else -1), *arrays])


def requested(message):
    wanted, touched = HEAD.unpack_from(message)
    ids = np.frombuffer(message, np.uint32, wanted + max(touched, 0), HEAD.size)
    if touched < 0:
        return ids, None
    gradients = np.frombuffer(message, np.float32, touched * WIDTH + DENSE, HEAD.size + ids.nbytes)
    return ids[:wanted], (ids[wanted:], gradients[:-DENSE].reshape(-1, WIDTH), gradients[-DENSE:])


def reply(rows, dense):
    return b"".join([rows, dense])


def replied(message):
    values = np.frombuffer(message, np.float32)
    return values[:-DENSE].reshape(-1, WIDTH), values[-DENSE:]


class Worker:
    """A worker's way to the parameters, as that of `dlrm_job.py`."""

    def __init__(self, name, address):
        self.outgoing = queue.SimpleQueue()
        self.channel = grpc.insecure_channel(address, options=OPTIONS)
        call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self.incoming = call(iter(self.outgoing.get, None), metadata=[("worker", name)], wait_for_ready=True)

    def named(self, ids):
        """Each row once, and where it is used, if it is used more than once."""
        touched, which = np.unique(ids, return_inverse=True)
        return touched, which.reshape(ids.shape) if len(touched) < ids.size else None

    def exchange(self, version, named, learned=None):
        """The server knows which version is next."""
        if learned:
            (touched, which), rows, dense = learned
            learned = touched, rows if which is None else summed(len(touched), which, rows), dense
        wanted, which = named
        self.outgoing.put(request(wanted, learned))
        return Pulled(self.incoming, which)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.outgoing.put(None)
        # The server's end of the stream comes when it has read this one's.
        for _ in self.incoming:
            pass
        self.channel.close()


class Pulled:
    def __init__(self, incoming, which):
        self.incoming, self.which = incoming, which

    def result(self):
        message = next(self.incoming, None)
        if message is None:
            raise ConnectionError("the parameter server has ended its stream")
        rows, dense = replied(message)
        return rows if self.which is None else rows[self.which], dense


class Stream:
    """The server's end of a worker's: one direction is a queue, which gRPC reads, the other an iterator."""

    def __init__(self):
        self.outgoing, self.arrived = queue.SimpleQueue(), threading.Event()

    def accept(self, incoming):
        self.incoming = incoming
        self.arrived.set()
        return iter(self.outgoing.get, None)

    def requests(self):
        if not self.arrived.wait(STARTING_SECONDS):
            raise TimeoutError(f"a worker has not come within {STARTING_SECONDS} s")
        return map(requested, self.incoming)


class Server:
    """The parameter server: there is one."""

    def __init__(self, address, workers):
        self.streams = {worker: Stream() for worker in workers}
        # A thread for each stream, which does not end before the job, and some for gRPC itself.
        self.server = grpc.server(ThreadPoolExecutor(len(workers) + 4), options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(
            lambda incoming, context: self.streams[dict(context.invocation_metadata())["worker"]].accept(incoming)
        )
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        self.server.add_insecure_port(address)
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in self.streams.values():
            stream.outgoing.put(None)
        self.server.stop(STARTING_SECONDS).wait()


def serve(server, job, number, report):
    """The parameter server, as that of `dlrm_job.py`."""
    part, lock, streams = Part(job, 0, 1), threading.Lock(), list(server.streams.values())

    def answer(stream, ids):
        stream.outgoing.put(reply(np.take(part.rows, ids, axis=0), part.dense))

    def learned_by(stream):
        """What the worker has learned, and which rows it wants then. If it has learned nothing it is answered at once."""
        for wanted, learned in stream.requests():
            if learned:
                yield wanted, learned
            else:
                with lock:
                    answer(stream, wanted)

    def learn_together(streams):
        all_learned = zip(*map(learned_by, streams))
        for _ in range(job.steps):
            wanted, learned = zip(*next(all_learned))
            with lock:
                if job.idle is None:
                    ids, rows, dense = part.learn(learned)
                    part.rows[ids] += rows
                    part.dense += dense
                for each in zip(streams, wanted):
                    answer(*each)

    with ThreadPoolExecutor(len(streams)) as threads:
        if job.synchronous:
            learn_together(streams)
        else:
            list(threads.map(learn_together, [[stream] for stream in streams]))
        report.send(("ended", digest(part.rows, part.dense)))
        # Who asks once more, until all end their streams.
        list(threads.map(list, map(learned_by, streams)))
