"""Trains a small DLRM on Ray: parameter servers and workers are actors, and exchange rows of one table through Sealane.

    pip install 'sealane[ray]'
    python ray_dlrm.py                                    # on this machine, or from a node of a cluster: RAY_ADDRESS=...

What Ray starts anew, there or on another node, goes on where it was: parameter servers from what they last gave to the actor
``Job``, which is beside the driver. Training is asynchronous, and a step that is under way when one of the two goes is repeated.
"""

import argparse
import asyncio
import os
import time

import numpy as np
import ray
import sealane
import sealane.cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

FIELDS, ROWS, WIDTH, BATCH, RATE = 8, 2_000, 16, 128, 0.1
FEATURES = 13
# Of the table the first rows are the embeddings, all fields' together; then come the bottom layer, and the top layer with its bias.
BOTTOM = FIELDS * ROWS
TOP = BOTTOM + FEATURES
LEFT, RIGHT = np.triu_indices(FIELDS + 1, 1)
END = TOP + (len(LEFT) + 1 + WIDTH - 1) // WIDTH
DENSE = np.arange(BOTTOM, END)

# Seconds after which a call is repeated, and after which a worker gives up.
CALL, GIVE_UP = 5, 120
# Steps between two reports of a worker, and updates between two copies of a parameter server's state.
REPORT, SAVE = 20, 50


def batch(worker, step):
    """Features, a row of each field, and clicks that the model has to find the rules of."""
    rules, random = np.random.default_rng(1), np.random.default_rng([2, worker, step])
    taste, appeal = rules.standard_normal(FEATURES) * 0.5, rules.standard_normal((FIELDS, ROWS))
    features = random.standard_normal((BATCH, FEATURES)).astype(np.float32)
    # Few rows are popular and most are rare, as users and items are.
    rows = (random.random((BATCH, FIELDS)) ** 6 * ROWS).astype(np.int64)
    logits = features @ taste + appeal[np.arange(FIELDS), rows].sum(axis=1)
    return features, rows + np.arange(FIELDS) * ROWS, random.random(BATCH) < 1 / (1 + np.exp(-logits))


def gradients(embeddings, dense, features, clicks):
    """The loss, and the gradients of the embeddings and of the dense rows."""
    bottom, top = dense[:FEATURES], dense[FEATURES:].ravel()
    vectors = np.concatenate([(features @ bottom)[:, None], embeddings], axis=1)
    products = (vectors @ vectors.transpose(0, 2, 1))[:, LEFT, RIGHT]
    logits = products @ top[: len(LEFT)] + top[len(LEFT)]
    loss = np.mean(np.logaddexp(0, logits) - clicks * logits)
    error = (1 / (1 + np.exp(-logits)) - clicks) / BATCH
    of_products = np.zeros((BATCH, FIELDS + 1, FIELDS + 1), np.float32)
    of_products[:, LEFT, RIGHT] = of_products[:, RIGHT, LEFT] = error[:, None] * top[: len(LEFT)]
    of_vectors = of_products @ vectors
    of_top = np.zeros_like(top)
    of_top[: len(LEFT)], of_top[len(LEFT)] = products.T @ error, error.sum()
    of_dense = np.concatenate([features.T @ of_vectors[:, 0], of_top.reshape(-1, WIDTH)])
    return float(loss), of_vectors[:, 1:], of_dense


@ray.remote(num_cpus=0)
class Job:
    """What outlives the other actors: the states that they gave it, and lines for the driver to print."""

    def __init__(self):
        self.states, self.lines = {}, asyncio.Queue()

    async def save(self, name, state, line=None):
        self.states[name] = state
        if line:
            self.lines.put_nowait(line)

    async def load(self, name):
        return self.states.get(name)

    async def line(self):
        return await self.lines.get()


class Actor:
    def __init__(self, cluster, role, index):
        self.task, self.job = cluster.attach(role, index), ray.get_actor("job")
        self.index, self.name = index, f"{role}-{index}"
        self.table = sealane.ShardedTable("model", cluster.tasks["ps"], rows=END)
        self.state = ray.get(self.job.load.remote(self.name))
        line = f"{self.name} is on {ray.util.get_node_ip_address()}, process {os.getpid()}"
        ray.get(self.job.save.remote(self.name, self.state, line))


@ray.remote
class Ps(Actor):
    def serve(self):
        """Adds what workers push to the rows of this parameter server, by AdaGrad, as long as the job runs."""
        if self.state is None:
            values = np.random.default_rng(0).standard_normal((END, WIDTH), np.float32)[self.table.rows_of(self.index)] * 0.1
            self.state = values, np.full_like(values, 1e-6)
        values, squares = (part.copy() for part in self.state)
        with self.task.accept_rows("gradients") as updates:
            published = self.task.publish_table("model", values)
            count = 0
            while True:
                try:
                    update = updates.accept()
                except sealane.Unavailable:
                    continue  # The daemon is started anew, and has the table again by itself.
                squares[update.ids] += update.rows**2
                values[update.ids] -= RATE * update.rows / np.sqrt(squares[update.ids])
                published.update(update.ids, values[update.ids])
                count += 1
                if count % SAVE == 0:
                    ray.get(self.job.save.remote(self.name, (values, squares)))


@ray.remote
class Worker(Actor):
    def train(self, steps):
        losses = []
        for step in range(self.state or 0, steps):
            losses.append(self.step(*batch(self.index, step)))
            if (step + 1) % REPORT == 0 or step + 1 == steps:
                line = f"{self.name} has done {step + 1} steps, loss {np.mean(losses):.4f}"
                ray.get(self.job.save.remote(self.name, step + 1, line))
                losses.clear()

    def step(self, features, rows, clicks):
        ids = np.concatenate([rows.ravel(), DENSE])
        until = time.monotonic() + GIVE_UP
        while True:
            try:
                pulled = self.task.pull_rows(self.table, ids, timeout=CALL)
                embeddings, dense = np.split(pulled, [rows.size])
                loss, of_rows, of_dense = gradients(embeddings.reshape(*rows.shape, WIDTH), dense, features, clicks)
                found = np.concatenate([of_rows.reshape(-1, WIDTH), of_dense]).astype(np.float32)
                self.task.push_rows(self.table, "gradients", ids, found, sum=True, timeout=CALL)
                return loss
            except (sealane.Unavailable, sealane.DeadlineExceeded):
                # A parameter server is gone, or is moving. The map says where it is as soon as it has attached.
                if time.monotonic() > until:
                    raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500, help="of each worker")
    options = parser.parse_args()
    ray.init()
    with sealane.cluster.from_ray({"ps": options.ps, "worker": options.workers}) as cluster:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        job = Job.options(name="job", scheduling_strategy=here).remote()
        # Ray starts an actor anew, and calls it again, as often as it must.
        anew = {"max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD", "num_cpus": 0.5}
        servers = [Ps.options(**anew).remote(cluster, "ps", index) for index in range(options.ps)]
        workers = [Worker.options(**anew).remote(cluster, "worker", index) for index in range(options.workers)]
        serving, training = [ps.serve.remote() for ps in servers], [worker.train.remote(options.steps) for worker in workers]
        line = job.line.remote()
        while training:
            (ready,), _ = ray.wait([line, *serving, *training])
            told = ray.get(ready)
            if ready == line:
                print(told, flush=True)
                line = job.line.remote()
            else:
                training.remove(ready)
    print("trained")


if __name__ == "__main__":
    main()
