"""Streams as asyncio's: a transport under ``asyncio.StreamReader`` and ``asyncio.StreamWriter``."""

import asyncio
import functools

from . import _sealane
from ._errors import Unavailable

# After the daemon was lost, seconds until the next attempt to attach to the one that follows.
ACCEPT_PAUSE = 0.1
# asyncio's own, unless told otherwise.
HIGH_WATER = 64 << 10
READ_BYTES = 64 << 10


async def open_connection(task, to, name, *, window_bytes=None, limit=64 << 10):
    """Dials the listener of that name at the task ``to``: ``reader, writer``, as ``asyncio.open_connection`` gives.

    ``window_bytes`` may come before they are read, 1 MiB unless given; ``limit`` is asyncio's of ``readline`` and ``readuntil``.
    """
    stream = await _sealane.dial(task, to, name, window_bytes)
    return _connected(stream, limit)


async def start_server(connected, task, name, *, window_bytes=None, limit=64 << 10):
    """Calls ``connected(reader, writer)`` for each stream that peers dial by this name, as ``asyncio.start_server`` does.

    ``connected`` may be a coroutine function. Returns a ``Server``, whose context is left when it is closed. It goes on with the next
    daemon when its daemon has ended; any other error that keeps it from accepting goes to the loop's exception handler.
    """
    return Server(_sealane.listen(task, name, window_bytes), connected, limit)


class Server:
    """Accepts streams until it is closed."""

    def __init__(self, listener, connected, limit):
        self._listener = listener
        self._connected = connected
        self._limit = limit
        self._serving = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())
        self._accepting.add_done_callback(_accepted)

    async def _next(self):
        while True:
            try:
                return await self._listener.accept()
            except Unavailable:
                # The daemon has ended, with all streams. The next accept looks for another.
                await asyncio.sleep(ACCEPT_PAUSE)

    async def _accept(self):
        loop = asyncio.get_running_loop()
        while True:
            reader, writer = _connected(await self._next(), self._limit)
            try:
                served = self._connected(reader, writer)
            except Exception as error:
                _give_up(loop, error, writer)
                continue
            if asyncio.iscoroutine(served):
                serving = loop.create_task(served)
                self._serving.add(serving)
                serving.add_done_callback(functools.partial(self._served, loop, writer))

    def _served(self, loop, writer, serving):
        self._serving.discard(serving)
        if not serving.cancelled() and (error := serving.exception()):
            _give_up(loop, error, writer)

    async def serve_forever(self):
        """Until it is closed, or cannot go on: then it raises why."""
        try:
            await asyncio.shield(self._accepting)
        except asyncio.CancelledError:
            if not self._accepting.cancelled():
                raise

    def close(self):
        """Accepts no more. Streams that were accepted go on."""
        self._accepting.cancel()
        self._listener.close()

    async def wait_closed(self):
        """Until what serves the streams that were accepted has ended."""
        await asyncio.gather(self._accepting, *self._serving, return_exceptions=True)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()
        await self.wait_closed()


def _accepted(accepting):
    if not accepting.cancelled() and (error := accepting.exception()):
        message = {"message": "a server accepts no more streams", "exception": error}
        accepting.get_loop().call_exception_handler(message)


def _connected(stream, limit):
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = _Transport(loop, stream, protocol)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _give_up(loop, error, writer):
    """What serves a stream has failed: its other end must not wait for ever."""
    loop.call_exception_handler({"message": "what serves a stream has failed", "exception": error})
    writer.transport.abort()


class _Transport(asyncio.Transport):
    """A stream for a protocol. A task reads, and another writes while there is something to write."""

    def __init__(self, loop, stream, protocol):
        super().__init__({"peername": stream.peer})
        self._loop = loop
        self._stream = stream
        self._protocol = protocol
        self._unwritten = bytearray()
        self._writing = None
        self._wants_end = False
        self._finished = False
        self._closing = False
        self._lost = False
        self._is_full = False
        self.set_write_buffer_limits()
        self._may_read = asyncio.Event()
        self._may_read.set()
        protocol.connection_made(self)
        self._reading = loop.create_task(self._read())

    def get_protocol(self):
        return self._protocol

    def set_protocol(self, protocol):
        self._protocol = protocol

    def is_closing(self):
        return self._closing

    def is_reading(self):
        return not self._closing and self._may_read.is_set()

    def pause_reading(self):
        self._may_read.clear()

    def resume_reading(self):
        self._may_read.set()

    async def _read(self):
        try:
            while True:
                await self._may_read.wait()
                came = await self._stream.read(READ_BYTES)
                # It may have been paused since.
                await self._may_read.wait()
                if not came:
                    break
                self._protocol.data_received(came)
            if not self._protocol.eof_received():
                self.close()
        except Exception as error:
            self._end(error)

    def set_write_buffer_limits(self, high=None, low=None):
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}), and low >= 0")

    def get_write_buffer_limits(self):
        return self._low, self._high

    def get_write_buffer_size(self):
        return len(self._unwritten)

    def can_write_eof(self):
        return True

    def write(self, data):
        if self._closing or not data:
            return
        if self._wants_end:
            raise RuntimeError("the stream was finished, and is written to")
        self._unwritten += data
        self._go_on_writing()
        if not self._is_full and len(self._unwritten) > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self):
        self._wants_end = True
        self._go_on_writing()

    def _go_on_writing(self):
        if self._writing is None and not self._lost:
            self._writing = self._loop.create_task(self._write())

    async def _write(self):
        try:
            while self._unwritten:
                data = bytes(self._unwritten)
                self._unwritten.clear()
                await self._stream.write(data)
                if self._is_full and len(self._unwritten) <= self._low:
                    self._is_full = False
                    self._protocol.resume_writing()
            if self._wants_end:
                await self._stream.finish()
                self._finished = True
        except Exception as error:
            self._end(error)
            return
        self._writing = None
        if self._closing:
            self._end(None)
        elif self._unwritten or (self._wants_end and not self._finished):
            self._go_on_writing()

    def close(self):
        """Finishes when all is written, and lets go of the stream."""
        if not self._closing:
            self._closing = True
            self._reading.cancel()
            self._wants_end = True
            self._go_on_writing()

    def abort(self):
        if not self._lost:
            self._stream.reset("its owner has aborted it")
            self._end(None)

    def _end(self, error):
        if self._lost:
            return
        self._lost = self._closing = True
        self._unwritten.clear()
        current = asyncio.current_task(self._loop)
        # A task that was cancelled keeps its frames, and so the stream.
        tasks, self._reading, self._writing = (self._reading, self._writing), None, None
        for task in tasks:
            if task is not None and task is not current:
                task.cancel()
        self._stream.close()
        self._loop.call_soon(self._protocol.connection_lost, error)
