"""Many steps: nothing grows."""

import pathlib

import steps
import tensorflow as tf

import cluster
from cluster import STUCK, wait_until

v1 = tf.compat.v1
WARM, MEASURED = 1000, 10_000
# What may come on top: allocators of TensorFlow's and of the C library keep memory in pools whose sizes waver by a few pages a thread.
# A leak of 4 KiB a step would be 40 MiB; of a hundred bytes a tensor, 9 MiB.
GROWTH_BYTES = 8 << 20
DESCRIPTORS = 8
# Each of the two tasks keeps one recv in progress that reports the loss of the other's daemon.
WATCHES = 2


def step_of():
    """Tensors both ways: of 4 bytes, in place, announced; text; and dead ones."""
    with tf.device(steps.device("ps")):
        which = v1.placeholder(tf.bool, [])
        small = [tf.fill([], float(number)) for number in range(2)]
        large = tf.fill([2000], 1.0)
        text = tf.strings.as_string(tf.range(10))
        off, on = tf.raw_ops.Switch(data=large, pred=which)
    with tf.device(steps.device("worker")):
        here = tf.add_n(small) + tf.reduce_sum(large) + tf.cast(tf.size(text), tf.float32)
        taken, other = on * 2.0, off * 3.0
    with tf.device(steps.device("ps")):
        merged = tf.reduce_sum(tf.raw_ops.Merge(inputs=[other, taken]).output) + here
    with tf.device(steps.device("worker")):
        return which, tf.identity(merged)


def soak(count):
    """Makes so many steps in a session of their own."""
    with tf.Graph().as_default() as graph:
        which, result = step_of()
        with cluster.session(graph) as session:
            run = session.make_callable(result, [which])
            for step in range(count):
                assert run(step % 2 == 0) == (4000.0 if step % 2 == 0 else 6000.0) + 2011.0


def memory(pid):
    """Bytes of its own that a process has: not what it shares with the daemon."""
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10


def descriptors(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def under_way(daemon):
    """Returns the calls of clients in progress at the daemon, and the bytes of their arenas that it holds."""
    clients = [client["counters"] for shard in daemon.stat()["shards"] for client in shard["clients"]]
    assert len(clients) == 2
    return sum(each["under_way"] for each in clients), sum(each["pinned_bytes"] for each in clients)


def test_nothing_grows_in_ten_thousand_steps(make_job):
    job = make_job(ps=1, worker=1).start_daemons()
    ps, worker = job.start_all(("ps", 0), ("worker", 0))
    pids = {"ps": ps.pid, "worker": worker.pid, "daemon": job.daemons[0].process.pid}
    worker.call(soak, WARM)
    before = {name: (memory(pid), descriptors(pid)) for name, pid in pids.items()}
    worker.begin(soak, MEASURED).result(4 * STUCK)
    after = {name: (memory(pid), descriptors(pid)) for name, pid in pids.items()}
    for name in pids:
        assert after[name][0] < before[name][0] + GROWTH_BYTES, (name, before, after)
        assert after[name][1] <= before[name][1] + DESCRIPTORS, (name, before, after)
    pair = worker.pairs()["ps/0"]
    assert pair["sealane"]["received_tensors"] >= MEASURED * 5 and pair["grpc"]["received_tensors"] == 0, pair

    def nothing_is_kept():
        calls, pinned_bytes = under_way(job.daemons[0])
        return calls <= WATCHES and pinned_bytes == 0

    wait_until("all calls but the watches have ended", nothing_is_kept)
