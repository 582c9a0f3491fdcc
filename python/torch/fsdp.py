"""Trains a small transformer with FSDP2 (fully_shard) over Sealane: text of a grammar that it makes itself, progress, and what it
reached. Halfway it saves a checkpoint. A new model trains on from there, and is to have the losses of the one that just went on.

    torchrun --nproc-per-node 2 fsdp.py
    torchrun --nproc-per-node 2 fsdp.py --compare gloo     the same training by both, with their losses and times
    torchrun --nproc-per-node 2 fsdp.py --plot fsdp.png    and a picture of the losses
"""

import tempfile

import comparison
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

WORDS, LENGTH, BATCH, WIDTH = 64, 32, 8, 128


class Model(torch.nn.Module):
    """Of each word of a text, how likely which word is the next."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.next = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Linear(WIDTH, WORDS)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 3)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.next(self.encoder(self.words(text), torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)))


def train(steps: int, group: dist.ProcessGroup) -> tuple[list[float], str]:
    half, directory = steps // 2, tempfile.TemporaryDirectory(prefix="fsdp-")
    place = [directory.name]  # All write to that of rank 0: ranks of several hosts would need one that they share.
    dist.broadcast_object_list(place, group=group, group_src=0)
    model, optimizer = build(0, group)
    losses = learn(model, optimizer, range(half), group)
    checkpoint.save(states(model, optimizer), checkpoint_id=place[0], process_group=group)
    losses += learn(model, optimizer, range(half, steps), group)
    model, optimizer = build(1, group)
    loaded = states(model, optimizer)
    checkpoint.load(loaded, checkpoint_id=place[0], process_group=group)
    set_state_dict(model, optimizer, **loaded)
    again = learn(model, optimizer, range(half, steps), group)
    dist.barrier(group)
    return losses, f"; from the checkpoint on they {comparison.apart(again, losses[half:], most=0)}"


def build(seed: int, group: dist.ProcessGroup) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model, mesh = Model(), DeviceMesh.from_group(group, "cpu")
    for part in (*model.encoder.layers, model):
        fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.001)


def states(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    return dict(zip(("model_state_dict", "optim_state_dict"), get_state_dict(model, optimizer), strict=True))


def learn(model: Model, optimizer: torch.optim.Optimizer, steps: range, group: dist.ProcessGroup) -> list[float]:
    rank, ranks, losses = dist.get_rank(), dist.get_world_size(), []
    for step in steps:
        text = write(step * ranks + rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(comparison.mean(loss, step + 1, steps.stop, group))
    return losses


def write(seed: int) -> torch.Tensor:
    """Texts by a grammar: four words may follow a word, the first of them more often than the others."""
    follow = torch.randint(WORDS, (WORDS, 4), generator=torch.Generator().manual_seed(1))
    generator, chances = torch.Generator().manual_seed(seed), torch.tensor([0.7, 0.1, 0.1, 0.1])
    words = [torch.randint(WORDS, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        words.append(follow[words[-1], torch.multinomial(chances, BATCH, replacement=True, generator=generator)])
    return torch.stack(words, 1)


if __name__ == "__main__":
    comparison.run(__doc__, train, steps=100)
