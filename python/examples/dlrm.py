"""Trains a small DLRM on a parameter server and workers, each a process, which exchange tensors through Sealane.

Every step, a worker tells the parameter server which rows of the embedding tables its examples touch, and gets those
rows and the dense parameters; it sends back gradients of the same. Nothing else travels. The parameter server adds the
gradients of all workers and updates: synchronous training, so that the result is that of one process, to the bit, which
is checked at the end.

    python dlrm.py                  # two daemons, one parameter server, two workers
    python dlrm.py --embedded       # without daemons: an engine in each process
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

# One thread a process: the tables below are small, and sums are then the same in every process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import dlrm_model as model  # noqa: E402
import numpy as np  # noqa: E402
import sealane  # noqa: E402

PS = "ps0.train:2222"
SEED = 7
# A daemon that has not begun to listen after so many seconds will not.
STARTING_SECONDS = 60


def worker_name(number):
    return f"worker{number}.train:2222"


# Each side of the job -------------------------------------------------------------------------------------------------


def serve(task, steps, workers, report):
    """The parameter server."""
    dense, tables = model.parameters(SEED)
    # Memory that is shared with the daemon: sending it to each worker copies nothing.
    for name, values in dense.items():
        dense[name] = task.empty(values.shape, values.dtype)
        dense[name][:] = values
    ids = [f"ids/{table}" for table in range(model.TABLES)]
    gradients = [f"{name}:gradient" for name in dense] + [f"rows/{table}:gradient" for table in range(model.TABLES)]

    for step in range(steps):
        shares = []
        for worker in map(worker_name, range(workers)):
            touched = list(task.recv_all(worker, step, ids).values())
            rows = {f"rows/{number}": table[each] for number, (table, each) in enumerate(zip(tables, touched))}
            task.send_all(worker, step, {**dense, **rows})
            shares.append({"touched": touched})
        loss = 0
        for worker, share in enumerate(shares):
            found = task.recv_all(worker_name(worker), step, [*gradients, "loss"])
            loss += found["loss"]
            share["dense"] = {name: found[f"{name}:gradient"] for name in dense}
            share["rows"] = [found[f"rows/{table}:gradient"] for table in range(model.TABLES)]
        model.update(dense, tables, shares)
        report.send(("loss", float(loss) / model.BATCH))
    report.send(("parameters", {name: np.array(values) for name, values in dense.items()}, tables))


def work(task, steps, worker, workers):
    """A worker."""
    clicks = model.Clicks(SEED)
    # The dense parameters arrive here each step, without a copy.
    dense = {name: task.empty(shape) for name, shape in model.SHAPES.items()}
    rows = [f"rows/{table}" for table in range(model.TABLES)]

    for step in range(steps):
        features, ids, clicked = clicks.share(step, worker, workers)
        touched, which = zip(*(np.unique(each, return_inverse=True) for each in ids))
        task.send_all(PS, step, {f"ids/{table}": each for table, each in enumerate(touched)})
        got = task.recv_all(PS, step, [*dense, *rows], out=dense)
        embeddings = [got[name][each] for name, each in zip(rows, which)]
        loss, found, errors = model.gradients(dense, embeddings, features, clicked)
        sent = {f"{name}:gradient": values for name, values in found.items()}
        for table, each in enumerate(errors):
            sent[f"rows/{table}:gradient"] = model.row_gradients(touched[table], which[table], each)
        task.send_all(PS, step, {**sent, "loss": np.float64(loss)})


def alone(steps, workers):
    """The same training in one process: losses, dense parameters and tables."""
    (dense, tables), clicks, losses = model.parameters(SEED), model.Clicks(SEED), []
    for step in range(steps):
        shares, total = [], 0
        for worker in range(workers):
            features, ids, clicked = clicks.share(step, worker, workers)
            touched, which = zip(*(np.unique(each, return_inverse=True) for each in ids))
            embeddings = [table[rows][each] for table, rows, each in zip(tables, touched, which)]
            loss, found, errors = model.gradients(dense, embeddings, features, clicked)
            rows = [model.row_gradients(*each) for each in zip(touched, which, errors)]
            shares.append({"touched": touched, "dense": found, "rows": rows})
            total += np.float64(loss)
        model.update(dense, tables, shares)
        losses.append(float(total) / model.BATCH)
    return losses, dense, tables


# Processes ------------------------------------------------------------------------------------------------------------


def run(role, name, place, arguments):
    """What a process of the job does: it becomes its task, and plays its role."""
    map, daemon_socket = place
    task = sealane.attach(name, socket=daemon_socket) if daemon_socket else sealane.embedded(map, name)
    with task:
        role(task, *arguments)


def free_address():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % chosen.getsockname()[1]


def program():
    """The program ``sealane``: $SEALANE_BIN, one that is installed, or one that was built beside this file."""
    target = pathlib.Path(__file__).resolve().parents[2] / "target"
    built = [path for path in (target / "release/sealane", target / "debug/sealane") if path.exists()]
    found = os.environ.get("SEALANE_BIN") or shutil.which("sealane") or next(map(str, built), None)
    return found or sys.exit("there is no program `sealane`: build it with `cargo build --release`, or name it in SEALANE_BIN")


@contextlib.contextmanager
def daemon(directory, name, map, tasks):
    """A daemon for these tasks, which are all on this machine here; gives its socket."""
    path, log = directory / f"{name}.sock", directory / f"{name}.log"
    command = [program(), "daemon", "--endpoint-map", map, "--socket", path, "--set", "runtime.shards=1"]
    for task in tasks:
        command += ["--task", task]
    with open(log, "w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        until = time.monotonic() + STARTING_SECONDS
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                sys.exit(f"the daemon does not start:\n{log.read_text()}")
            time.sleep(0.01)
        yield str(path)
    finally:
        process.terminate()
        process.wait()


def train(steps, workers, embedded, progress):
    """Starts all processes and gives losses, dense parameters and tables."""
    names = [worker_name(number) for number in range(workers)]
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlrm-")))
        map = directory / ".endpoint_map"
        shared = free_address()
        addresses = {PS: free_address(), **{name: free_address() if embedded else shared for name in names}}
        map.write_text("".join(f"{task}={address}\n" for task, address in addresses.items()))
        ps_socket = worker_socket = None
        if not embedded:
            ps_socket = stack.enter_context(daemon(directory, "ps", map, [PS]))
            worker_socket = stack.enter_context(daemon(directory, "workers", map, names))

        # Not "fork", which would give children a task that they cannot use.
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        ps = (serve, PS, (map, ps_socket), (steps, workers, sender))
        jobs = [ps, *((work, name, (map, worker_socket), (steps, n, workers)) for n, name in enumerate(names))]
        processes = [context.Process(target=run, args=job, daemon=True) for job in jobs]
        for process in processes:
            process.start()
        sender.close()
        losses = []
        while True:
            try:
                kind, *told = receiver.recv()
            except EOFError:
                sys.exit("the parameter server has failed: see above")
            if kind == "parameters":
                break
            losses += told
            progress(losses)
        for process in processes:
            process.join()
        return losses, *told


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--embedded", action="store_true", help="an engine in each process, and no daemon")
    options = parser.parse_args()
    if options.steps < 1 or options.workers < 1:
        parser.error("there is nothing to do without steps or workers")

    def progress(losses):
        if sys.stderr.isatty():
            print(f"\rstep {len(losses):5} of {options.steps}   loss {losses[-1]:.4f} ", end="", file=sys.stderr)
            if len(losses) == options.steps:
                print(file=sys.stderr)

    started = time.perf_counter()
    losses, dense, tables = train(options.steps, options.workers, options.embedded, progress)
    elapsed = time.perf_counter() - started
    expected, expected_dense, expected_tables = alone(options.steps, options.workers)

    parts = min(5, options.steps)
    print("   steps      loss")
    for part in np.array_split(np.arange(options.steps), parts):
        print(f"{part[0]:5} - {part[-1]:<5} {np.mean([losses[step] for step in part]):.4f}")
    path = "an engine in each process" if options.embedded else "two daemons"
    print(f"1 parameter server, {options.workers} workers, {path}: {options.steps} steps in {elapsed:.1f} s with the start")

    # The gradients of the workers are added in the same order, so that even the last bits must agree.
    assert losses == expected, "the losses are not those of one process"
    for name in dense:
        np.testing.assert_array_equal(dense[name], expected_dense[name], err_msg=name)
    for table, expected_table in zip(tables, expected_tables):
        np.testing.assert_array_equal(table, expected_table)
    tenth = max(1, options.steps // 10)
    assert np.mean(losses[-tenth:]) < np.mean(losses[:tenth]) or options.steps < 20, "the loss does not go down"
    print("losses and parameters are those of one process, to the bit")


if __name__ == "__main__":
    main()
