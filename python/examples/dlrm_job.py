"""What the parameter server and the workers of a DLRM job do, over any transport that has ``send_all_async``,
``recv_all_async`` and ``empty`` as a Sealane task has. Nothing here knows of processes or daemons.

Every step, a worker tells the parameter server which rows of the embedding tables its examples touch, and gets those
rows and the dense parameters; it sends back gradients of the same. Nothing else travels.
"""

import contextlib
import queue
import threading
import time

import dlrm_model as model
import numpy as np

PS = "ps0.train:2222"
SEED = 7
# How often the parameter server tells how far it is: a person reads it, and each time costs a turn of the CPU.
REPORTS_EVERY_SECONDS = 0.1

IDS = [f"ids/{table}" for table in range(model.TABLES)]
ROWS = [f"rows/{table}" for table in range(model.TABLES)]
DENSE_GRADIENTS = [f"{name}:gradient" for name in model.SHAPES]
ROW_GRADIENTS = [f"{name}:gradient" for name in ROWS]
GRADIENTS = [*DENSE_GRADIENTS, *ROW_GRADIENTS, "loss"]


def worker_name(number):
    return f"worker{number}.train:2222"


# What is computed -----------------------------------------------------------------------------------------------------


class Parameters:
    """What the parameter server has: dense parameters by name, and embedding tables."""

    def __init__(self, empty=np.empty):
        dense, self.tables = model.parameters(SEED)
        # With a task's ``empty``, memory that is shared with the daemon: sending it to each worker copies nothing.
        self.dense = {name: empty(values.shape, values.dtype) for name, values in dense.items()}
        for name, values in dense.items():
            self.dense[name][:] = values

    def rows(self, touched):
        return [table[each] for table, each in zip(self.tables, touched)]

    def update(self, shares):
        """``shares`` has each worker's rows and gradients, and they are added in this order."""
        model.update(self.dense, self.tables, shares)


class Learner:
    """A worker's part of each batch, and what it learns of it."""

    def __init__(self, worker, workers):
        self.clicks, self.part = model.Clicks(SEED), (worker, workers)

    def touch(self, step):
        """The rows of each table that the examples of this step touch."""
        self.features, ids, self.clicked = self.clicks.share(step, *self.part)
        self.touched, self.which = zip(*(np.unique(each, return_inverse=True) for each in ids))
        return self.touched

    def learn(self, dense, rows):
        """Gradients by name, those of rows as a list, and the loss."""
        embeddings = [row[each] for row, each in zip(rows, self.which)]
        loss, found, errors = model.gradients(dense, embeddings, self.features, self.clicked)
        return found, [model.row_gradients(*each) for each in zip(self.touched, self.which, errors)], np.float64(loss)


class IdleParameters(Parameters):
    """Computes nothing: the rows of the first step, again and again."""

    def __init__(self, empty=np.empty):
        super().__init__(empty)
        self.known = {}

    def rows(self, touched):
        sizes = tuple(map(len, touched))
        if sizes not in self.known:
            self.known[sizes] = super().rows(touched)
        return self.known[sizes]

    def update(self, shares):
        pass


class IdleLearner(Learner):
    """Computes nothing, for so many seconds, as if a GPU did: the examples of the first step, and zeros for gradients."""

    def __init__(self, worker, workers, seconds):
        super().__init__(worker, workers)
        touched = super().touch(0)
        dense = {name: np.zeros(shape, np.float32) for name, shape in model.SHAPES.items()}
        rows = [np.zeros((len(each), model.WIDTH), np.float32) for each in touched]
        self.seconds, self.learned = seconds, (dense, rows, np.float64(0))

    def touch(self, step):
        return self.touched

    def learn(self, dense, rows):
        if self.seconds:
            time.sleep(self.seconds)
        return self.learned


# Each side of the job -------------------------------------------------------------------------------------------------


class Journal:
    """Losses and when their steps ended, and tells them now and then. A loss is there when each worker's share of it is."""

    def __init__(self, workers, report):
        self.workers, self.report = workers, report
        self.losses, self.ended, self.shares, self.told = [], [], [], time.perf_counter()

    def add(self, share):
        self.shares.append(share)
        if len(self.shares) < self.workers:
            return
        self.losses.append(float(sum(self.shares)) / model.BATCH)
        self.shares.clear()
        now = time.perf_counter()
        self.ended.append(now)
        if now > self.told + REPORTS_EVERY_SECONDS:
            self.report.send(("losses", self.losses))
            self.told = now


def serve(task, steps, workers, report, synchronous=True, idle=None):
    """The parameter server. If it is synchronous it adds the gradients of all workers and updates, so that the result is
    that of one process, to the bit; else it updates with each worker's as they come."""
    parameters = Parameters(task.empty) if idle is None else IdleParameters(task.empty)
    journal = Journal(workers, report)
    names = [worker_name(number) for number in range(workers)]
    if synchronous:
        serve_together(task, steps, names, parameters, journal)
    else:
        lock, outcomes = threading.Lock(), queue.SimpleQueue()

        def serve_one(name):
            try:
                outcomes.put(serve_together(task, steps, [name], parameters, journal, lock))
            except Exception as error:
                outcomes.put(error)

        for name in names:
            threading.Thread(target=serve_one, args=(name,), daemon=True).start()
        for _ in names:
            if failure := outcomes.get():
                raise failure
    dense = {name: np.array(values) for name, values in parameters.dense.items()}
    report.send(("trained", journal.losses, journal.ended, dense, parameters.tables))


def serve_together(task, steps, names, parameters, journal, lock=None):
    """Serves workers that go in step. With a lock there are others, who may update in between: it is held where this reads
    and updates."""
    # All are asked before the first is waited for, so that what they send is on its way together.
    ids = [task.recv_all_async(name, 0, IDS) for name in names]
    for step in range(steps):
        gradients = [task.recv_all_async(name, step, GRADIENTS) for name in names]
        shares, sendings = [], []
        for name, asked in zip(names, ids):
            touched = list(asked.result().values())
            with lock or contextlib.nullcontext():
                # What others may write to is copied, and else sent in place.
                dense = {key: values.copy() for key, values in parameters.dense.items()} if lock else parameters.dense
                sent = {**dense, **dict(zip(ROWS, parameters.rows(touched)))}
            sendings.append(task.send_all_async(name, step, sent))
            shares.append({"touched": touched})
        if step + 1 < steps:
            ids = [task.recv_all_async(name, step + 1, IDS) for name in names]
        for share, asked in zip(shares, gradients):
            found = asked.result()
            share["dense"] = {name: found[key] for name, key in zip(model.SHAPES, DENSE_GRADIENTS)}
            share["rows"] = [found[key] for key in ROW_GRADIENTS]
            share["loss"] = found["loss"]
        for sending in sendings:
            sending.result()
        with lock or contextlib.nullcontext():
            parameters.update(shares)
            for share in shares:
                journal.add(share["loss"])


def work(task, steps, worker, workers, idle=None):
    """A worker."""
    learner = Learner(worker, workers) if idle is None else IdleLearner(worker, workers, idle)
    # The dense parameters arrive here each step, without a copy.
    dense = {name: task.empty(shape, np.float32) for name, shape in model.SHAPES.items()}
    wanted, sendings = [*dense, *ROWS], []
    for step in range(steps):
        receiving = task.recv_all_async(PS, step, wanted, out=dense)
        ids = task.send_all_async(PS, step, dict(zip(IDS, learner.touch(step))))
        got = receiving.result()
        found, rows, loss = learner.learn(dense, [got[key] for key in ROWS])
        sent = {key: found[name] for name, key in zip(model.SHAPES, DENSE_GRADIENTS)}
        sent |= {**dict(zip(ROW_GRADIENTS, rows)), "loss": loss}
        # What the last step sent has long arrived, or this one's parameters would not be there.
        for sending in sendings:
            sending.result()
        sendings = [ids, task.send_all_async(PS, step, sent)]
    for sending in sendings:
        sending.result()


def alone(steps, workers):
    """The same training in one process: losses, dense parameters and tables."""
    parameters, learners, losses = Parameters(), [Learner(worker, workers) for worker in range(workers)], []
    for step in range(steps):
        shares = []
        for learner in learners:
            touched = learner.touch(step)
            found, rows, loss = learner.learn(parameters.dense, parameters.rows(touched))
            shares.append({"touched": touched, "dense": found, "rows": rows, "loss": loss})
        parameters.update(shares)
        losses.append(float(sum(share["loss"] for share in shares)) / model.BATCH)
    return losses, parameters.dense, parameters.tables
