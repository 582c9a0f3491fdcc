"""One rank of gloo for `sealane bench collectives`, which says on standard input how many calls are to be timed."""

import sys
import time

import torch
import torch.distributed as dist

store, rank, size, call, length = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
one, whole, other = torch.zeros(length // 4), torch.zeros(size, length // 4), torch.zeros(size, length // 4)


def there_and_back() -> None:
    for sender, receiver in ((0, size - 1), (size - 1, 0)):
        if rank == sender:
            dist.send(one, receiver)
        elif rank == receiver:
            dist.recv(one, sender)


run = {
    "all_reduce": lambda: dist.all_reduce(one),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(one, whole),
    "all_gather": lambda: dist.all_gather_into_tensor(whole, one),
    "all_to_all": lambda: dist.all_to_all_single(whole, other),
    "broadcast": lambda: dist.broadcast(one, 0),
    "barrier": dist.barrier,
    "send": there_and_back,
}[call]

while True:
    count = torch.tensor([int(sys.stdin.readline() or 0) if rank == 0 else 0])
    dist.broadcast(count, 0)
    if not count:
        break
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        run()
    took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    if rank == 0:
        print("seconds", took.item(), flush=True)
