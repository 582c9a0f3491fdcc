"""Sealane's collectives beside gloo's, in one run: rounds take turns, and figures are medians of rounds.

    python bench.py --ranks 2
    python bench.py --ranks 4 --json out.json
    python bench.py --ranks 4 --hosts 2     as if two ranks were on each of two hosts: Sealane's use TCP between these

Each rank is a process with one thread for PyTorch. A figure is the time of one call on the slowest rank; the ratio is gloo's by Sealane's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BACKENDS = ["gloo", "sealane"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="[default: 2]")
    parser.add_argument("--hosts", type=int, default=1, help="[default: 1]")
    parser.add_argument("--rounds", type=int, default=7, help="[default: 7]")
    parser.add_argument("--only", default="", help="figures whose names begin so")
    parser.add_argument("--json", help="where the figures go as JSON, too")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.store:
        return rank(arguments)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", str(pathlib.Path(directory) / "store")]
        environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        ranks = [
            subprocess.Popen(command, env=environment | {"RANK": str(number)} | pretend(number, arguments))
            for number in range(arguments.ranks)
        ]
        sys.exit(max(process.wait() for process in ranks))


def pretend(number: int, arguments: argparse.Namespace) -> dict[str, str]:
    """The variables that put a rank on one of several hosts."""
    host = number * arguments.hosts // arguments.ranks
    return {"SEALANE_TORCH_HOST": f"host {host}"} if arguments.hosts > 1 else {}


def quotients(some: list[float], others: list[float]) -> list[float]:
    return [one / other for one, other in zip(some, others, strict=True)]


def report(figures: dict[str, dict[str, list[float]]]) -> dict:
    """Returns the rounds' times in the form of `sealane bench`: the variant is the call, and ratios are of times."""

    def row(values, median):
        return {median: statistics.median(values), "min": min(values), "max": max(values)}

    results, ratios = [], []
    for name, times in figures.items():
        for backend, values in times.items():
            results.append({"system": backend, "variant": name, "metric": "call_us", **row(values, "value")})
        ratio = row(quotients(times["sealane"], times["gloo"]), "median")
        ratios.append({"name": f"sealane/gloo, {name}", "of": "call_us", **ratio})
    return {"schema": "sealane-torch/1", "results": results, "ratios": ratios}


def rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    own, size = int(os.environ["RANK"]), arguments.ranks
    dist.init_process_group("gloo", init_method=f"file://{arguments.store}", rank=own, world_size=size)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    assert groups["sealane"]._get_backend(torch.device("cpu"))._group.hosts() == arguments.hosts
    figures = {}

    def measure(name, make, count):
        if not name.startswith(arguments.only):
            return
        calls = {backend: make(groups[backend]) for backend in BACKENDS}
        for call in calls.values():
            call()
        times = {backend: [] for backend in BACKENDS}
        for number in range(arguments.rounds):
            for backend in BACKENDS[:: 1 if number % 2 else -1]:
                dist.barrier()
                began = time.perf_counter()
                for _ in range(count):
                    calls[backend]()
                took = torch.tensor([(time.perf_counter() - began) / count], dtype=torch.float64)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                times[backend].append(took.item() * 1e6)
        figures[name] = times
        if own == 0:
            gloo, ours = (statistics.median(times[backend]) for backend in BACKENDS)
            ratios = quotients(times["gloo"], times["sealane"])
            print(
                f"{name:34} gloo {gloo:10.1f} us  sealane {ours:10.1f} us  "
                f"{statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )

    def all_reduce(bytes):
        def make(group):
            tensor = torch.ones(bytes // 4)
            dist.all_reduce(tensor, group=group)
            assert (tensor == size).all()
            tensor.zero_()
            return lambda: dist.all_reduce(tensor, group=group)

        return make

    def all_to_all(bytes):
        def make(group):
            given = torch.full((size, bytes // 4), float(own))
            came = torch.empty_like(given)
            dist.all_to_all_single(came, given, group=group)
            assert all((came[other] == other).all() for other in range(size))
            return lambda: dist.all_to_all_single(came, given, group=group)

        return make

    def there_and_back(group):
        tensor, last = torch.zeros(16), size - 1

        def call():
            # Between the first and the last, which are on different hosts if there are several.
            for sender, receiver in ((0, last), (last, 0)):
                if own == sender:
                    dist.send(tensor, receiver, group=group)
                elif own == receiver:
                    dist.recv(tensor, sender, group=group)

        return call

    def ddp(group):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(6)]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
        given = torch.randn(4, 1024)

        def call():
            model.zero_grad()
            model(given).sum().backward()

        return call

    for kib, count in ((4, 200), (64, 100), (1024, 20), (16 << 10, 4), (64 << 10, 2)):
        measure(f"all_reduce {kib} KiB", all_reduce(kib << 10), count)
    for kib, count in ((4, 200), (1024, 10)):
        measure(f"all_to_all {kib} KiB a pair", all_to_all(kib << 10), count)
    measure("64 B there and back", there_and_back, 200)
    measure("barrier", lambda group: lambda: dist.barrier(group), 200)
    measure("DDP step, 25 MB of gradients", ddp, 5)
    if own == 0 and arguments.json:
        settings = {"ranks": size, "hosts": arguments.hosts, "rounds": arguments.rounds, "torch": torch.__version__}
        pathlib.Path(arguments.json).write_text(json.dumps({**settings, **report(figures)}, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
