"""Streams of bytes: files for threads, and asyncio's streams."""

import asyncio
import concurrent.futures
import io

import pytest
import sealane
from daemons import PS, STUCK, WORKER, new_daemon
from sealane import streams
from test_calls import in_thread

LARGE = bytes(range(256)) * 20_000


@pytest.fixture
def ends(ps, worker, key):
    """The end that has dialed, and the other."""
    with streams.listen(ps, key) as listener:
        dialed = streams.connect(worker, PS, key)
        accepted = listener.accept()
    with dialed, accepted:
        yield dialed, accepted


def test_bytes_pass_both_ways_and_end(ends):
    dialed, accepted = ends
    assert (dialed.peer, accepted.peer) == (PS, WORKER)

    def echo():
        accepted.write(accepted.read().swapcase())
        accepted.finish()

    thread = in_thread(echo)
    for piece in (b"", b"aB", bytearray(b"cD"), memoryview(b"eF")):
        assert dialed.write(piece) == len(piece)
    assert dialed.write(LARGE) == len(LARGE)
    dialed.finish()
    assert dialed.read() == (b"aBcDeF" + LARGE).swapcase()
    assert dialed.read(1) == b""
    thread.join()


def test_a_stream_is_a_file(ends):
    dialed, accepted = ends
    text = io.TextIOWrapper(io.BufferedRWPair(dialed, dialed), encoding="utf-8", line_buffering=True)
    lines = io.BufferedRWPair(accepted, accepted)
    text.write("grüße\nmore\n")
    assert [lines.readline(), lines.readline()] == ["grüße\n".encode(), b"more\n"]
    lines.write(b"1\n2\n")
    lines.flush()
    assert [next(text), next(text)] == ["1\n", "2\n"]
    room = bytearray(3)
    dialed.write(b"abcd")
    assert accepted.readinto(room) == 3 and room == b"abc"
    assert accepted.readinto(memoryview(room)[1:]) == 1 and room == b"adc"


def test_what_blocks_can_be_limited(ends, ps, key):
    dialed, accepted = ends
    dialed.settimeout(0.01)
    with pytest.raises(TimeoutError):
        dialed.read(1)
    with pytest.raises(TimeoutError):
        dialed.write(LARGE)
    dialed.settimeout(None)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError):
            dialed.settimeout(wrong)
    with streams.listen(ps, key) as listener, pytest.raises(TimeoutError):
        listener.accept(timeout=0.01)


def test_a_stream_that_is_closed_unfinished_is_no_end(ends):
    dialed, accepted = ends
    dialed.write(b"half")
    dialed.close()
    assert accepted.read(4) == b"half"
    with pytest.raises(sealane.Unavailable, match="reset by its other end"):
        accepted.read()
    for call in (lambda: dialed.read(1), lambda: dialed.write(b""), dialed.finish, lambda: dialed.readinto(bytearray(1))):
        with pytest.raises(ValueError):
            call()
    dialed.close()


def test_a_reset_says_why(ends):
    dialed, accepted = ends
    dialed.reset("enough")
    for end in ends:
        with pytest.raises(sealane.Unavailable, match="enough"):
            end.read(1)


def test_what_cannot_be_dialed_says_why(ps, worker, key):
    with pytest.raises(sealane.NotFound, match="nobody listens"):
        # The parameter server has streams, once it has listened.
        streams.listen(ps, key).close()
        streams.connect(worker, PS, key)
    with streams.listen(ps, key):
        with pytest.raises(sealane.InvalidArgument):
            streams.listen(ps, key)
        with pytest.raises(sealane.InvalidArgument, match="window"):
            streams.connect(worker, PS, key, window_bytes=0)


def test_asyncio_streams(ps, worker, key):
    async def upper(reader, writer):
        assert writer.get_extra_info("peername") == WORKER
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def talk(number):
        reader, writer = await streams.open_connection(worker, PS, key)
        for at in range(10):
            writer.write(b"line %d of %d\n" % (at, number))
            assert await reader.readline() == b"LINE %d OF %d\n" % (at, number)
        writer.write(LARGE.replace(b"\n", b" "))
        writer.write_eof()
        assert len(await reader.read()) == len(LARGE)
        writer.close()
        await writer.wait_closed()

    async def main():
        # A line may be as long as all that is sent.
        async with await streams.start_server(upper, ps, key, limit=2 * len(LARGE)):
            await asyncio.gather(*(talk(number) for number in range(20)))

    asyncio.run(main())


def test_asyncio_waits_for_who_does_not_read(ps, worker, key):
    async def main():
        accepted = asyncio.get_running_loop().create_future()
        server = await streams.start_server(lambda *ends: accepted.set_result(ends), ps, key, window_bytes=50_000)
        async with server:
            _, writer = await streams.open_connection(worker, PS, key)
            writer.write(LARGE)
            draining = asyncio.ensure_future(writer.drain())
            reader, other = await accepted
            assert not draining.done()
            assert await reader.readexactly(len(LARGE)) == LARGE
            await draining
            writer.close()
            assert await reader.read() == b""
            other.close()
            await asyncio.gather(writer.wait_closed(), other.wait_closed())

    asyncio.run(main())


def test_asyncio_aborts_while_it_writes(ps, worker, key):
    async def main():
        accepted = asyncio.get_running_loop().create_future()
        async with await streams.start_server(lambda *ends: accepted.set_result(ends), ps, key, window_bytes=1000):
            _, writer = await streams.open_connection(worker, PS, key)
            writer.write(LARGE)
            await asyncio.sleep(0)
            reader, other = await accepted
            writer.transport.abort()
            # What is left behind must not keep the stream.
            with pytest.raises(sealane.Unavailable, match="aborted"):
                await reader.read()
            other.close()

    asyncio.run(main())


@pytest.mark.parametrize("fail_later", [False, True])
def test_what_fails_to_serve_a_stream_ends_it_alone(ps, worker, key, fail_later):
    def fail(_, writer):
        raise ZeroDivisionError

    async def fail_in_a_task(_, writer):
        raise ZeroDivisionError

    async def main():
        failed = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
        async with await streams.start_server(fail_in_a_task if fail_later else fail, ps, key):
            for count in (1, 2):
                reader, _ = await streams.open_connection(worker, PS, key)
                with pytest.raises(sealane.Unavailable):
                    await reader.read()
                assert [type(error) for error in failed] == [ZeroDivisionError] * count

    asyncio.run(main())


def test_who_waits_hears_that_it_was_closed(ends, ps, key):
    dialed, accepted = ends
    with streams.listen(ps, f"{key} again") as listener:
        errors = []

        def wait(call):
            with pytest.raises((sealane.Error, ValueError)) as caught:
                call()
            errors.append(caught.value)

        threads = [in_thread(wait, call) for call in (lambda: dialed.read(1), listener.accept)]
        # Before they wait or while they do: it is the same.
        dialed.close()
        listener.close()
        for thread in threads:
            thread.join()
    assert len(errors) == 2
    with pytest.raises(sealane.Unavailable, match="closed unfinished"):
        accepted.read(1)


def test_a_daemon_that_stands_still_does_not_hold_up_who_has_streams(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        with streams.listen(ps, "streams") as listener:
            dialed = [streams.connect(worker, PS, "streams") for _ in range(200)]
            accepted = [listener.accept() for _ in dialed]
        accepted[0].write(b"before")
        assert dialed[0].read(1) == b"b"
        with own_daemon.stopped(), concurrent.futures.ThreadPoolExecutor() as threads:
            # Its ring is full then.
            with pytest.raises(sealane.Error):
                worker.send_all(PS, 1, {str(number): b"text" for number in range(3000)}, timeout=1)
            wrote = threads.map(lambda stream: stream.write(b"text"), dialed[:100])
            dropped = threads.submit(dialed.__delitem__, slice(100, None))
            assert dialed[0].read(5) == b"efore"
            assert list(wrote) == [4] * 100
            dropped.result()
        assert [stream.read(4) for stream in accepted[:100]] == [b"text"] * 100
        for stream in accepted[100:]:
            with pytest.raises(sealane.Unavailable, match="reset by its other end"):
                stream.read(1)


def test_asyncio_hears_of_a_reset(ps, worker, key):
    async def abort(_, writer):
        writer.transport.abort()

    async def main():
        async with await streams.start_server(abort, ps, key):
            reader, writer = await streams.open_connection(worker, PS, key)
            with pytest.raises(sealane.Unavailable):
                await reader.read()
            with pytest.raises(sealane.Unavailable):
                writer.write(b"more")
                await writer.drain()

    asyncio.run(main())


def test_an_asyncio_server_goes_on_with_the_next_daemon():
    async def upper(reader, writer):
        writer.write((await reader.read()).upper())
        writer.close()

    async def talk(worker):
        reader, writer = await streams.open_connection(worker, PS, "upper")
        writer.write(b"text")
        writer.write_eof()
        came = await reader.read()
        writer.close()
        return came

    async def talk_again(worker):
        while True:
            try:
                return await talk(worker)
            except sealane.Unavailable:
                # The next daemon may not be there, for this process or for the other.
                await asyncio.sleep(0)

    async def main(daemon, ps, worker):
        failed = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with await streams.start_server(upper, ps, "upper") as server:
            for _ in range(3):
                assert await asyncio.wait_for(talk_again(worker), STUCK) == b"TEXT"
                daemon.kill()
                assert daemon.start(), daemon.log()
            assert await asyncio.wait_for(talk_again(worker), STUCK) == b"TEXT"
            serving = asyncio.ensure_future(server.serve_forever())
            await asyncio.sleep(0)
            assert not serving.done()
        await serving
        assert not failed

    with new_daemon() as daemon, daemon.attach(PS) as ps, daemon.attach(WORKER) as worker:
        asyncio.run(main(daemon, ps, worker))
