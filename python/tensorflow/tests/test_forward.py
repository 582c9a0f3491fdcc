"""A gRPC job of TensorFlow that knows nothing of Sealane, carried by two `sealane forward --map`."""

import contextlib
import json
import os
import subprocess

import steps
from cluster import Pending, binary, wait_until


@contextlib.contextmanager
def forwarder(job, daemon, name):
    """Forwards a task's connections; gives the job's cluster with the addresses of its host."""
    address = job.cluster[name][0]
    command = [binary(), "forward", "--endpoint-map", job.map, "--socket", daemon.socket, "--task", address, "--target", address, "--map"]
    config = json.dumps({"cluster": job.cluster, "task": {"type": name, "index": 0}})
    environment = {"PATH": os.environ["PATH"], "TF_CONFIG": config}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=job.directory) as process:
        try:
            yield json.loads(process.stdout.readline())["cluster"]
        finally:
            process.kill()


def bytes_received(daemon):
    """By the daemon's clients: the forwarder's streams go by connections of their own, of which no shard counts the bytes."""
    [shard] = daemon.stat()["shards"]
    return sum(client["counters"]["bytes_received"] for client in shard["clients"])


def test_a_job_that_was_not_changed_trains_over_forwarders(make_job):
    job = make_job(ps=1, worker=1, daemons=2).start_daemons()
    names = ["ps", "worker"]
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(forwarder(job, daemon, name)) for daemon, name in zip(job.daemons, names)]
        for name, other, cluster in zip(names, reversed(names), clusters):
            assert cluster[name] == job.cluster[name] and cluster[other] != job.cluster[other]
        nodes = [job.begin(name, protocol="grpc", plugin=False, cluster=cluster) for name, cluster in zip(names, clusters)]
        for node in nodes:
            Pending(node, 0).result()
        pulled, _ = nodes[1].call(steps.train, 1, 20)
        assert pulled == steps.trained(1, 20)
        # Twenty variables went each way, and between the two hosts nothing but Sealane carries them. The forwarders tell now and then.
        for daemon in job.daemons:
            wait_until("bytes of forwarded streams in stat", lambda: bytes_received(daemon) > 20 * 4 * steps.SIZE)
