"""Trains a small network with DistributedDataParallel over Sealane: data that it makes itself, progress, and what it reached.

    torchrun --nproc-per-node 2 ddp.py
    torchrun --nproc-per-node 2 ddp.py --compare gloo     the same training by both, with their losses and times
    torchrun --nproc-per-node 2 ddp.py --plot ddp.png     and a picture of the losses
"""

import comparison
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Gradients have 8 WIDTH^2 bytes.
WIDTH = 1024


def train(steps: int, group: dist.ProcessGroup) -> tuple[list[float], str]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    # Each rank has data of its own; all are to learn the same linear map.
    goal = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)) / WIDTH**0.5
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for step in range(1, steps + 1):
        given = torch.randn(16, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = (model(given) - given @ goal).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(comparison.mean(loss, step, steps, group))
    return losses, ""


if __name__ == "__main__":
    comparison.run(__doc__, train, steps=100)
