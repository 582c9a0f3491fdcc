#!/usr/bin/env python3
"""A stand-in for a daemon that is slow: it tells that it reads the map some time before it does, and once more before it ends."""

import os
import pathlib
import signal
import socket
import sys
import time

SLOW = 0.2
directory = pathlib.Path(os.environ["NOTIFY_SOCKET"]).parent
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def tell(*lines):
    manager.sendto("\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])


def read():
    time.sleep(SLOW)
    text = (directory / "map").read_text()
    (directory / "read").write_text(text)
    return text


def reload():
    tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
    text = read()
    tell("READY=1", "STATUS=serves")
    return text


def end(*_):
    tell("READY=1", "STATUS=serves")
    sys.exit()


signal.signal(signal.SIGTERM, end)
known = read()
tell("READY=1", "STATUS=serves")
# As if another file beside the map had changed just now.
reload()
while os.getppid() != 1:
    if (directory / "map").read_text() != known:
        known = reload()
    time.sleep(0.01)
