"""Trains a small DLRM on parameter servers and workers, each a process, which exchange rows of tables through Sealane.

Clicks are generated in the shape of the Criteo data set: 26 tables, of which few rows are popular. Training is synchronous,
so that the result is that of one process, to the bit, which is checked at the end. What the processes do is in
`dlrm_job.py`, and how they are started in `dlrm_processes.py`.

    python dlrm.py                  # two daemons, one parameter server, two workers
    python dlrm.py --ps 2           # each has half of every table
    python dlrm.py --embedded       # without daemons: an engine in each process
    python dlrm.py --rows 10131227  # tables of Criteo's sizes: 33.8 million rows, 2.2 GB
"""

import argparse
import sys
import time

import dlrm_processes as processes
import numpy as np
from dlrm_job import Job, alone

BAR = 30


def main(model="dlrm_model"):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ps", type=int, default=1, help="parameter servers")
    parser.add_argument("--rows", type=int, default=Job.rows, help=f"of the largest table; others are smaller: {Job.rows}")
    parser.add_argument("--batch", type=int, default=Job.batch, help=f"examples in a step, of all workers: {Job.batch}")
    parser.add_argument("--embedded", action="store_true", help="an engine in each process, and no daemon")
    options = parser.parse_args()
    if min(options.steps, options.workers, options.ps, options.rows) < 1 or options.batch % options.workers:
        parser.error("needed are a step, a worker, a parameter server, a row, and as many examples for each worker")
    job = Job(options.steps, options.workers, options.ps, options.rows, options.batch, model)

    def progress(step, loss, aucs):
        if sys.stderr.isatty():
            bar = "#" * (step * BAR // job.steps)
            told = f"[{bar:{BAR}}] {step} of {job.steps}   loss {loss:.4f}   AUC {aucs[-1][-1]:.4f}"
            print(f"\r{told} ", end="", file=sys.stderr)

    started = time.perf_counter()
    trained = processes.train(processes.engines if options.embedded else processes.two_daemons, job, progress)
    elapsed = time.perf_counter() - started
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print("   steps      loss     AUC, held out")
    for (first, *_), (step, _, auc) in zip(trained.aucs, trained.aucs[1:]):
        print(f"{first:5} - {step:<5} {np.mean(trained.losses[first:step]):.4f}     {auc:.4f}")
    path = "an engine in each process" if options.embedded else "two daemons"
    print(f"{job.servers} ps, {job.workers} workers, {path}, {sum(job.tables)} rows in {len(job.tables)} tables:", end=" ")
    print(f"{job.steps} steps in {elapsed:.1f} s with the start")

    # The gradients of the workers are added in the same order, so that even the last bits must agree.
    for what, ours, expected in zip(("losses", "AUC", "parameters"), trained.result, alone(job)):
        assert ours == expected, f"the {what} are not those of one process"
    assert trained.aucs[-1][-1] > trained.aucs[0][-1] or job.steps < 20, "nothing was learned"
    print("losses, AUC and parameters are those of one process, to the bit")


if __name__ == "__main__":
    main()
