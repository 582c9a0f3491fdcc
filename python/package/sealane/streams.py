"""Streams of bytes between two tasks, over whatever link they have: files for threads, and asyncio's streams.

    from sealane import attach, streams

    with attach("ps0:2222") as task, streams.listen(task, "upper") as listener:
        with listener.accept() as stream:
            stream.write(stream.read().upper())
            stream.finish()

    with attach("worker0:2222") as task, streams.connect(task, "ps0:2222", "upper") as stream:
        stream.write(b"text")
        stream.finish()
        assert stream.read() == b"TEXT"

A stream is ordered, reliable and flow-controlled, and survives the loss of its link. It ends with ``Unavailable`` when the other
process does. A task is attached as long as it has open streams.
"""

import io
import math

from . import _sealane
from ._errors import InvalidArgument
from ._stream_transport import open_connection, start_server

__all__ = ["Listener", "Stream", "connect", "listen", "open_connection", "start_server"]


def connect(task, to, name, *, window_bytes=None, timeout=None):
    """Dials the listener of that name at the task ``to``; returns a ``Stream``.

    ``window_bytes`` may come before they are read, 1 MiB unless given. ``timeout`` is in seconds; it is that of the stream's calls as
    well. Raises ``NotFound`` if nobody listens there, and ``TimeoutError`` if the task does not answer.
    """
    stream = _sealane.dial(task, to, name, window_bytes).result(timeout)
    return Stream(stream, timeout)


def listen(task, name, *, window_bytes=None):
    """Accepts streams that peers dial by this name, as a ``Listener``. ``window_bytes`` is as for ``connect``."""
    return Listener(_sealane.listen(task, name, window_bytes))


class Listener:
    """Streams to accept: call ``accept``, or iterate. Use it as a context manager, or call ``close``."""

    def __init__(self, listener):
        self._listener = listener

    def accept(self, timeout=None):
        """The next ``Stream``; raises ``TimeoutError`` after ``timeout`` seconds."""
        return Stream(self._listener.accept().result(timeout), None)

    def __iter__(self):
        return self

    def __next__(self):
        return self.accept()

    def close(self):
        """Accepts no more; streams that wait to be accepted are reset."""
        self._listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Stream(io.RawIOBase):
    """A stream as a file, which one thread may read while another writes. From ``connect`` and ``Listener.accept``.

    Wrap it in ``io.BufferedRWPair(stream, stream)`` to read lines or small pieces. Closed before it is ``finish``\\ ed, it is reset, so
    that the other end does not take a part for all: there, ``Unavailable`` is raised.
    """

    def __init__(self, stream, timeout):
        super().__init__()
        self._stream = stream
        self._finished = False
        self.settimeout(timeout)

    @property
    def peer(self):
        """The task at the other end."""
        return self._stream.peer

    def settimeout(self, timeout):
        """How many seconds a call may block; ``None`` for no limit. It then raises ``TimeoutError``."""
        if timeout is not None and (math.isnan(timeout) or timeout < 0):
            raise InvalidArgument(f"a timeout must be a number of seconds, 0 or more, not {timeout}")
        self._timeout = timeout

    def readable(self):
        return True

    def writable(self):
        return True

    def readinto(self, buffer):
        """Reads what is there, or the first to come; how many bytes, 0 at the end."""
        self._check_open()
        with memoryview(buffer) as view, view.cast("B") as room:
            came = self._stream.read(len(room)).result(self._timeout)
            room[: len(came)] = came
        return len(came)

    def readall(self):
        """All bytes to the end. What has come when a call fails is lost: use ``read`` with a size where that matters."""
        self._check_open()
        pieces = []
        while piece := self._stream.read(1 << 30).result(self._timeout):
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, data):
        """Writes all of ``data``; how many bytes that is. After a ``TimeoutError``, nobody knows how many were written."""
        self._check_open()
        data = bytes(data) if not isinstance(data, bytes) else data
        self._stream.write(data).result(self._timeout)
        return len(data)

    def flush(self):
        """Waits until what was written has left this process."""
        if not self.closed and not self._finished:
            self._stream.flush().result(self._timeout)

    def finish(self):
        """Says that nothing more is written, and waits until the other process has all of it."""
        self._check_open()
        self._finished = True
        self._stream.finish().result(self._timeout)

    def reset(self, reason):
        """Ends the stream at both ends at once, for this reason."""
        self._stream.reset(reason)

    def close(self):
        if not self.closed:
            if not self._finished:
                # For a thread that is in a call of it, too.
                self._stream.reset("it was closed unfinished")
            # Not flushed: what has left counts for nothing, unless it was finished.
            self._finished = True
            super().close()
            self._stream.close()

    def _check_open(self):
        if self.closed:
            raise ValueError("the stream was closed")

    def __repr__(self):
        return f"<sealane.streams.Stream with {self.peer}>"
