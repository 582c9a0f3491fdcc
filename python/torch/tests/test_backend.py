"""The backend, as programs use it, beside gloo where it matters."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT, run

ONE_WORD = """
    import torch, torch.distributed as dist
    dist.init_process_group("sealane")
    tensor = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    # In one write: the ranks share a pipe.
    print(f"{dist.get_backend()} {tensor.tolist()}\\n", end="", flush=True)
    dist.destroy_process_group()
"""


def test_one_word_is_all_that_a_program_says(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(ONE_WORD))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert ran.stdout.splitlines() == ["sealane [6.0, 6.0, 6.0]"] * 3, ran.stderr


def every_call():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        tensor = torch.full((5,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert (tensor == total).all() and tensor.dtype == dtype
    flag = torch.tensor([rank == 1, True, False])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert flag.tolist() == [True, True, False]
    # Not contiguous, complex, of no elements, and of no dimensions.
    wide = torch.full((4, 6), rank + 1.0).t()
    dist.all_reduce(wide)
    assert (wide == total).all() and not wide.is_contiguous()
    both = torch.tensor([1 + 1j])
    dist.all_reduce(both)
    assert both.item() == size + size * 1j
    for dtype in (torch.complex64, torch.complex128):
        for op, parts in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
            given = torch.full((size,), rank + 1 - rank * 1j, dtype=dtype)
            expected = (total - (total - size) * 1j) / parts
            out = torch.empty(1, dtype=dtype)
            dist.reduce_scatter_tensor(out, given, op)
            assert out.item() == expected
            dist.reduce(given, 0, op)
            assert given[0].item() == (expected if rank == 0 else rank + 1 - rank * 1j)
    for empty in (torch.ones(0), torch.tensor(rank + 1.0)):
        dist.all_reduce(empty)
    assert empty.item() == total
    parts = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 2), float(rank)))
    assert all((part == other).all() for other, part in enumerate(parts))
    whole = torch.empty(size * 2)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert whole.tolist() == [float(number // 2) for number in range(2 * size)]
    own = whole[2 * rank : 2 * rank + 2]
    dist.all_gather_into_tensor(whole, own)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, whole)
    assert out.tolist() == [size * rank] * 2
    dist.reduce_scatter(out, [torch.full((2,), float(other)) for other in range(size)])
    assert out.tolist() == [size * rank] * 2
    outputs = [torch.empty(other + 1) for other in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
    assert all((output == other).all() for other, output in enumerate(outputs))
    swapped = torch.empty(size * rank, 3)
    dist.all_to_all_single(swapped, torch.full((total - size, 3), float(rank)), [rank] * size, list(range(size)))
    assert swapped[:, 0].tolist() == sorted(list(range(size)) * rank)
    gathered = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), gathered)
    part = torch.empty(1)
    dist.scatter(part, gathered)
    assert part.item() == rank
    reduced = torch.tensor([rank + 1.0])
    dist.reduce(reduced, 1, dist.ReduceOp.AVG)
    assert reduced.item() == (total / size if rank == 1 else rank + 1)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 1.0], (size + 1,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size + [float(size)]
    dist.monitored_barrier()
    dist.barrier()
    return "done"


@pytest.mark.parametrize("size", [2, 4])
def test_every_call_of_every_kind_of_tensor(tmp_path, size):
    assert run(tmp_path / "store", size, every_call) == dict.fromkeys(range(size), "done")


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1), (0, 1, 1, 1)])
def test_every_call_over_several_hosts(tmp_path, hosts):
    assert run(tmp_path / "store", len(hosts), every_call, hosts=hosts) == dict.fromkeys(range(len(hosts)), "done")


# Elements of the input and of the output, in parts, and the call.
INTO_ANOTHER = {
    "reduce_scatter_tensor": (lambda size: (size, 1), lambda out, given: dist.reduce_scatter_tensor(out, given)),
    "reduce_scatter": (lambda size: (size, 1), lambda out, given: dist.reduce_scatter(out, parts_of(given))),
    "all_gather_into_tensor": (lambda size: (1, size), lambda out, given: dist.all_gather_into_tensor(out, given)),
    "all_gather": (lambda size: (1, size), lambda out, given: dist.all_gather(parts_of(out), given)),
    "gather": (lambda size: (1, size), lambda out, given: dist.gather(given, parts_of(out) if dist.get_rank() == 0 else None)),
    "scatter": (lambda size: (size, 1), lambda out, given: dist.scatter(out, parts_of(given) if dist.get_rank() == 0 else None)),
    "all_to_all": (lambda size: (size, size), lambda out, given: dist.all_to_all(parts_of(out), parts_of(given))),
    "all_to_all_single": (lambda size: (size, size), lambda out, given: dist.all_to_all_single(out, given)),
    "all_to_all_single of splits": (
        lambda size: (size, size),
        lambda out, given: dist.all_to_all_single(out, given, *[[len(given) // dist.get_world_size()] * dist.get_world_size()] * 2),
    ),
}


def parts_of(tensor):
    return list(tensor.chunk(dist.get_world_size()))


def overlapping(part):
    rank, size = dist.get_rank(), dist.get_world_size()
    wrong = []
    offsets = {0, rank * part, -rank * part, (rank + 1) % size * part, 1, -1, rank * part + 1}
    # As many calls on each rank.
    offsets |= set(list(set(range(2, 10)) - offsets)[: 7 - len(offsets)])
    for name, (sizes, call) in INTO_ANOTHER.items():
        for offset in sorted(offsets):
            memory = torch.zeros(3 * size * (part + 9), dtype=torch.int64)
            given, out = [
                memory.narrow(0, size * (part + 9) + start, parts * part)
                for start, parts in zip((0, offset), sizes(size), strict=True)
            ]
            given.copy_(torch.arange(given.numel()) * 10 + rank)
            before, expected = memory.clone(), torch.zeros_like(out)
            call(expected, given.clone())
            call(out, given)
            if name == "gather" and rank != 0:
                expected = out.clone()
            after = memory.clone()
            memory.copy_(before)
            out.copy_(expected)
            if not torch.equal(after, memory):
                wrong.append((name, offset))
    return wrong


@pytest.mark.parametrize("hosts", [None, (0, 1, 0)])
@pytest.mark.parametrize("part", [3, 30_001])
def test_output_may_overlap_input_in_any_way(tmp_path, part, hosts):
    assert run(tmp_path / "store", 3, overlapping, part, hosts=hosts) == dict.fromkeys(range(3), [])


def overlaps_a_result():
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 1:
        # The other rank has made both calls before the first can end.
        dist.distributed_c10d._get_default_store().wait(["both are called"])
    tensor = torch.ones(2 * size, dtype=torch.int64)
    works = [
        dist.all_reduce(tensor, async_op=True),
        dist.reduce_scatter_tensor(tensor[2 * rank : 2 * rank + 2], tensor, async_op=True),
    ]
    dist.distributed_c10d._get_default_store().set("both are called", "")
    for work in works:
        work.wait()
    return tensor[2 * rank : 2 * rank + 2].tolist()


def test_overlapping_input_may_be_result_of_call_in_progress(tmp_path):
    assert run(tmp_path / "store", 2, overlaps_a_result) == {0: [4, 4], 1: [4, 4]}


def coalesced():
    import torch.distributed._functional_collectives as functional

    big, rank = 2**40 + 1, dist.get_rank()

    def tensors():
        return [torch.tensor([big]), torch.tensor([0.5]), torch.tensor([rank == 1]), torch.tensor([big + 1, 3])]

    expected = [[2 * big], [1.0], [True], [2 * big + 2, 6]]
    managed = tensors()
    with dist._coalescing_manager():
        for tensor in managed:
            dist.all_reduce(tensor)
    assert [tensor.tolist() for tensor in managed] == expected
    managed = tensors()
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in managed:
            dist.all_reduce(tensor)
    manager.wait()
    assert [tensor.tolist() for tensor in managed] == expected
    reduced = functional.all_reduce_coalesced(tensors(), "sum", dist.group.WORLD)
    assert [functional.wait_tensor(tensor).tolist() for tensor in reduced] == expected
    return "done"


def test_coalesced_tensors_of_several_types_keep_their_types(tmp_path):
    assert run(tmp_path / "store", 2, coalesced) == {0: "done", 1: "done"}


def at_once():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    tensors = [torch.full((10**length,), rank + 1.0) for length in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda future: future.value()[0].sum().item()) for work in works]
    # Messages pass calls that go on.
    out = torch.empty(1000)
    receives = dist.irecv(out, (rank - 1) % size, tag=3)
    sends = dist.isend(torch.full((1000,), float(rank)), (rank + 1) % size, tag=3)
    receives.wait()
    sends.wait()
    assert receives.is_completed() and sends.is_completed() and (out == (rank - 1) % size).all()
    # In another order than they were called.
    for work in reversed(works):
        work.wait()
    assert [future.wait() for future in futures] == [total * 10**length for length in range(6)]
    big = [torch.full((1 << 20,), float(rank)), torch.empty(1 << 20)]
    peers = ((rank + 1) % size, (rank - 1) % size)
    operations = [dist.P2POp(dist.isend, big[0], peers[0]), dist.P2POp(dist.irecv, big[1], peers[1])]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (big[1] == peers[1]).all()
    source = dist.recv(out) if rank == 0 else dist.send(torch.full((1000,), float(rank)), 0)
    assert rank != 0 or (out == source).all()
    for _ in range(size - 2 if rank == 0 else 0):
        dist.recv(out)
    # Groups of some ranks, used in different orders.
    halves = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    ones = [torch.ones(3), torch.ones(3)]
    works = [dist.all_reduce(ones[half], group=halves[half], async_op=True) for half in ((1, 0) if rank == 1 else (0, 1))]
    for work in works:
        if work is not None:
            work.wait()
    assert [one[0].item() for one in ones] == [2 if rank < 2 else 1, 2 if rank > 0 else 1]
    return "done"


@pytest.mark.parametrize("hosts", [None, (0, 1, 1)])
def test_calls_go_on_at_the_same_time_and_end_in_order(tmp_path, hosts):
    assert run(tmp_path / "store", 3, at_once, hosts=hosts) == dict.fromkeys(range(3), "done")


def train_ddp():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().tolist() for parameter in model.parameters()]


def train_fsdp(directory):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(40, 301), torch.nn.ReLU(), torch.nn.Linear(301, 10))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    trained = [parameter.full_tensor().tolist() for parameter in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=directory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpoint.load({"model": model.state_dict()}, checkpoint_id=directory)
    assert [parameter.full_tensor().tolist() for parameter in model.parameters()] == trained
    return trained


def test_ddp_trains_to_the_bits_that_gloo_gives(tmp_path):
    trained = [run(tmp_path / backend, 2, train_ddp, backend=backend) for backend in ("sealane", "gloo")]
    assert trained[0] == trained[1] and trained[0][0] == trained[0][1]
    assert run(tmp_path / "hosts", 2, train_ddp, hosts=(0, 1)) == trained[0]


def test_fsdp_and_its_checkpoint_are_those_of_gloo_to_the_bit(tmp_path):
    trained = [
        run(tmp_path / name, 2, train_fsdp, tmp_path / f"{name}.checkpoint", backend=backend, hosts=hosts)
        for name, backend, hosts in [("one", "sealane", None), ("two", "sealane", (0, 1)), ("gloo", "gloo", None)]
    ]
    assert trained[0] == trained[1] == trained[2] and isinstance(trained[0][0], list), trained[0]


def one_is_killed():
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 has left \(its process .*has ended"):
        dist.all_reduce(tensor)
    with pytest.raises(dist.DistBackendError, match="rank 1 has left"):
        dist.all_reduce(tensor, async_op=True).wait()
    return "done"


@pytest.mark.parametrize("hosts", [None, (0, 1, 1), (0, 1, 0)])
def test_a_rank_that_is_killed_is_named(tmp_path, hosts):
    assert run(tmp_path / "store", 3, one_is_killed, missing=[1], hosts=hosts) == {0: "done", 2: "done"}


def ddp_loses_a_rank():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 1000), bucket_cap_mb=0.001)
    model(torch.ones(2, 100)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"rank 1 has left \(its process \d+ has ended\)"):
        model(torch.ones(2, 100)).sum().backward()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="rank 1 has left"):
        future.wait()
    with pytest.raises(RuntimeError, match="rank 1 has left"):
        future.then(lambda done: done.value()).wait()
    return "done"


def test_ddp_raises_when_a_rank_is_killed(tmp_path):
    assert run(tmp_path / "store", 3, ddp_loses_a_rank, missing=[1]) == {0: "done", 2: "done"}


def futures():
    rank, size = dist.get_rank(), dist.get_world_size()

    # As PowerSGD's hook does: what is called back calls again, and waits for that.
    def again(future):
        (tensor,) = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()).wait()

    for _ in range(20):
        tensor = torch.full((2000,), rank + 1.0)
        chain = dist.all_reduce(tensor, async_op=True).get_future().then(again).then(again)
        assert (chain.wait()[0] == size * (size + 1) / 2 * size * size).all()
    with torch.inference_mode():
        parts = [torch.empty(1000) for _ in range(size)]
        dist.all_gather(parts, torch.full((1000,), float(rank)), async_op=True).wait()
        assert all((part == other).all() for other, part in enumerate(parts))
    # A group that is left ends what waits for its calls.
    group = dist.new_group(backend="sealane")
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    work.wait()
    dist.destroy_process_group(group)
    assert work.get_future().wait()[0].tolist() == [size] * 3
    # Nobody waits for the first, whose parts are to be there when the second has ended.
    parts = [torch.empty(1000) for _ in range(size)]
    work = dist.all_gather(parts, torch.full((1000,), float(rank)), async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and all((part == other).all() for other, part in enumerate(parts))
    return "done"


@pytest.mark.parametrize("detail", ["OFF", "DETAIL"])
def test_futures_may_be_waited_for_where_they_call_back(tmp_path, monkeypatch, detail):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", detail)
    assert run(tmp_path / "store", 2, futures) == {0: "done", 1: "done"}
    assert run(tmp_path / "second", 3, at_once) == dict.fromkeys(range(3), "done")


def split():
    rank = dist.get_rank()
    group = dist.split_group(split_ranks=[[0, 2], [3, 1]])
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=group)
    assert total.item() == (2 if rank % 2 == 0 else 4)
    assert dist.get_rank(group) == [0, 1, 1, 0][rank]
    group = dist.split_group(split_ranks=[[0, 1, 2]])
    assert (group == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 3)
    if rank != 3:
        dist.all_reduce(total, group=group)
        assert total.item() == 8
    return "done"


@pytest.mark.skipif(torch.__version__ < "2.15", reason="PyTorch 2.14 splits groups of accelerators alone")
def test_a_group_is_split_and_may_leave_ranks_out(tmp_path):
    assert run(tmp_path / "store", 4, split) == dict.fromkeys(range(4), "done")


def profiled():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as traced:
        dist.all_reduce(torch.ones(1000))
        dist.all_gather_into_tensor(torch.ones(2000), torch.ones(1000), async_op=True).wait()
        if dist.get_rank() == 0:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(3), 0)
    names = {event.name for event in traced.events()}
    expected = {"sealane:all_reduce", "sealane:all_gather", "sealane:recv" if dist.get_rank() else "sealane:send"}
    assert expected <= names, names
    return "done"


def test_calls_are_in_profiles_by_their_names(tmp_path):
    assert run(tmp_path / "store", 2, profiled) == {0: "done", 1: "done"}


_ENDS = '''
import sys, threading, time
import torch, torch.distributed as dist

dist.init_process_group("sealane", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
began = threading.Event()

def callback(future):
    # Else it would be no other's callback that the end waits for.
    is_other = threading.current_thread() is not threading.main_thread()
    began.set()
    if not is_other:
        return
    time.sleep(0.5)
    print("called back", flush=True)

# Large enough that it goes on when it is asked to call back.
dist.all_reduce(torch.ones(50_000_000), async_op=True).get_future().then(callback)
began.wait()
'''


def test_a_process_ends_well_while_a_callback_runs(tmp_path):
    command = [sys.executable, "-c", _ENDS, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.strip()) == (0, "called back"), ended


def wrong():
    own, scatter = dist.group.WORLD, dist.ScatterOptions()
    scatter.rootRank = dist.get_rank()

    def mixed():
        return [torch.ones(1), torch.ones(1, dtype=torch.int64)]

    for call, what in [
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG), "bool have no reduction"),
        (lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 1], [2, 1]), "split sizes"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)), "its size for each rank"),
        (lambda: dist.reduce(torch.ones(2, dtype=torch.complex64), 0, dist.ReduceOp.PRODUCT), "type c64 have no reduction"),
        (lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(3)), "its size for each rank"),
        (lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5)), "5 rows are not a part for each of 2 ranks"),
        (lambda: dist.all_to_all_single(torch.ones(3, 4), torch.ones(3, 4)), "3 rows are not a part for each of 2"),
        (lambda: dist.all_to_all_single(torch.ones(3, 4), torch.ones(4, 3)), "3 rows are not a part for each of 2"),
        (lambda: dist.all_to_all_single(torch.tensor([7]), torch.tensor([7])), "1 rows are not a part for each of 2"),
        (lambda: dist.all_to_all([torch.ones(1)], [torch.ones(1)]), "a part for each rank"),
        (lambda: own._reduce_scatter_base(torch.ones(2), torch.ones(5)), "its size for each rank"),
        (lambda: own.alltoall(mixed(), mixed()), "must have one type, not float32 and int64"),
        (lambda: own.allgather([mixed()], [torch.ones(1)]), "must have one type"),
        (lambda: own.scatter([torch.ones(1)], [mixed()], scatter), "must have one type"),
        (lambda: own.reduce_scatter([torch.ones(1)], [mixed()]), "must have one type"),
    ]:
        with pytest.raises((RuntimeError, ValueError), match=what):
            call()
    dist.barrier()
    tensor = torch.ones(2 + dist.get_rank())
    with pytest.raises(dist.DistBackendError, match=r"rank \d calls all_reduce \(call \d+, 8 bytes.*12 bytes|12 bytes.*8 bytes"):
        dist.all_reduce(tensor)
    return "done"


def test_errors_say_what_is_wrong(tmp_path):
    assert run(tmp_path / "store", 2, wrong) == {0: "done", 1: "done"}


def many_groups(end):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    dist.barrier(dist.new_group(backend="sealane"))
    before = open_files()
    for _ in range(100):
        group = dist.new_group(backend="sealane")
        dist.all_reduce(torch.ones(10), group=group)
        # A rank that aborts first ends a later call of another.
        dist.barrier()
        end(group)
    assert open_files() <= before + 20, (before, open_files())
    with open("/proc/self/maps") as maps:
        assert maps.read().count("sealane-group") < 20
    return "done"


def abort(group):
    dist.distributed_c10d._abort_process_group(group)


@pytest.mark.parametrize("hosts", [None, (0, 1)], ids=["one host", "two hosts"])
@pytest.mark.parametrize("end", [dist.destroy_process_group, abort])
def test_groups_that_end_leave_nothing_behind(tmp_path, end, hosts):
    assert run(tmp_path / "store", 2, many_groups, end, hosts=hosts) == {0: "done", 1: "done"}


def aborted():
    group = dist.new_group(backend="sealane")
    if dist.get_rank() == 0:
        own = group._get_backend(torch.device("cpu"))
        work = dist.irecv(torch.ones(3), 1, group=group)
        abort(group)
        with pytest.raises(dist.DistBackendError, match="it was aborted: rank 0 said so"):
            work.wait()
        with pytest.raises(dist.DistBackendError, match="it was aborted: rank 0 said so"):
            own.barrier(dist.BarrierOptions())
    else:
        with pytest.raises(dist.DistBackendError, match="rank 0 is unavailable: .*it was aborted: rank 0 said so"):
            dist.barrier(group)
    dist.barrier()
    return "done"


@pytest.mark.parametrize("hosts", [None, (0, 1)], ids=["one host", "two hosts"])
def test_aborting_rank_tells_others_its_reason(tmp_path, hosts):
    assert run(tmp_path / "store", 2, aborted, hosts=hosts) == {0: "done", 1: "done"}


def interrupted():
    store, other = dist.distributed_c10d._get_default_store(), dist.new_group(backend="sealane")
    if dist.get_rank() == 1:
        store.wait(["interrupted"])
        return "done"
    place = torch.empty(3)
    call = None

    def wait():
        call()

    def where():
        top = frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code is not wait.__code__:
            frame = frame.f_back
        return frame and (top.f_code, top.f_lasti)

    def interrupt():
        before = None
        while before is None or where() != before:
            before = where()
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    received = dist.irecv(place, 1)
    reduced = dist.all_reduce(place, async_op=True)
    for call in (
        lambda: dist.barrier(other),
        lambda: dist.recv(place, 1, tag=1),
        received.wait,
        reduced.wait,
        lambda: dist.new_group(backend="sealane"),
        # That of another thread is before this one.
        dist.barrier,
    ):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        thread.join()
    store.set("interrupted", "")
    return "done"


@pytest.mark.parametrize("hosts", [None, (0, 1)], ids=["one host", "two hosts"])
def test_control_c_ends_every_wait(tmp_path, hosts):
    assert run(tmp_path / "store", 2, interrupted, hosts=hosts) == {0: "done", 1: "done"}


def test_what_the_environment_says_of_other_hosts_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("SEALANE_TORCH_INTERFACE", "nothing0")
    # The interface matters only where there are others.
    assert run(tmp_path / "one", 2, every_call)[0] == "done"
    answers = run(tmp_path / "two", 2, every_call, hosts=(0, 1))
    assert all("no interface nothing0" in answer for answer in answers.values()), answers
    monkeypatch.setenv("SEALANE_TORCH_TLS_KEY", "key.pem")
    assert "belong together" in run(tmp_path / "three", 1, every_call)[0]


def test_ranks_with_one_secret_meet(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("a secret that all ranks of this job have in a file\n")
    secret.chmod(0o600)
    monkeypatch.setenv("SEALANE_TORCH_SECRET_FILE", str(secret))
    assert run(tmp_path / "store", 2, every_call, hosts=(0, 1)) == {0: "done", 1: "done"}
