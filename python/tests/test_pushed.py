"""Pushing into queues, and accepting from them."""

import asyncio
import gc
import math
import signal
import threading

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER
from test_calls import Interrupted, in_thread


@pytest.fixture
def acceptor(ps, key):
    with ps.acceptor(key) as acceptor:
        yield acceptor


def test_what_is_pushed_is_accepted_once(worker, acceptor, key):
    pushing = worker.push_async(PS, key, np.arange(1000))
    accepted = acceptor.accept()
    sender, array = accepted
    assert isinstance(accepted, sealane.Accepted) and accepted.sender is sender and accepted.array is array
    assert sender == WORKER and array.dtype == np.int64
    np.testing.assert_array_equal(array, np.arange(1000))
    assert pushing.result() is None
    with pytest.raises(sealane.DeadlineExceeded, match="queue"):
        acceptor.accept(timeout=0)
    with pytest.raises(TimeoutError):
        acceptor.accept_many(5, timeout=0.15)


def test_accepts_may_come_first(worker, acceptor, key):
    thread = in_thread(worker.push, PS, key, np.float32(3), timeout=math.inf)
    assert acceptor.accept(math.inf).array == 3
    thread.join()


def test_a_queue_is_in_order_whatever_the_sizes(worker, acceptor, key):
    pushed = [np.full(number * 37 % 3000, number) for number in range(500)]
    thread = in_thread(worker.push_many, PS, key, iter(pushed))
    accepted = []
    while len(accepted) < len(pushed):
        some = acceptor.accept_many(64)
        assert 0 < len(some) <= 64
        accepted += some
    thread.join()
    for before, (_, after) in zip(pushed, accepted):
        np.testing.assert_array_equal(before, after)
    assert worker.push_many(PS, key, []) is None and acceptor.accept_many(0) == []


def test_anything_that_is_sent_can_be_pushed(worker, acceptor, key):
    in_place = worker.empty(10_000)
    in_place[:] = 5
    worker.push_many(PS, key, [["a", b"bc"], b"xyz", in_place, np.arange(2000)[::2]])
    strings, buffer, in_place, gaps = (acceptor.accept().array for _ in range(4))
    assert strings.tolist() == [b"a", b"bc"] and bytes(buffer) == b"xyz"
    assert (in_place == 5).all() and gaps[999] == 1998
    for wrong in (object(), np.zeros(3, ">f8"), [1, 2]):
        for push in (worker.push, worker.push_async, lambda to, queue, array: worker.push_many(to, queue, [array])):
            with pytest.raises((TypeError, ValueError)):
                push(PS, key, wrong)
    with pytest.raises(TypeError):
        worker.push_many(PS, key, 5)


def test_pushes_wait_while_the_queue_is_full(ps, worker, key):
    with ps.acceptor(key, tensors_max=2, bytes_max=1 << 20) as acceptor:
        pushing = [worker.push_async(PS, key, np.int64(number)) for number in range(50)]
        assert not pushing[-1].done()
        assert [int(acceptor.accept().array) for _ in pushing] == list(range(50))
        for each in pushing:
            each.result()


def test_pushes_wait_for_an_acceptor(ps, worker, key):
    with pytest.raises(sealane.DeadlineExceeded):
        worker.push(PS, key, np.ones(3), timeout=0.05)
    with pytest.raises(sealane.DeadlineExceeded):
        worker.push_many(PS, key, [np.ones(3)] * 3, timeout=0.05)
    pushing = worker.push_async(PS, key, np.ones(3))
    with ps.acceptor(key) as acceptor:
        assert acceptor.accept().array.tolist() == [1, 1, 1]
    pushing.result()


def test_iterating_until_it_is_closed(worker, ps, key):
    acceptor = ps.acceptor(key)
    accepted = []
    enough = threading.Event()

    def work():
        for _, array in acceptor:
            accepted.append(array.item())
            if len(accepted) == 100:
                enough.set()

    thread = in_thread(work)
    worker.push_many(PS, key, [np.float32(number) for number in range(100)])
    enough.wait()
    for _ in range(2):
        acceptor.close()
    thread.join()
    assert accepted == list(range(100)) and next(acceptor, None) is None
    for accept in (acceptor.accept, lambda: acceptor.accept_many(3)):
        with pytest.raises(sealane.InvalidArgument, match="was closed"):
            accept()


def test_closing_frees_the_queue(ps, worker, key):
    for _ in range(5):
        with ps.acceptor(key) as acceptor:
            waiting = in_thread(lambda: next(acceptor, None))
            assert acceptor.queue == key and repr(acceptor) == f"<sealane.Acceptor of {key}>"
        waiting.join()
    # And so does dropping it.
    acceptor = ps.acceptor(key)
    del acceptor
    gc.collect()
    acceptor = ps.acceptor(key)
    worker.push(PS, key, np.ones(3))
    assert acceptor.accept().array.tolist() == [1, 1, 1]
    with pytest.raises(sealane.InvalidArgument, match="queue"):
        ps.acceptor(key).accept(timeout=5)
    acceptor.close()


def test_several_threads_share_a_queue(worker, acceptor, key):
    accepted = []

    def work():
        for _ in range(50):
            accepted.append(acceptor.accept().array.item())

    threads = [in_thread(work) for _ in range(4)]
    worker.push_many(PS, key, [np.int32(number) for number in range(200)])
    for thread in threads:
        thread.join()
    assert sorted(accepted) == list(range(200))


def test_pushes_that_are_awaited(worker, acceptor, key):
    async def main():
        return await asyncio.gather(*(worker.push_async(PS, key, np.ones(number)) for number in range(10)))

    assert asyncio.run(main()) == [None] * 10
    assert sum(len(acceptor.accept().array) for _ in range(10)) == 45


def test_pushes_to_nobody(worker, acceptor, key):
    with pytest.raises(sealane.NotFound, match="nobody.train:2222"):
        worker.push("nobody.train:2222", key, np.ones(3))
    for call in (
        lambda: worker.push(PS, key, np.ones(3), timeout=-1),
        lambda: worker.push_many(PS, key, [], timeout=-1),
        lambda: acceptor.accept(timeout=-1),
        lambda: acceptor.accept_many(1, timeout=math.nan),
    ):
        with pytest.raises(sealane.InvalidArgument, match="a timeout must be a number of seconds"):
            call()


def test_queues_of_closed_tasks(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        acceptor = ps.acceptor("q")
    for call in (acceptor.accept, lambda: acceptor.accept_many(1), lambda: next(acceptor)):
        with pytest.raises(sealane.Unavailable):
            call()
    for call in (
        lambda: ps.acceptor("q"),
        lambda: worker.push(PS, "q", np.ones(3)),
        lambda: worker.push_async(PS, "q", np.ones(3)),
        lambda: worker.push_many(PS, "q", [np.ones(3)]),
    ):
        with pytest.raises(sealane.InvalidArgument, match="was closed"):
            call()


def test_acceptors_outlive_their_daemon(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker, ps.acceptor("q") as acceptor:
        worker.push(PS, "q", np.ones(1000))
        (_, kept) = acceptor.accept()
        own_daemon.kill()
        with pytest.raises(sealane.Unavailable):
            acceptor.accept()
        assert own_daemon.start()
        pushing = None
        while True:
            # The next attempt to attach may be milliseconds away.
            try:
                if pushing is None or pushing.done():
                    pushing = worker.push_async(PS, "q", np.full(1000, 2.0))
                again = acceptor.accept(timeout=0.1).array
                break
            except (sealane.Unavailable, sealane.DeadlineExceeded):
                pass
        assert (kept == 1).all() and (again == 2).all()


@pytest.mark.parametrize("idle_spin", [0, 50e-6, math.inf])
@pytest.mark.parametrize("call", ["accept", "accept_many", "next", "push", "push_many"])
def test_signal_handlers_run_while_the_main_thread_waits(own_daemon, call, idle_spin):
    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with own_daemon.attach(WORKER, idle_spin=idle_spin) as worker, own_daemon.attach(PS) as ps:
            with worker.acceptor("q") as acceptor:
                waits = {
                    "accept": acceptor.accept,
                    "accept_many": lambda: acceptor.accept_many(10),
                    "next": lambda: next(acceptor),
                    "push": lambda: worker.push(PS, "nobody accepts", np.ones(3)),
                    "push_many": lambda: worker.push_many(PS, "nobody accepts", [np.ones(3)] * 3),
                }
                with pytest.raises(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
                    waits[call]()
                # Nothing is lost by it.
                ps.push(WORKER, "q", np.ones(3))
                assert acceptor.accept().sender == PS
    finally:
        signal.signal(signal.SIGALRM, former)
