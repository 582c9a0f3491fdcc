"""Processes that are left over from another job, or hold a task's name."""

import os
import re
import signal
import subprocess
import sys

import daemons
import numpy as np
import pytest

import sealane

# Attaches and publishes. Once its standard input has ended, publishes until its attachment ends for good, and reports the error.
HOLDER = """
import sys, time, sealane
task = sealane.attach({task!r}, socket={socket!r}, timeout={stuck})
task.publish("w", 1, b"old")
print("up", flush=True)
sys.stdin.read()
until = time.monotonic() + {stuck}
while time.monotonic() < until:
    try:
        task.publish("w", 2, b"old")
    except sealane.Error as error:
        # While there is no daemon, calls fail too.
        if not isinstance(error, sealane.Unavailable) or "replaced" in str(error):
            print(type(error).__name__, error, flush=True)
            break
"""


def holder(socket):
    """A process that is attached as the ps, and stopped."""
    code = HOLDER.format(task=daemons.PS, socket=str(socket), stuck=daemons.STUCK)
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    return child


def end_of(child):
    """What the process says once it goes on."""
    child.send_signal(signal.SIGCONT)
    return child.communicate(timeout=daemons.STUCK)[0]


def test_stopped_process_of_an_old_job_stays_out_of_the_next(own_daemon):
    own_daemon.kill()
    own_daemon.flags += ["--job", "first"]
    assert own_daemon.start()
    old = holder(own_daemon.socket)
    own_daemon.kill()
    own_daemon.flags[-1] = "second"
    assert own_daemon.start()
    with sealane.attach(daemons.WORKER, socket=own_daemon.socket) as worker:
        pulling = worker.pull_async(daemons.PS, "w")
        said = end_of(old)
        assert "PermissionDenied" in said, said
        assert "serves job 'second', and this process belongs to job 'first'" in said
        with sealane.attach(daemons.PS, socket=own_daemon.socket, job="second") as ps:
            ps.publish("w", 1, np.array([7], "u1"))
            assert pulling.result()[0].tolist() == [7]


def test_stopped_process_is_replaced(own_daemon):
    stale = holder(own_daemon.socket)
    with pytest.raises(sealane.Unavailable, match=f"process {stale.pid} is already attached .* replace=True"):
        sealane.attach(daemons.PS, socket=own_daemon.socket)
    with sealane.attach(daemons.PS, socket=own_daemon.socket, replace=True) as ps:
        said = end_of(stale)
        assert "Unavailable" in said, said
        assert f"process {os.getpid()} has replaced this one as {daemons.PS}" in said
        assert re.search(rf"replaced the one .*replaced_pid={stale.pid}", own_daemon.log())
        ps.publish("w", 2, b"new")


def test_job_comes_from_the_environment_and_is_checked(own_daemon, monkeypatch):
    monkeypatch.setenv("SEALANE_JOB", "mine")
    with pytest.raises(sealane.PermissionDenied, match="serves no named job, and this process .* job 'mine'"):
        sealane.attach(daemons.PS, socket=own_daemon.socket)
    monkeypatch.setenv("SEALANE_JOB", "")
    sealane.attach(daemons.PS, socket=own_daemon.socket).close()
    monkeypatch.setenv("SEALANE_JOB", "not mine")
    with pytest.raises(sealane.InvalidArgument, match="SEALANE_JOB"):
        sealane.attach(daemons.PS, socket=own_daemon.socket)
    for bad in ["", "two words", "é", "x" * 65]:
        with pytest.raises(sealane.InvalidArgument, match="1 to 64 printable ASCII"):
            sealane.attach(daemons.PS, socket=own_daemon.socket, job=bad)
