"""What tests run in several processes: a function for each rank of a group that has met."""

import datetime
import multiprocessing
import os
import traceback

import torch
import torch.distributed as dist

LIMIT = 60
SPAWN = multiprocessing.get_context("spawn")


def _rank(function, backend, store, rank, size, arguments, answers, host):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if host is not None:
        os.environ["SEALANE_TORCH_HOST"] = str(host)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=LIMIT),
        )
        if backend == "sealane":
            # Else what is tested would be shared memory.
            own = dist.group.WORLD._get_backend(torch.device("cpu"))
            own = getattr(own, "wrapped_pg", own)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
            assert (own._group.hosts() > 1) == (host is not None)
        answers.put((rank, function(*arguments)))
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, traceback.format_exc()))


def run(store, size, function, *arguments, backend="sealane", missing=(), hosts=None):
    """What the function returns, or its traceback, by rank; of those that are `missing`, nothing comes. Ranks of different `hosts`
    share no memory."""
    answers = SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_rank, args=(function, backend, store, rank, size, arguments, answers, host), daemon=True)
        for rank, host in enumerate(hosts or [None] * size)
    ]
    for process in processes:
        process.start()
    came = dict(answers.get(timeout=2 * LIMIT) for _ in range(size - len(missing)))
    for process in processes:
        process.join(LIMIT)
    return came
