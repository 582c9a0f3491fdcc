"""Programs of the tests of Ray, which are drivers: processes of their own, on the host that the test chooses."""

import sys

import numpy as np
import ray
import sealane
import sealane.cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, cluster, role):
        self.task = cluster.attach(role, 0)
        self.table = sealane.ShardedTable("model", cluster.tasks["ps"])

    def publish(self, value):
        self.task.publish_table("model", np.full((10, 4), value, np.float32))

    def pull(self):
        return self.task.pull_rows(self.table, [7], timeout=20)[0, 0]


def moves(*addresses):
    """The parameter server goes from host to host; its worker, on the first of them, finds it on each."""
    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
    on = [{"scheduling_strategy": NodeAffinitySchedulingStrategy(nodes[address], soft=False)} for address in addresses]
    cluster = sealane.cluster.from_ray({"ps": 1, "worker": 1}, settings={"runtime.shards": 1})
    worker = Actor.options(**on[0]).remote(cluster, "worker")
    for value, place in enumerate([0, 1, 0, 1]):
        ps = Actor.options(**on[place]).remote(cluster, "ps")
        ray.get(ps.publish.remote(value))
        assert ray.get(worker.pull.remote()) == value
        ray.kill(ps)


def errors():
    """What does not work says why."""
    for what, expected, words in [
        (lambda: attach({"ps": 1}, "ps", 1), sealane.InvalidArgument, "there is no ps 1"),
        (lambda: attach({"ps": 1, "worker": 1}, "ps", timeout=0.1), sealane.DeadlineExceeded, "['worker-0:2222']"),
        (lambda: attach({"ps": 1}, "ps", settings={"runtime.shards": 0}), sealane.Unavailable, "runtime.shards"),
        (lambda: attach({"ps": 1}, "ps", program="/nowhere/sealane"), FileNotFoundError, "/nowhere/sealane"),
    ]:
        try:
            what()
        except expected as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    # One after another, each of which may have the port.
    for _ in range(2):
        attach({"ps": 1}, "ps").close()


def attach(roles, role, index=0, *, timeout=60, **options):
    with sealane.cluster.from_ray(roles, **options) as cluster:
        return cluster.attach(role, index, timeout=timeout)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]](*sys.argv[2:])
    print("done")
