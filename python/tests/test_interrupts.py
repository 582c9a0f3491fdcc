"""Control-C ends every wait with KeyboardInterrupt."""

import subprocess
import sys
import textwrap
import time

import pytest

# Far longer than any of these tests takes.
LIMIT = 100

# `wait` is the call to interrupt; the signal is sent once the main thread is in it, and the other ranks, which are threads, wait too.
PROGRAM = """
import os, signal, socket, sys, tempfile, threading, time
import numpy as np
import sealane

signal.signal(signal.SIGINT, signal.default_int_handler)
LIMIT = {limit}
values, changed = dict(), threading.Condition()

class Store:
    '''Ranks that stop join no further than to the key of that name.'''
    def __init__(self, stops_at=None):
        self.stops_at = stops_at

    def set(self, key, value):
        with changed:
            values[key] = value
            changed.notify_all()

    def get(self, key, seconds):
        with changed:
            assert changed.wait_for(lambda: key in values and key != self.stops_at, seconds)
            return values[key]

def other(rank, size, stops_at=None, **options):
    def join():
        with sealane.Group(Store(stops_at), rank, size, timeout=LIMIT, **options) as group:
            joined.set()
            threading.Event().wait()
    joined = threading.Event()
    threading.Thread(target=join, daemon=True).start()
    return joined

def group(rank, size, **options):
    return sealane.Group(Store(), rank, size, timeout=LIMIT, **options)

def pair(**options):
    joined = other(1, 2, **({{**options, "host": "another"}} if options else {{}}))
    made = group(0, 2, **options)
    joined.wait()
    return made

FAR = {{"host": "one", "interface": "127.0.0.1"}}

{prepare}

def wait():
    {call}

def place():
    '''Where the main thread is, within `wait`.'''
    top = frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not wait.__code__:
        frame = frame.f_back
    return frame and (top.f_code, top.f_lasti)

def interrupt():
    before = None
    while before is None or place() != before:
        before = place()
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    wait()
    print("no error")
except BaseException as error:
    print(type(error).__name__, error)
{after}
sys.stdout.flush()
os._exit(0)
"""

WAITS = {
    "the store": ("", "group(0, 2)"),
    "ranks of this host that join": ("other(1, 2, stops_at='sealane/0')", "group(0, 2)"),
    "ranks of other hosts that join": (
        "other(1, 2, stops_at='sealane/0/tcp', host='another', interface='127.0.0.1')",
        "group(0, 2, **FAR)",
    ),
    "barrier": ("it = pair()", "it.barrier()"),
    "barrier over hosts": ("it = pair(**FAR)", "it.barrier()"),
    "broadcast over hosts": ("it = pair(**FAR); data = np.ones(3)", "it.broadcast(data, root=1)"),
    "all_reduce": ("it = pair(); data = np.ones(1_000_000)", "it.all_reduce(data)"),
    "all_to_all over hosts": ("it = pair(**FAR); data = np.ones(1_000_000)", "it.all_to_all(data, np.ones(1_000_000))"),
    "recv": ("it = pair(); call = it.recv(np.ones(3))", "call.wait()"),
    "recv over hosts": ("it = pair(**FAR); call = it.recv(np.ones(3))", "call.wait(LIMIT)"),
    "send": ("it = pair(); call = it.send(np.ones(1_000_000), 1)", "call.wait()"),
    "a collective of the group's thread": ("it = pair(); call = it._group.barrier(LIMIT, False)", "call.wait()"),
    "a collective of another thread": (
        "it = pair(); began = it._group.barrier(LIMIT, False)",
        "it.barrier()",
    ),
    "attach": (
        "path = tempfile.mkdtemp() + '/socket'\n"
        "daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "daemon.bind(path)\n"
        "daemon.listen()",
        "sealane.attach('worker0:2222', socket=path, timeout=LIMIT)",
    ),
}


def outcome(prepare, call, after=""):
    program = PROGRAM.format(prepare=prepare, call=call, after=textwrap.dedent(after), limit=LIMIT)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT / 2)
    assert not ran.stderr, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", WAITS)
def test_control_c_ends_the_wait_for(name):
    began = time.monotonic()
    assert outcome(*WAITS[name]) == "KeyboardInterrupt \n"
    # Not a measure of speed: far from the deadline of the call.
    assert time.monotonic() - began < LIMIT / 4


def test_interrupted_collective_ends_its_group_for_all():
    after = """
    try:
        it.barrier()
    except sealane.Unavailable as error:
        print(error)
    """
    interrupted, error = outcome("it = pair()", "it.barrier()", after).splitlines()
    assert (interrupted, error) == ("KeyboardInterrupt ", "the group is unavailable: a signal interrupted a call of rank 0")


def test_interrupted_message_continues():
    prepare = """\
into = np.zeros(3)
received, joined = threading.Event(), threading.Event()
def send():
    with sealane.Group(Store(), 1, 2, timeout=LIMIT) as group:
        joined.set()
        received.wait()
        group.send(np.ones(3), 0).wait()
threading.Thread(target=send).start()
it = group(0, 2)
joined.wait()
call = it.recv(into)"""
    after = """
    received.set()
    print(call.wait(), into.tolist())
    """
    assert outcome(prepare, "call.wait()", after).splitlines() == ["KeyboardInterrupt ", "1 [1.0, 1.0, 1.0]"]
