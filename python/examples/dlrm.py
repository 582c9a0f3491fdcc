"""Trains a small DLRM on a parameter server and workers, each a process, which exchange tensors through Sealane.

Training is synchronous, so that the result is that of one process, to the bit, which is checked at the end. What the
processes do is in `dlrm_job.py`, and how they are started in `dlrm_processes.py`.

    python dlrm.py                  # two daemons, one parameter server, two workers
    python dlrm.py --embedded       # without daemons: an engine in each process
"""

import argparse
import sys
import time

import dlrm_job as job
import dlrm_processes as processes
import numpy as np


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

    reach = processes.engines if options.embedded else processes.two_daemons
    started = time.perf_counter()
    losses, _, dense, tables = processes.train(reach, options.steps, options.workers, progress=progress)
    elapsed = time.perf_counter() - started
    if sys.stderr.isatty():
        print(file=sys.stderr)
    expected, expected_dense, expected_tables = job.alone(options.steps, options.workers)

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
