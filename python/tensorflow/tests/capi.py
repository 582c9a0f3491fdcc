"""Sealane's C interface, as far as a peer needs it that says what the plugin never would."""

import ctypes
import os
import pathlib
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p

INT, UINT, FLOAT, OPAQUE = 0, 1, 2, 3
DEAD, STRINGS = 1, 2
NO_TIMEOUT = -1


BUILT = pathlib.Path(__file__).resolve().parents[3] / "target" / "debug" / "libsealane_c.so"


def library():
    """$SEALANE_C_LIBRARY, or what `cargo build --package sealane-c` makes, or what the system has; None if there is none."""
    for path in filter(None, (os.environ.get("SEALANE_C_LIBRARY"), str(BUILT), "libsealane_c.so")):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class Text(Structure):
    _fields_ = [("start", c_char_p), ("bytes", c_size_t)]

    @classmethod
    def of(cls, text):
        encoded = text.encode()
        return cls(encoded, len(encoded))


class Meta(Structure):
    _fields_ = [
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("flags", c_uint8),
        ("rank", c_uint8),
        ("reserved", c_uint16),
        ("dims", POINTER(c_uint64)),
    ]


class View(Structure):
    _fields_ = [("meta", Meta), ("data", c_void_p), ("bytes", c_size_t), ("version", c_int64)]


class Source(Structure):
    _fields_ = [("meta", Meta), ("data", c_char_p), ("bytes", c_size_t), ("release", c_void_p), ("release_context", c_void_p)]


class AttachOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("socket", c_char_p),
        ("arena_bytes", c_uint64),
        ("idle_spin_us", c_int64),
        ("attach_timeout_ms", c_int64),
        ("restart_timeout_ms", c_int64),
    ]


DONE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
ACCEPTED = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, POINTER(c_void_p), c_size_t)


def source(data, code=OPAQUE, bits=8, dims=None, lanes=1, flags=0):
    """A tensor of some bytes; opaque ones if nothing else is said."""
    dims = [len(data)] if dims is None else dims
    meta = Meta(code, bits, lanes, flags, len(dims), 0, (c_uint64 * len(dims))(*dims))
    made = Source(meta, data, len(data), None, None)
    made.content = data  # Of `made.data`, Python shows what is before the first zero.
    return made


class Task:
    """A task that is attached to a daemon."""

    def __init__(self, name, socket):
        self.library = library()
        for function in ("attach", "push", "send", "acceptor_open", "accept"):
            getattr(self.library, f"sealane_{function}").restype = c_void_p
        self.library.sealane_error_message.restype = c_char_p
        self.library.sealane_tensor_from.restype = c_char_p
        self.library.sealane_tensor_view.restype = View
        options = AttachOptions(ctypes.sizeof(AttachOptions), str(socket).encode(), 64 << 20, 50, 5000, 5000)
        self.task = c_void_p()
        self._take(self.library.sealane_attach(name.encode(), byref(options), byref(self.task)))

    def _take(self, error):
        if error:
            raise RuntimeError(self.library.sealane_error_message(c_void_p(error)).decode())

    def _wait(self, start):
        """Starts a call, and waits until it has ended."""
        over, failed = threading.Event(), []

        def done(_, error):
            if error:
                failed.append(self.library.sealane_error_message(c_void_p(error)).decode())
            over.set()

        callback = DONE(done)
        self._take(start(callback))
        assert over.wait(60), "a call that does not end"
        if failed:
            raise RuntimeError(failed[0])

    def detach(self):
        self.library.sealane_detach(self.task)

    def push(self, to, queue, message):
        tensor = message if isinstance(message, Source) else source(message)
        self._wait(
            lambda done: self.library.sealane_push(
                self.task, Text.of(to), Text.of(queue), byref(tensor), c_size_t(1), c_int64(10_000), done, None, None
            )
        )

    def send(self, to, step, key, tensor):
        """Does not wait until it is asked for."""
        done = DONE(lambda *_: None)
        kept.append((done, tensor))
        self._take(
            self.library.sealane_send(self.task, Text.of(to), c_int64(step), Text.of(key), byref(tensor), c_int64(60_000), done, None, None)
        )

    def send_and_wait(self, to, step, key, tensor):
        """Until the peer has it."""
        self._wait(
            lambda done: self.library.sealane_send(
                self.task, Text.of(to), c_int64(step), Text.of(key), byref(tensor), c_int64(60_000), done, None, None
            )
        )

    def listen(self, queue, heard):
        """Calls `heard` with who pushed a message into a queue of this task's, and with the message; for each."""
        acceptor = c_void_p()
        self._take(self.library.sealane_acceptor_open(self.task, Text.of(queue), None, byref(acceptor)))

        def accepted(_, error, tensors, count):
            for number in range(count):
                tensor = c_void_p(tensors[number])
                view = self.library.sealane_tensor_view(tensor)
                heard(self.library.sealane_tensor_from(tensor).decode(), ctypes.string_at(view.data, view.bytes))
                self.library.sealane_tensor_free(tensor)
            if not error:
                accept()

        callback = ACCEPTED(accepted)
        kept.append(callback)

        def accept():
            self._take(self.library.sealane_accept(acceptor, c_size_t(64), c_int64(NO_TIMEOUT), callback, None, None))

        accept()


# What callbacks need, for as long as this process lasts.
kept = []
