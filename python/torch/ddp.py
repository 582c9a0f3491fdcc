"""Trains a small network with DistributedDataParallel over Sealane: data that it makes itself, progress, and what it reached.

    torchrun --nproc-per-node 2 ddp.py
    torchrun --nproc-per-node 2 ddp.py --compare gloo     the same training by both, with their losses and times
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="[default: 100]")
    parser.add_argument("--width", type=int, default=1024, help="of the layers; gradients have 8 width^2 bytes [default: 1024]")
    parser.add_argument("--compare", choices=["gloo"], help="train by this backend, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("sealane")
    results = {"sealane": train(arguments, dist.group.WORLD)}
    if arguments.compare:
        results["gloo"] = train(arguments, dist.new_group(backend="gloo"))
    if dist.get_rank() == 0:
        for backend, (losses, seconds) in results.items():
            print(f"{backend:8} loss {losses[0]:.4f} to {losses[-1]:.4f}, {1000 * seconds / arguments.steps:.2f} ms a step")
        if arguments.compare:
            apart = max(abs(one - other) for one, other in zip(results["sealane"][0], results["gloo"][0], strict=True))
            print(f"losses differ by {apart:.1e} at most")
    dist.destroy_process_group()


def train(arguments: argparse.Namespace, group: dist.ProcessGroup) -> tuple[list[float], float]:
    """The loss of each step, averaged over the ranks, and the time of all."""
    torch.manual_seed(0)
    rank, width = dist.get_rank(), arguments.width
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    # Each rank has data of its own; all are to learn the same linear map.
    goal = torch.randn(width, width, generator=torch.Generator().manual_seed(1)) / width**0.5
    generator = torch.Generator().manual_seed(100 + rank)
    losses, began = [], time.perf_counter()
    for step in range(1, arguments.steps + 1):
        given = torch.randn(16, width, generator=generator)
        optimizer.zero_grad()
        loss = (model(given) - given @ goal).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / dist.get_world_size())
        if rank == 0 and step % max(arguments.steps // 10, 1) == 0:
            print(f"{dist.get_backend(group)} step {step:4}/{arguments.steps}  loss {losses[-1]:.4f}", flush=True)
    return losses, time.perf_counter() - began


if __name__ == "__main__":
    main()
