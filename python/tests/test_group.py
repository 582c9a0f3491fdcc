"""Groups: their ranks are processes of their own, which meet by files."""

import multiprocessing
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import sealane

SPAWN = multiprocessing.get_context("spawn")
LIMIT = 60


class Files:
    """A store whose values are files of a directory."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def path(self, key):
        return self.directory / key.replace("/", "_")

    def set(self, key, value):
        part = self.path(key + ".part")
        part.write_bytes(value)
        part.rename(self.path(key))

    def get(self, key, seconds):
        until = time.monotonic() + seconds
        while not self.path(key).exists():
            if time.monotonic() > until:
                raise TimeoutError(f"nobody has set {key}")
            time.sleep(0.001)
        return self.path(key).read_bytes()


def _rank(function, directory, rank, size, arguments, answers, host):
    where = {} if host is None else {"host": str(host), "interface": "127.0.0.1"}
    with sealane.Group(Files(directory), rank, size, timeout=LIMIT, **where) as group:
        assert (group.hosts > 1) == (host is not None)
        try:
            answers.put((rank, function(group, *arguments)))
        except Exception as error:
            answers.put((rank, f"{type(error).__name__}: {error}"))


@pytest.fixture
def run(tmp_path):
    """Runs a function in a process for each rank; what it returns, or its error as text, by rank. Ranks of which none is expected are
    processes that are killed. Those of different ``hosts`` share no memory."""
    started = []

    def run(size, function, *arguments, missing=(), hosts=None):
        answers = SPAWN.Queue()
        for rank, host in enumerate(hosts or [None] * size):
            details = (function, tmp_path, rank, size, arguments, answers, host)
            process = SPAWN.Process(target=_rank, args=details, daemon=True)
            process.start()
            started.append(process)
        return dict(answers.get(timeout=LIMIT) for _ in range(size - len(missing)))

    yield run
    for process in started:
        process.join(LIMIT)


def everything(group):
    rank, size = group.rank, group.size
    array = np.full(100_000, rank + 1.0, dtype=np.float32)
    group.all_reduce(array)
    assert (array == size * (size + 1) / 2).all()
    group.all_reduce(array, "average")
    assert (array == size * (size + 1) / 2).all()
    for dtype in (np.complex64, np.complex128):
        complexes = np.full(50_001, rank + 1 - rank * 1j, dtype=dtype)
        group.all_reduce(complexes)
        assert (complexes == size * (size + 1) / 2 - size * (size - 1) / 2 * 1j).all()
        group.all_reduce(complexes, "average")
        assert (complexes == size * (size + 1) / 2 - size * (size - 1) / 2 * 1j).all()
    integers = np.array([rank, -rank], dtype=np.int64)
    group.reduce(integers, root=1, op="max")
    assert integers.tolist() == ([size - 1, 0] if rank == 1 else [rank, -rank])
    word = np.array([rank], dtype=np.uint8)
    group.broadcast(word, root=size - 1)
    assert word[0] == size - 1
    part, whole = np.array([rank, rank]), np.empty(2 * size, dtype=int)
    group.all_gather(part, whole)
    assert whole.tolist() == [number // 2 for number in range(2 * size)]
    group.gather(part, whole if rank == 0 else None)
    group.scatter(whole * 10 if rank == 0 else None, part)
    assert part.tolist() == [10 * rank] * 2
    out = np.empty(2, dtype=int)
    group.reduce_scatter(whole, out)
    assert out.tolist() == [size * rank] * 2
    swapped = np.empty(size, dtype=int)
    group.all_to_all(np.arange(size) + 100 * rank, swapped)
    assert swapped.tolist() == [100 * other + rank for other in range(size)]
    # Each rank gives rank r so many elements as r, and so gets as many as its own number of each.
    wanted = np.empty(size * rank, dtype=int)
    group.all_to_all(np.full(size * (size - 1) // 2, rank), wanted, range(size), [rank] * size)
    assert wanted.tolist() == sorted(list(range(size)) * rank)
    send = group.send(np.full(9, rank), (rank + 1) % size, tag=4)
    came = np.empty(9, dtype=int)
    source = group.recv(came, tag=4).wait(LIMIT)
    assert source == (rank - 1) % size and (came == source).all()
    assert send.wait(LIMIT) == (rank + 1) % size and send.done()
    group.barrier()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_call_gives_what_it_should(run, size):
    if size == 1:
        assert run(size, alone) == {0: None}
    else:
        assert run(size, everything) == dict.fromkeys(range(size))


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1), (0, 1, 1, 2, 0)])
def test_every_call_over_several_hosts_gives_what_it_should(run, hosts):
    assert run(len(hosts), everything, hosts=hosts) == dict.fromkeys(range(len(hosts)))


# The elements of the array and of `out`, in parts, and the call. Rank 1 is the root.
INTO_ANOTHER = {
    "reduce_scatter": (lambda size: (size, 1), lambda group, array, out: group.reduce_scatter(array, out)),
    "all_gather": (lambda size: (1, size), lambda group, array, out: group.all_gather(array, out)),
    "gather": (lambda size: (1, size), lambda group, array, out: group.gather(array, out if group.rank == 1 else None, 1)),
    "scatter": (lambda size: (size, 1), lambda group, array, out: group.scatter(array if group.rank == 1 else None, out, 1)),
    "all_to_all": (lambda size: (size, size), lambda group, array, out: group.all_to_all(array, out)),
    "all_to_all of parts": (
        lambda size: (size, size),
        lambda group, array, out: group.all_to_all(array, out, *[[array.size // group.size] * group.size] * 2),
    ),
}


def overlapping(group, part):
    """Compares each call on overlapping memory with the same call on separate memory."""
    rank, size, wrong = group.rank, group.size, []
    # Where `out` begins, in bytes from the beginning of the array.
    own, another = [8 * part * number for number in (rank, (rank + 1) % size)]
    places = {"same": 0, "own part": own, "another part": another, "own part before": -own, "another part before": -another}
    places |= {"an element later": 8, "an element earlier": -8, "bytes later": own + 3, "bytes earlier": -5}
    room = 8 * part * size + 64
    for name, (sizes, call) in INTO_ANOTHER.items():
        given, wanted = [part * parts for parts in sizes(size)]
        for place, offset in places.items():
            memory = np.zeros(3 * room, dtype=np.uint8)
            array = np.ndarray(given, dtype=np.int64, buffer=memory, offset=room)
            out = np.ndarray(wanted, dtype=np.int64, buffer=memory, offset=room + offset)
            array[:] = np.arange(given) * 10 + rank
            before, expected = memory.copy(), np.zeros_like(out)
            call(group, array.copy(), expected)
            call(group, array, out)
            if name == "gather" and rank != 1:
                expected = out.copy()
            after = memory.copy()
            # Nothing but `out` is written.
            memory[:] = before
            out[:] = expected
            if (after != memory).any():
                wrong.append((name, place))
    return wrong


@pytest.mark.parametrize("part", [1, 3, 20_001])
@pytest.mark.parametrize("hosts", [None, (0, 1, 0, 1)])
def test_output_may_overlap_input_in_any_way(run, hosts, part):
    assert run(4, overlapping, part, hosts=hosts) == dict.fromkeys(range(4), [])


def alone(group):
    array = np.array([3.0])
    group.all_reduce(array)
    group.barrier()
    assert array[0] == 3.0


CALLS = {
    "all_reduce": lambda group, array: group.all_reduce(array),
    "reduce": lambda group, array: group.reduce(array, root=0),
    "reduce_scatter": lambda group, array: group.reduce_scatter(array, np.empty(array.size // group.size)),
    "all_gather": lambda group, array: group.all_gather(array, np.empty(array.size * group.size)),
    "broadcast": lambda group, array: group.broadcast(array, root=2),
    "gather": lambda group, array: group.gather(array, np.empty(array.size * group.size) if group.rank == 0 else None),
    "scatter": lambda group, array: group.scatter(np.tile(array, 3) if group.rank == 2 else None, array, root=2),
    "all_to_all": lambda group, array: group.all_to_all(array, np.empty_like(array)),
    "barrier": lambda group, array: group.barrier(),
    "recv": lambda group, array: group.recv(array, 2).wait(LIMIT),
}


def until_one_is_killed(group, name):
    # Once all have met: a rank that is killed before is an error of those that still meet it.
    group.barrier()
    if group.rank == 2:
        # The others are in the middle of the call, or about to begin it.
        os.kill(os.getpid(), signal.SIGKILL)
    array = np.ones(300_000)
    call = CALLS[name]
    # Ranks that need nothing of the one that is killed go on until the group ends.
    with pytest.raises(sealane.Left, match=r"rank 2 has left \(its process .*has ended|rank \d is unavailable"):
        for _ in range(3):
            call(group, array)
            group.barrier()


@pytest.mark.parametrize("hosts", [None, (0, 1, 2), (0, 1, 1)], ids=["one host", "three hosts", "two hosts"])
@pytest.mark.parametrize("name", CALLS)
def test_a_rank_that_is_killed_is_known_to_all_others_by_its_number(run, name, hosts):
    began = time.monotonic()
    answers = run(3, until_one_is_killed, name, missing=[2], hosts=hosts)
    assert all(answer is None or "rank 2 has left" in answer for answer in answers.values()), answers
    # Not a measure of speed: far from the deadline of 60 s.
    assert time.monotonic() - began < LIMIT / 2


def calls_differently(group):
    array = np.ones(4 if group.rank == 1 else 8)
    group.all_reduce(array)
    group.barrier()


def test_ranks_that_call_differently_hear_what_both_call(run):
    for answer in run(3, calls_differently).values():
        assert "64 bytes, sum of f64" in answer and "32 bytes, sum of f64" in answer


def misuse(group):
    for call, what in [
        (lambda: group.all_reduce(np.ones((4, 4))[:, 0]), "an array of gaps"),
        (lambda: group.all_reduce(np.array(["text"], dtype=object)), "of objects"),
        (lambda: group.all_reduce(np.ones(3, dtype=np.complex64), "product"), "type c64"),
        (lambda: group.all_reduce(np.ones(3), "median"), "no reduction 'median'"),
        (lambda: group.broadcast(np.ones(3), root=7), "no rank 7"),
        (lambda: group.all_gather(np.ones(3), np.ones(5)), "not a part"),
        (lambda: group.all_gather(np.ones(3), np.ones(6, dtype=np.float32)), "float32"),
        (lambda: group.reduce_scatter(np.ones(2), np.ones(1, dtype=int)), "an array of float64 and one of int64"),
        (lambda: group.gather(np.ones(1), np.ones(2, dtype=int), root=group.rank), "an array of float64 and one of int64"),
        (lambda: group.scatter(np.ones(2), np.ones(1, dtype=int), root=group.rank), "an array of float64 and one of int64"),
        (lambda: group.all_to_all(np.ones(2), np.ones(2, dtype=int)), "an array of float64 and one of int64"),
        (lambda: group.all_to_all(np.ones(3), np.ones(3)), "3 elements are not an equal part for each of 2 ranks"),
        (lambda: group.all_to_all(np.ones(3), np.ones(2), wanted=[1, 1]), "3 elements are not an equal part"),
        (lambda: group.all_to_all(np.ones(2), np.ones(3), given=[1, 1]), "3 elements are not an equal part"),
        (lambda: group.reduce_scatter(np.ones(3), np.ones(1)), "24 bytes are not a part of 8 bytes for each of 2 ranks"),
        (lambda: group.scatter(np.ones(3), np.ones(1), root=group.rank), "24 bytes are not a part"),
        (lambda: group.gather(np.ones(1), np.ones(3), root=group.rank), "24 bytes are not a part"),
        (lambda: group.all_to_all(np.ones(2), np.ones(2), [5, 5], [1, 1]), "within its memory"),
        (lambda: group.gather(np.ones(3), root=group.rank), "no other, has the tensors"),
        (lambda: group.send(np.ones(3), 9), "no rank 9"),
    ]:
        with pytest.raises(sealane.InvalidArgument, match=what):
            call()
    with pytest.raises(sealane.DeadlineExceeded, match="nothing of that tag"):
        group.recv(np.ones(3), 1 - group.rank, tag=8).wait(0.01)
    group.barrier()
    group.close()
    with pytest.raises(sealane.InvalidArgument, match="has left the group"):
        group.barrier()


def test_what_makes_no_sense_is_refused_and_the_group_goes_on(run):
    assert run(2, misuse) == {0: None, 1: None}


def forks(group):
    # In the child, which must not touch what it shares with its parent's group.
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
        except sealane.InvalidArgument as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    group.barrier()


def test_a_forked_child_is_no_rank(run):
    assert run(2, forks) == {0: None, 1: None}


def test_who_is_called_back_is_so_in_order_and_may_call_again_and_wait(tmp_path):
    # Both ranks are threads of this process: one calls everything before the other calls anything.
    calls, order = 50, []

    def other():
        with sealane.Group(Files(tmp_path), 1, 2, timeout=LIMIT) as group:
            held.wait(LIMIT)
            for _ in range(2 * calls):
                group.barrier()

    held, told = threading.Event(), threading.Semaphore(0)
    thread = threading.Thread(target=other)
    thread.start()
    group = sealane._sealane.Group(Files(tmp_path), 0, 2, LIMIT)
    going_on = [group.barrier(LIMIT, False) for _ in range(calls)]

    def called_back(number, error):
        order.append((number, error))
        group.barrier(LIMIT, False).wait(LIMIT)
        told.release()

    for number, call in enumerate(going_on):
        call.then(lambda error, number=number: called_back(number, error))
    held.set()
    for _ in range(calls):
        assert told.acquire(timeout=LIMIT)
    assert order == [(number, None) for number in range(calls)]
    group.leave()
    thread.join(LIMIT)
