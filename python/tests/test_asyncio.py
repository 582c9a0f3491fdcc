"""Calls in event loops."""

import asyncio

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER, round_trip


def test_calls_can_be_awaited(ps, worker, key):
    async def main():
        sending = ps.send_async(WORKER, 1, key, np.arange(1000))
        received = await worker.recv_async(PS, 1, key)
        assert await sending is None
        return received

    assert asyncio.run(main()).sum() == 499_500


def test_the_loop_goes_on_while_a_call_waits(ps, worker, key):
    async def main():
        receiving = asyncio.ensure_future(wait(worker.recv_async(PS, 1, key)))
        await asyncio.sleep(0)
        # The recv is in flight now, and only this loop can end it.
        await ps.send_async(WORKER, 1, key, np.ones(1))
        return await receiving

    async def wait(call):
        return await call

    assert asyncio.run(main()) == 1


def test_many_calls_at_once(ps, worker, key):
    async def main():
        names = [f"{key}/{number}" for number in range(300)]
        receivings = [worker.recv_async(PS, 1, name) for name in names]
        sendings = [ps.send_async(WORKER, 1, name, np.array(number)) for number, name in enumerate(names)]
        received = await asyncio.gather(*receivings)
        await asyncio.gather(*sendings)
        return [int(each) for each in received]

    assert asyncio.run(main()) == list(range(300))


def test_batches_can_be_awaited(ps, worker, key):
    async def main():
        sent = {f"{key}/{number}": np.array(number) for number in range(300)}
        sending = ps.send_all_async(WORKER, 1, sent)
        received = await worker.recv_all_async(PS, 1, sent)
        assert await sending is None
        return received == sent

    assert asyncio.run(main())


def test_one_call_awaited_twice(ps, worker, key):
    async def main():
        receiving = worker.recv_async(PS, 1, key)
        ps.send_async(WORKER, 1, key, np.arange(1000))
        first, second = await asyncio.gather(receiving, receiving)
        assert first is second is await receiving

    asyncio.run(main())


def test_errors_are_raised_by_await(worker, key):
    async def main():
        with pytest.raises(sealane.DeadlineExceeded):
            await worker.recv_async(PS, 1, key, timeout=0.01)

    asyncio.run(main())


def test_an_await_that_is_cancelled_gives_the_recv_up(own_daemon):
    async def main(ps, worker):
        receiving = worker.recv_async(PS, 1, "kept")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receiving
        assert receiving.done()
        round_trip(ps, worker)
        sending = ps.send_async(WORKER, 1, "kept", np.arange(3))
        assert (await worker.recv_async(PS, 1, "kept")).tolist() == [0, 1, 2]
        await sending

    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        asyncio.run(main(ps, worker))


def test_an_await_of_a_send_that_is_cancelled_lets_it_go_on(ps, worker, key):
    async def main():
        sending = ps.send_async(WORKER, 1, key, np.arange(3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await sending
        assert (await worker.recv_async(PS, 1, key)).tolist() == [0, 1, 2]
        await sending

    asyncio.run(main())


def test_one_loop_after_the_other(ps, worker, key):
    for step in range(3):
        async def main():
            receiving = worker.recv_async(PS, step, key)
            await asyncio.gather(receiving, ps.send_async(WORKER, step, key, np.ones(1)))

        asyncio.run(main())


def test_a_call_cancelled_elsewhere_is_heard_of(worker, key):
    import concurrent.futures

    async def main():
        receiving = worker.recv_async(PS, 1, key, timeout=60)

        async def wait():
            return await receiving

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        assert receiving.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            await waiting

    asyncio.run(main())
