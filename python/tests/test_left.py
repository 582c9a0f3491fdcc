"""Tasks whose process is killed: who waits for them is told at once, and so is who asks later and does not wait for their return."""

import subprocess
import sys
import time

import pytest
import sealane
from daemons import PS, STUCK, WORKER, two_daemons

CHILD = """
import sys, sealane
task = sealane.attach(sys.argv[1], socket=sys.argv[2], arena_bytes=1 << 20)
print("attached", flush=True)
sys.stdin.read()
"""


def test_a_task_that_was_killed_ends_what_waits_for_it():
    with two_daemons() as (there, here), here.attach(WORKER) as worker:
        queue, users = worker.acceptor("gradients"), sealane.ShardedTable("user", PS)
        never = worker.recv_async(PS, 1, "before anybody came", timeout=STUCK, fail_if_gone=True)
        child = subprocess.Popen([sys.executable, "-c", CHILD, PS, there.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"attached\n"
        with pytest.raises(sealane.DeadlineExceeded):
            queue.accept(timeout=0.2, fail_if_gone=[PS])
        waiting = worker.recv_async(PS, 1, "w", timeout=STUCK, fail_if_gone=True)
        begun = time.monotonic()
        child.kill()
        for receiving in never, waiting:
            with pytest.raises(sealane.Left, match=f"{PS} has left \\(process {child.pid} was attached as this task"):
                receiving.result()
        later = [
            lambda: worker.recv(PS, 1, "w", timeout=STUCK, fail_if_gone=True),
            lambda: worker.recv_all(PS, 1, ["v", "w"], timeout=STUCK, fail_if_gone=True),
            lambda: worker.pull(PS, "w", timeout=STUCK, fail_if_gone=True),
            lambda: worker.pull_many(PS, ["w"], timeout=STUCK, fail_if_gone=True),
            lambda: worker.plan(PS, ["w"]).pull(timeout=STUCK, fail_if_gone=True),
            lambda: worker.pull_rows(users, [1], timeout=STUCK),
            lambda: queue.accept(timeout=STUCK, fail_if_gone=[PS]),
        ]
        for call in later:
            with pytest.raises(sealane.Left, match=f"{PS} has left"):
                call()
        assert time.monotonic() - begun < STUCK, "by a deadline, and not by the end of the process"
        for call in (
            lambda: worker.recv(PS, 1, "w", timeout=0.2),
            lambda: worker.pull(PS, "w", timeout=0.2),
            lambda: worker.pull_rows(users, [1], timeout=0.2, fail_if_gone=False),
        ):
            with pytest.raises(sealane.DeadlineExceeded):
                call()
        child.communicate()
