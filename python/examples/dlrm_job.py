"""What the parameter servers and the workers of a DLRM job do, and how they do it with Sealane's tables.

All embedding tables have rows of one width, so they are published as one, behind one another, of which each parameter
server has a part; the dense parameters are another, with one row for each of them. Every step, a worker pulls the rows of
its examples and the dense parameters, and pushes gradients of the same. Nothing else travels.
"""

import dataclasses
import functools
import importlib
import itertools
import time

import dlrm_clicks as clicks
import numpy as np
import sealane
from dlrm_adagrad import SEED, Part, digest, summed
from dlrm_model import DENSE, WIDTH

# Examples on which the model is judged.
HELD_OUT = 1024
# How often a worker tells how far it is: a person reads it, and each time costs a turn of the CPU.
REPORTS_EVERY_SECONDS = 0.1
ACCEPTED_AT_ONCE = 64
NO_ROWS = (np.zeros(0, np.uint64), np.zeros((0, WIDTH), np.float32))


@dataclasses.dataclass(frozen=True)
class Job:
    """What all processes know. With ``idle`` nothing is computed, for so many seconds a step, as if a GPU did."""

    steps: int
    workers: int
    servers: int = 1
    rows: int = 100_000
    batch: int = 128
    model: str = "dlrm_model"
    synchronous: bool = True
    idle: float | None = None
    judge_every: int = 100

    @property
    def worker_names(self):
        return [f"worker{number}.train:2222" for number in range(self.workers)]

    @property
    def server_names(self):
        return [f"ps{number}.train:2222" for number in range(self.servers)]

    @functools.cached_property
    def tables(self):
        return clicks.rows_of_tables(self.rows)

    @property
    def dense_shape(self):
        """The dense parameters are a table with a row for each parameter server."""
        return self.servers, -(-DENSE // self.servers)

    @property
    def bytes_of_tables(self):
        return sum(self.tables) * WIDTH * np.dtype(np.float32).itemsize

    def batches(self, worker, named=lambda ids: ids):
        """A worker's part of each step's batch: dense features, what names the rows, and clicks."""
        batches = clicks.Clicks(self.tables, SEED).batches(self.batch // self.workers, worker)
        if self.idle is None:
            return ((features, named(ids), clicked) for features, ids, clicked in batches)
        features, ids, clicked = next(batches)
        return itertools.repeat((features, named(np.unique(ids)), clicked))

    def held_out(self, named=lambda ids: ids):
        """Examples on which the model is judged."""
        features, ids, clicked = next(clicks.Clicks(self.tables, SEED).batches(HELD_OUT, self.workers))
        return features, named(ids), clicked

    def is_judged(self, step):
        return self.idle is None and (step % self.judge_every == 0 or step == self.steps)


def model_of(job):
    """What computes gradients: a module with ``gradients`` and ``predict``."""
    return importlib.import_module(job.model) if job.idle is None else Idle(job)


class Idle:
    """A model that computes nothing."""

    def __init__(self, job):
        self.seconds, self.found = job.idle, None

    def gradients(self, dense, rows, features, clicked):
        if self.seconds:
            time.sleep(self.seconds)
        self.found = self.found or (0.0, np.zeros_like(dense), np.zeros_like(rows))
        return self.found


# Each side of the job -------------------------------------------------------------------------------------------------


class Worker:
    """A worker's way to the parameters. A row that many examples share travels once, and so does the sum of its gradients."""

    def __init__(self, task, job):
        self.task, self.is_synchronous = task, job.synchronous
        embeddings = sealane.ShardedTable("embeddings", job.server_names, rows=sum(job.tables))
        self.tables = [embeddings, sealane.ShardedTable("dense", job.server_names, rows=job.servers)]
        self.all_dense, self.pushing = np.arange(job.servers), None

    def named(self, ids):
        """What ``exchange`` takes to name rows: their numbers, in any order, each as often as it is used."""
        return ids

    def exchange(self, version, ids, learned=None):
        """Pushes what was learned, if anything was: of which rows, their gradients, and those of the dense parameters. Then
        pulls rows and the dense parameters, of this version: the returned object's ``result`` waits for them."""
        if self.pushing:
            self.pushing.result()
        if learned:
            learned_of, rows, dense = learned
            learned_of = [learned_of, self.all_dense]
            pushed = [rows, dense]
            self.pushing = self.task.push_all_rows_async(self.tables, "gradients", learned_of, pushed, sum=True)
            if not self.is_synchronous:
                # What others have pushed may come later, but what this worker has is learned before it goes on.
                for owner in self.tables[0].owners:
                    self.task.pull(owner, f"learned/{self.task.name}", version)
        # Synchronously, a table that has not learned from all workers yet is waited for.
        oldest = version if self.is_synchronous else None
        return self.task.pull_all_rows_async(self.tables, [ids, self.all_dense], min_version=oldest)


def serve(task, job, number, report):
    """A parameter server. If it is synchronous it adds the gradients of all workers up before it learns, and then has a new
    version, so that the result is that of one process, to the bit; else it learns from each worker's as they come."""
    part = Part(job, number, job.servers, task.empty)
    tables = [task.publish_table("embeddings", part.rows), task.publish_table("dense", part.dense)]
    together, learned = job.workers if job.synchronous else 1, dict.fromkeys(job.worker_names, 0)
    with task.accept_rows("gradients") as accepted:
        pushes = whole_pushes(accepted)
        for version in range(1, job.steps * job.workers // together + 1):
            pushed = dict(itertools.islice(pushes, together))
            if job.idle is None:
                ids, rows, dense = part.learn([pushed[name] for name in job.worker_names if name in pushed])
                tables[0].add(ids, rows)
                tables[1].add([0], dense)
            if job.synchronous:
                task.set_versions(tables, version)
            for name in [] if job.synchronous else pushed:
                learned[name] += 1
                task.publish(f"learned/{name}", learned[name], np.int64(version))
    report.send(("ended", digest(part.rows, part.dense)))


def whole_pushes(accepted):
    """Who has pushed, and numbers of rows, their gradients, and the dense ones, which come last. There may be no rows."""
    rows = {}
    while True:
        for sender, table, ids, gradients in accepted.accept_many(ACCEPTED_AT_ONCE):
            if table == "embeddings":
                rows[sender] = ids, gradients
            else:
                yield sender, (*rows.pop(sender, NO_ROWS), gradients)


def work(way, job, worker, report):
    """A worker, over Sealane or anything else that has the methods of ``Worker``. The first one judges the model, too."""
    model, batches, held_out = model_of(job), job.batches(worker, way.named), job.held_out(way.named)
    losses, moments, aucs, learned, told = [], [], [], None, time.perf_counter()
    features, named, clicked = next(batches)
    for step in range(job.steps + 1):
        if worker == 0 and job.is_judged(step):
            rows, dense = way.exchange(step, held_out[1], learned).result()
            learned, now = None, time.perf_counter()
            aucs.append((step, now, clicks.auc(model.predict(dense, rows, held_out[0]), held_out[2])))
        pulling = way.exchange(step, named, learned)
        # While that is on its way.
        following = next(batches)
        rows, dense = pulling.result()
        moments.append(time.perf_counter())
        if step == job.steps:
            break
        loss, found, errors = model.gradients(dense, rows, features, clicked)
        losses.append(float(loss))
        learned, (features, named, clicked) = (named, errors, found), following
        if worker == 0 and moments[-1] > told + REPORTS_EVERY_SECONDS:
            told = moments[-1]
            report.send(("progress", step + 1, losses[-1] / len(clicked), aucs))
    report.send(("ended", (losses, moments, aucs)))


def alone(job):
    """The same training in one process: losses, AUC by step, and digests of what each parameter server has."""
    model, part, (features, ids, clicked) = model_of(job), Part(job, 0, 1), job.held_out()
    batches, losses, aucs = [job.batches(worker) for worker in range(job.workers)], [], []
    for step in range(job.steps + 1):
        if job.is_judged(step):
            aucs.append((step, clicks.auc(model.predict(part.dense, part.rows[ids], features), clicked)))
        if step == job.steps:
            break
        pushed, shares = [], []
        for its_features, its_ids, its_clicked in map(next, batches):
            loss, found, errors = model.gradients(part.dense, part.rows[its_ids], its_features, its_clicked)
            touched, which = np.unique(its_ids, return_inverse=True)
            pushed.append((touched, summed(len(touched), which, errors), found))
            shares.append(float(loss))
        losses.append(sum(shares) / job.batch)
        touched, rows, dense = part.learn(pushed)
        part.rows[touched] += rows
        part.dense += dense
    of_owner = [slice(owner, None, job.servers) for owner in range(job.servers)]
    return losses, aucs, [digest(part.rows[mine], part.dense[mine]) for mine in of_owner]
