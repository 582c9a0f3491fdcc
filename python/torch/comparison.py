"""What the examples share: their arguments, the same training by another backend, and a picture of the losses."""

import argparse
import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

# More than two ranks' numbers are added up in another order, and training makes more of that.
ROUNDING = 1e-2

# Trains so many steps in a group; the loss of each, averaged over the ranks, and what else is to be said.
Train = Callable[[int, dist.ProcessGroup], tuple[list[float], str]]


def run(description: str, train: Train, steps: int) -> None:
    """Trains by Sealane, and as the arguments say."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help=f"[default: {steps}]")
    parser.add_argument("--compare", choices=["gloo"], help="train by this backend, too")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the losses")
    arguments = parser.parse_args()
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        sys.exit("error: --plot draws with matplotlib, which is not installed: pip install matplotlib")
    torch.set_num_threads(1)
    dist.init_process_group("sealane")
    groups = {"sealane": dist.group.WORLD}
    if arguments.compare:
        groups[arguments.compare] = dist.new_group(backend=arguments.compare)
    results = {}
    for backend, group in groups.items():
        began = time.perf_counter()
        results[backend], said = train(arguments.steps, group)
        if dist.get_rank() == 0:
            losses, seconds = results[backend], time.perf_counter() - began
            print(f"{backend:8} loss {losses[0]:.4f} to {losses[-1]:.4f}, {seconds:.1f} s{said}")
    if dist.get_rank() == 0:
        if arguments.compare:
            print(f"losses of both {apart(*results.values(), most=0 if dist.get_world_size() == 2 else ROUNDING)}")
        if arguments.plot:
            plot(arguments.plot, results)
    dist.destroy_process_group()


def mean(loss: torch.Tensor, step: int, steps: int, group: dist.ProcessGroup) -> float:
    """The loss of a step, averaged over the ranks; the first says now and then how far it is."""
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    average = total.item() / dist.get_world_size()
    if dist.get_rank() == 0 and step % max(steps // 10, 1) == 0:
        print(f"{dist.get_backend(group)} step {step:4}/{steps}  loss {average:.4f}", flush=True)
    return average


def apart(some: list[float], others: list[float], most: float) -> str:
    """How far losses differ; ends the program if by more than they may."""
    found = max(abs(one - other) for one, other in zip(some, others, strict=True))
    if found > most:
        sys.exit(f"error: losses that may differ by {most:.1e} differ by {found:.1e}")
    return f"differ by {found:.1e} at most" if found else "are equal to the bit"


def plot(path: str, results: dict[str, list[float]]) -> None:
    """Draws the losses: those of a second backend as dots, under which equal ones of the first are still seen."""
    from matplotlib import pyplot

    for style, (backend, losses) in zip("-.", results.items(), strict=False):
        pyplot.plot(range(1, len(losses) + 1), losses, style, label=backend)
    title = f"{pathlib.Path(sys.argv[0]).name}, {dist.get_world_size()} ranks"
    pyplot.gca().set(title=title, xlabel="step", ylabel="loss")
    pyplot.legend()
    pyplot.savefig(path)
    print(f"drawn: {path}")
