"""Memory that is shared with the daemon: what lies in it leaves and arrives without a copy."""

import gc

import numpy as np
import pytest
import sealane
from daemons import ARENA_BYTES, PS, WORKER
from test_arrays import NUMPY_TYPES, address


@pytest.fixture
def attached(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        yield ps, worker


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_empty_of_every_type(ps, dtype):
    made = ps.empty((3, 4), dtype)
    assert made.dtype == dtype and made.shape == (3, 4) and made.flags.writeable and made.flags.aligned
    made[:] = 1


def test_empty_of_every_shape(ps):
    assert ps.empty(5).shape == (5,) and ps.empty(5).dtype == np.float32
    assert ps.empty(np.int64(5)).shape == (5,) and ps.empty([2, 3], np.int8).shape == (2, 3)
    assert ps.empty((), float).shape == () and ps.empty((3, 0)).shape == (3, 0)
    for wrong in (-1, (2, -3), "3", None, 1.5):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            ps.empty(wrong)
    with pytest.raises(sealane.InvalidArgument, match="more than 2"):
        ps.empty((1 << 40, 1 << 40))
    for dtype in ("S5", object, ">f4", "datetime64[s]"):
        with pytest.raises(sealane.InvalidArgument):
            ps.empty(3, dtype)
    with pytest.raises(TypeError):
        ps.empty(3, "no such type")


def test_empty_of_a_type_that_numpy_does_not_have(ps):
    made = ps.empty((2, 3), "bfloat16")
    assert isinstance(made, sealane.Tensor) and (made.dtype, made.shape, made.nbytes) == ("bfloat16", (2, 3), 12)
    memoryview(made)[:] = bytes(12)
    assert made.tobytes() == bytes(12)


def test_what_is_sent_from_the_arena_is_not_copied(attached):
    ps, worker = attached
    # More than half of the arena: a copy would find no room.
    large = ps.empty(ARENA_BYTES * 3 // 4, "uint8")
    large[:] = 7
    sending = ps.send_async(WORKER, 1, "large", large)
    # The daemon reads it when it is asked for, so that this is what arrives: the proof that nothing was copied before.
    large[0] = 8
    received = worker.recv(PS, 1, "large")
    sending.result()
    assert received[0] == 8 and (received[1:] == 7).all()


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[16:], lambda a: a.reshape(2, -1), lambda a: memoryview(a)])
def test_views_of_the_arena_are_sent_in_place(attached, view):
    ps, worker = attached
    large = ps.empty(ARENA_BYTES * 3 // 4, "uint8")
    large[:] = 7
    sending = ps.send_async(WORKER, 1, "view", view(large))
    del large
    gc.collect()
    assert (np.asarray(worker.recv(PS, 1, "view")) == 7).all()
    sending.result()


def test_the_arena_comes_back_when_a_send_is_over(attached):
    ps, worker = attached
    for step in range(20):
        large = ps.empty(ARENA_BYTES * 3 // 4, "uint8")
        large[:] = step
        sending = ps.send_async(WORKER, step, "large", large)
        del large
        assert (worker.recv(PS, step, "large") == step).all()
        sending.result()


def test_what_is_received_into_the_arena_is_not_copied(attached):
    ps, worker = attached
    out = worker.empty(ARENA_BYTES * 3 // 4, "uint8")
    place = address(out)
    # A block beside it, into which it would be received otherwise, would find no room.
    sending = ps.send_async(WORKER, 1, "large", np.full(out.size, 5, "uint8"))
    assert worker.recv(PS, 1, "large", out=out) is out
    sending.result()
    assert address(out) == place and (out == 5).all()


def test_a_first_model_fits_unless_memory_was_asked_for(own_daemon):
    with sealane.attach(PS, socket=own_daemon.socket) as ps, sealane.attach(WORKER, socket=own_daemon.socket) as worker:
        weights = np.arange(20_000_000, dtype="float32")
        sending = ps.send_async(WORKER, 1, "80 MB", weights)
        out = worker.empty(weights.shape)
        assert worker.recv(PS, 1, "80 MB", out=out) is out
        sending.result()
        assert (out == weights).all()
        assert ps.empty((1_000_000, 100)).nbytes == 400_000_000, "an embedding"
        message = r"the arena has \d+ bytes: attach with a larger arena \(arena_bytes of attach\(\) in Python"
        with pytest.raises(sealane.ResourceExhausted, match=message):
            ps.empty(1 << 40, "uint8")


def test_a_full_arena_says_so_and_recovers(attached):
    ps, worker = attached
    held = ps.empty(ARENA_BYTES // 2 + 1, "uint8")
    with pytest.raises(sealane.ResourceExhausted, match="client arena_bytes is full"):
        ps.empty(ARENA_BYTES // 2, "uint8")
    with pytest.raises(sealane.ResourceExhausted, match="client arena_bytes is full"):
        ps.send(WORKER, 1, "large", np.zeros(ARENA_BYTES // 2, "uint8"))
    with pytest.raises(sealane.ResourceExhausted):
        ps.send_all(WORKER, 1, {"large": np.zeros(ARENA_BYTES // 2, "uint8")})
    del held
    held = ps.empty(ARENA_BYTES // 2, "uint8")


def test_what_was_received_outlives_its_task_and_its_daemon(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        sending = ps.send_async(WORKER, 1, "kept", np.arange(10_000))
        received = worker.recv(PS, 1, "kept")
        sending.result()
    own_daemon.kill()
    np.testing.assert_array_equal(received, np.arange(10_000))
    received[:] = 0


def test_memory_of_the_arena_outlives_its_task(own_daemon):
    with own_daemon.attach(PS) as ps:
        made = ps.empty(1000)
    del ps
    gc.collect()
    made[:] = 3
    assert made.sum() == 3000
