"""Runs PyTorch's own `distributed_test.py`, from its wheel, on Sealane's backend or on gloo.

    python suite.py                     all of it, beside what gloo passes
    python suite.py --only 'send|recv'  the tests whose names match
    python suite.py --backend gloo      gloo alone
    python suite.py --ranks 4 --hosts 2 as if two ranks were on each of two hosts: Sealane's use TCP between these

Needs `pip install torch expecttest hypothesis psutil scipy`. Fails if a test fails that `KNOWN` does not name.
"""

import argparse
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

# Tests that gloo passes and Sealane does not, and why.
_BY_NAME = "the test knows backends by their names, and prepares nothing for others"
KNOWN = {
    "test_accumulate_gradients_no_sync": _BY_NAME,
    "test_accumulate_gradients_no_sync_allreduce_hook": _BY_NAME,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _BY_NAME,
    "test_accumulate_gradients_no_sync_grad_is_view": _BY_NAME,
    "test_ddp_logging_data_cpu": "PyTorch's logger calls every backend that it does not bring along 'custom'",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sealane", "gloo"], default="sealane")
    parser.add_argument("--only", default="", help="a pattern of tests' names")
    parser.add_argument("--ranks", type=int, default=3, help="[default: 3]")
    parser.add_argument("--hosts", type=int, default=1, help="[default: 1]")
    parser.add_argument("--seconds", type=int, default=60, help="the longest time of a test [default: 60]")
    arguments = parser.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="suite-"))
    for part in ("barrier", "test_dir"):
        (directory / part).mkdir()
    # The suite asks the environment what to test, and skips what gloo does not have.
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(arguments.ranks),
        TEMP_DIR=str(directory),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(arguments.seconds),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    sys.exit(run(arguments))


def run(arguments: argparse.Namespace) -> int:
    backend, pattern = arguments.backend, arguments.only
    import torch
    from torch.testing._internal.distributed import distributed_test

    # Its decorators have taken it for gloo.
    distributed_test.BACKEND = backend

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *others: object, **named: object) -> None:
            if arguments.hosts > 1:
                os.environ["SEALANE_TORCH_HOST"] = f"host {rank * arguments.hosts // arguments.ranks}"
            super()._run(rank, *others, **named)

    # PyTorch runs those of the host's memory for MPI alone.
    for name in dir(Suite):
        if re.match(r"test_all_to_all(?!.*cuda)", name):
            getattr(Suite, name).__unittest_skip__ = False
    names = [name for name in unittest.TestLoader().getTestCaseNames(Suite) if re.search(pattern, name)]
    outcomes: dict[str, list[str]] = {"passed": [], "skipped": [], "failed": []}
    for number, name in enumerate(names, 1):
        began, result = time.monotonic(), unittest.TestResult()
        Suite(name).run(result)
        outcome = "skipped" if result.skipped else "passed" if result.wasSuccessful() else "failed"
        outcomes[outcome].append(name)
        why = ""
        if outcome == "failed":
            lines = (result.failures + result.errors)[0][1].splitlines()
            why = next((line for line in reversed(lines) if re.search(r"Error|Exception|exit", line)), "")
        if outcome != "skipped":
            print(f"{number:3}/{len(names)} {outcome} in {time.monotonic() - began:4.1f} s: {name}  {why}", flush=True)
    unknown = [name for name in outcomes["failed"] if backend == "gloo" or name not in KNOWN]
    print(f"\n{backend}: " + ", ".join(f"{len(names)} {outcome}" for outcome, names in outcomes.items()))
    for name in outcomes["failed"]:
        print(f"  {name}: {KNOWN.get(name, 'NOT KNOWN')}")
    return 1 if unknown or not outcomes["passed"] else 0


if __name__ == "__main__":
    main()
