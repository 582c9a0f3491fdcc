"""Errors of a process that has no descriptors left name the limit to raise."""

import subprocess
import sys
import textwrap

import pytest

# Tries `attempt` with room for more and more descriptors until it succeeds; prints the errors of each failure as a line.
PROGRAM = """
import os, resource, threading
import sealane

class Store:
    def __init__(self):
        self.values, self.changed = dict(), threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, seconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, seconds):
                raise TimeoutError(key)
            return self.values[key]

def join(store, rank, errors, options):
    try:
        sealane.Group(store, rank, 2, timeout=1, **options).close()
    except Exception as error:
        errors.append(str(error))

def groups(far):
    store, errors = Store(), []
    options = [dict(host=str(rank), interface="127.0.0.1") if far else dict() for rank in range(2)]
    ranks = [threading.Thread(target=join, args=(store, rank, errors, options[rank])) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return errors

def attach(task, socket):
    try:
        sealane.attach(task, socket=socket).close()
    except Exception as error:
        return [str(error)]

def used():
    return max(map(int, os.listdir("/proc/self/fd")))

{attempt}
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
attempt()
first = used()
for room in range(100):
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + room, hard))
    errors = attempt()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if not errors:
        break
    print(" | ".join(errors))
"""


def failures(attempt):
    program = PROGRAM.format(attempt=textwrap.dedent(attempt))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and not ran.stderr, ran
    return ran.stdout.splitlines()


def check(lines):
    assert len(lines) > 2
    assert [line for line in lines if "ulimit -n" not in line] == []


@pytest.mark.parametrize("far", [False, True], ids=["one host", "two hosts"])
def test_group_without_descriptors_names_the_limit(far):
    check(failures(f"def attempt(): return groups({far})"))


def test_attach_without_descriptors_names_the_limit(own_daemon):
    from daemons import WORKER

    check(failures(f"def attempt(): return attach({WORKER!r}, {str(own_daemon.socket)!r})"))
