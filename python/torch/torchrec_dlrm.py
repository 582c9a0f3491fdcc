"""Trains a small DLRM with TorchRec's DistributedModelParallel over Sealane: data that it makes itself, progress, and what it
reached. Every rank has a part of the rows of each large embedding table; each small table is whole, on one of the ranks.

    torchrun --nproc-per-node 2 torchrec_dlrm.py
    torchrun --nproc-per-node 2 torchrec_dlrm.py --compare gloo     the same training by both, with their losses and times
    torchrun --nproc-per-node 2 torchrec_dlrm.py --plot dlrm.png    and a picture of the losses

TorchRec without CUDA is installed in two steps, as by itself it would install CUDA's FBGEMM over that of CPUs:

    pip install torch==2.14.1 fbgemm-gpu-cpu==1.9.0 tensordict torchmetrics==1.0.3 tqdm pyre-extensions
    pip install --no-deps torchrec==1.9.2
"""

import warnings
from collections.abc import Iterator

import comparison
import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as optimize_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.optimizers import in_backward_optimizer_filter

# Of the tables, from 100 to about 100,000.
ROWS = {f"table {table}": int(100 * 1000 ** (table / 25)) for table in range(26)}
NUMBERS, WIDTH, BATCH, CPU = 13, 32, 256, torch.device("cpu")


def train(steps: int, group: dist.ProcessGroup) -> tuple[list[float], str]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # Rows are drawn where they are. The layers are those of rank 0.
    tables = [EmbeddingBagConfig(rows, WIDTH, name=name, feature_names=[name]) for name, rows in ROWS.items()]
    # Without memory, until it is known which rank has which rows.
    bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
    optimize_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": 0.03})
    places = {name: row_wise() if rows > 5000 else table_wise(at % ranks) for at, (name, rows) in enumerate(ROWS.items())}
    plan = {"sparse_arch.embedding_bag_collection": construct_module_sharding_plan(bags, places, device_type="cpu")}
    model = DLRM(bags, NUMBERS, [64, WIDTH], [128, 64, 1])
    model = DistributedModelParallel(model, ShardingEnv.from_process_group(group), CPU, ShardingPlan(plan))
    layers = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = torch.optim.SGD(layers.values(), lr=0.1)
    losses = []
    for step, (numbers, ids, clicked) in zip(range(1, steps + 1), clicks(seed=100 + rank)):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(numbers, ids).squeeze(1), clicked)
        loss.backward()
        optimizer.step()
        losses.append(comparison.mean(loss, step, steps, group))
    return losses, ""


def clicks(seed: int) -> Iterator[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Batches without end: of each example some numbers, ids of each table, and whether it was clicked, which hangs on both."""
    hidden, generator = torch.Generator().manual_seed(1), torch.Generator().manual_seed(seed)
    rows = torch.tensor(list(ROWS.values()))
    slope, effects = torch.randn(NUMBERS, generator=hidden) / 4, torch.randn(rows.sum(), generator=hidden) / 3
    while True:
        numbers = torch.randn(BATCH, NUMBERS, generator=generator)
        counts = torch.randint(1, 4, (len(rows), BATCH), generator=generator)
        tables = torch.arange(len(rows)).repeat_interleave(counts.sum(1))
        examples = torch.arange(BATCH).repeat(len(rows)).repeat_interleave(counts.flatten())
        # As Zipf has it: the n-th most frequent comes 1/n times as often as the first; the prime spreads them over all rows.
        order = (rows[tables] + 1.0) ** torch.rand(len(tables), generator=generator)
        ids = order.long() * 1_000_003 % rows[tables]
        score = (numbers @ slope).index_add(0, examples, effects[(rows.cumsum(0) - rows)[tables] + ids])
        clicked = torch.rand(BATCH, generator=generator) < score.sigmoid()
        yield numbers, KeyedJaggedTensor(list(ROWS), ids, lengths=counts.flatten().int()), clicked.float()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)  # TorchRec calls what PyTorch has renamed.
    comparison.run(__doc__, train, steps=300)
