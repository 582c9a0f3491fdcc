"""Awaiting calls in asyncio's event loops, uvloop's among them: a loop watches one descriptor for all its calls."""

import asyncio
import itertools
import weakref

from ._sealane import Bell


class _LoopBell:
    """The futures of one loop's calls, by the tickets that the bell is rung with."""

    def __init__(self, loop):
        self._bell = Bell()
        self._futures = {}
        self._tickets = itertools.count()
        loop.add_reader(self._bell.fileno(), self._answer)

    def _answer(self):
        for ticket in self._bell.tickets():
            future = self._futures.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def ended(self, call, loop):
        """Waits until the call has ended, or may have."""
        ticket = next(self._tickets)
        future = self._futures[ticket] = loop.create_future()
        try:
            if not call._notify(self._bell, ticket):
                await future
        finally:
            self._futures.pop(ticket, None)


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopBell] = weakref.WeakKeyDictionary()


async def outcome(call):
    """The call's ``result``; cancelling the await cancels a recv."""
    try:
        while not call.done():
            loop = asyncio.get_running_loop()
            bell = _bells.get(loop)
            if bell is None:
                bell = _bells[loop] = _LoopBell(loop)
            await bell.ended(call, loop)
    except asyncio.CancelledError:
        if hasattr(call, "cancel"):
            call.cancel()
        raise
    return call.result()
