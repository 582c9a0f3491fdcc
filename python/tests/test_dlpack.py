"""DLPack and the buffer protocol: tensors of other frameworks, in and out without a copy."""

import ctypes
import gc


import numpy as np
import pytest
import sealane
from daemons import PS, WORKER, references_to
from test_arrays import NUMPY_TYPES, address


class Producer:
    """An array that can only be had by DLPack, as frameworks before or after its version 1.0 give it."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if not self.versioned and arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**arguments)


@pytest.fixture
def received(carry):
    """A tensor that lies in memory of its own."""
    return carry(np.arange(1000, dtype="float32").reshape(20, 50)).base


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_tensors_of_other_frameworks_are_sent(carry, dtype, versioned):
    sent = np.arange(1000).astype(dtype)
    np.testing.assert_array_equal(carry(Producer(sent, versioned)), sent)


def test_tensors_with_gaps_and_offsets(carry):
    whole = np.arange(3000.0).reshape(50, 60)
    for view in (whole.T, whole[3:, 7:9], whole[::-1], whole[:0], whole[5, 5:]):
        np.testing.assert_array_equal(carry(Producer(view)), view)


def test_capsules_are_given_back(carry):
    sent = np.arange(1000.0)
    references = references_to(sent)
    carry(Producer(sent))
    # Whichever thread is the last to need it drops the reference, which then goes with a next call.
    while references_to(sent) > references:
        carry(np.ones(1))


def test_tensors_elsewhere_are_refused(ps, key):
    with pytest.raises(sealane.InvalidArgument, match="copy it to the CPU first"):
        ps.send(WORKER, 1, key, Producer(np.ones(3), device=(10, 0)))


def test_broken_producers(ps, key):
    class Wrong(Producer):
        def __dlpack__(self, **arguments):
            return "no capsule"

    class Raises(Producer):
        def __dlpack__(self, **arguments):
            raise BufferError("requires gradients")

    with pytest.raises(TypeError):
        ps.send(WORKER, 1, key, Wrong(np.ones(3)))
    with pytest.raises(BufferError, match="requires gradients"):
        ps.send(WORKER, 1, key, Raises(np.ones(3)))


def test_out_by_dlpack(carry):
    out = np.zeros(1000)
    producer = Producer(out)
    assert carry(np.ones(1000), out=producer) is producer
    assert (out == 1).all()
    out.flags.writeable = False
    with pytest.raises(sealane.InvalidArgument, match="read-only"):
        carry(np.ones(1000), out=producer)


def test_numpy_looks_at_the_same_memory(received):
    seen = np.from_dlpack(received)
    assert address(seen) == address(received.numpy()) and seen.shape == (20, 50)
    seen[0, 0] = 9
    assert received.numpy()[0, 0] == 9


def test_a_copy_where_one_is_asked_for(received):
    copied = np.from_dlpack(received, copy=True)
    assert address(copied) != address(received.numpy())
    np.testing.assert_array_equal(copied, received.numpy())


def test_the_memory_stays_while_it_is_looked_at(carry):
    seen = np.from_dlpack(carry(np.arange(1000)).base)
    gc.collect()
    for _ in range(20):
        carry(np.zeros(1000, int))
    np.testing.assert_array_equal(seen, np.arange(1000))


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1), (0, 8), (2, 0)])
def test_capsules_of_either_kind(received, version):
    references = references_to(received)
    capsule = received.__dlpack__(max_version=version)
    name = '"dltensor_versioned"' if version and version[0] >= 1 else '"dltensor"'
    assert name in repr(capsule) and references_to(received) > references
    # Nobody takes it: it gives back what it keeps.
    del capsule
    assert references_to(received) == references


def test_what_cannot_be_handed_out(received):
    assert received.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="stream"):
        received.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="CPU"):
        received.__dlpack__(dl_device=(2, 0))


def test_views(received):
    view = memoryview(received)
    assert (view.format, view.itemsize, view.shape, view.strides) == ("f", 4, (20, 50), (200, 4))
    assert not view.readonly and view.c_contiguous and view[1, 2] == 52
    view[1, 2] = 7
    assert received.numpy()[1, 2] == 7
    references = references_to(received)
    view.release()
    assert references_to(received) == references - 1
    assert bytes(received) == received.tobytes()
    assert ctypes.c_char.from_buffer(received, 8) is not None


def test_representation(received):
    assert repr(received) == "sealane.Tensor(float32, shape=[20, 50])"
    assert not received.is_dead


def test_torch(carry):
    torch = pytest.importorskip("torch")
    sent = torch.arange(1000, dtype=torch.bfloat16).reshape(20, 50)
    received = carry(sent)
    assert received.dtype == "bfloat16" and torch.equal(torch.from_dlpack(received), sent)
    out = torch.zeros(20, 50)
    assert carry(torch.ones(20, 50), out=out) is out and torch.equal(out, torch.ones(20, 50))
    assert torch.equal(torch.from_dlpack(carry(sent.float().T)), sent.float().T)


def test_jax(carry):
    jax = pytest.importorskip("jax")
    sent = jax.numpy.arange(1000, dtype=jax.numpy.bfloat16)
    received = carry(sent)
    assert received.dtype == "bfloat16" and (jax.dlpack.from_dlpack(received) == sent).all()
