"""What goes in comes out: element types, shapes, memory layouts, and where the bytes are."""

import array

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER

NUMPY_TYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
ML_DTYPES = (
    "bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu"
).split()
# 3 elements travel in the ring, 1000 in the receive area; for numpy the former are copied, the latter looked at.
COUNTS = [3, 1000]


def address(a):
    return a.__array_interface__["data"][0]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_every_type_of_numpy(carry, dtype, count):
    sent = np.arange(count).astype(dtype)
    received = carry(sent)
    assert type(received) is np.ndarray and received.dtype == sent.dtype
    np.testing.assert_array_equal(received, sent)
    received[:] = 0


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_every_type_beyond_numpy(carry, dtype, count):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    sent = np.ones(count).astype(getattr(ml_dtypes, dtype))
    received = carry(sent)
    assert isinstance(received, sealane.Tensor)
    assert (received.dtype, received.shape, received.nbytes) == (dtype, sent.shape, sent.nbytes)
    assert received.tobytes() == sent.tobytes() == bytes(received)
    assert received.numpy().dtype == sent.dtype
    assert received.numpy().tobytes() == sent.tobytes()
    assert carry(received).tobytes() == sent.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (5, 0, 3), (1,), (2, 3), (40, 50), (2,) * 12, (1,) * 64])
def test_every_shape(carry, shape):
    sent = np.random.default_rng(1).random(shape)
    received = carry(sent)
    assert received.shape == shape
    np.testing.assert_array_equal(received, sent)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a[3:20, 5:6],
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a[:, None, ::3],
    ],
)
def test_arrays_with_gaps_are_copied(carry, dtype, view):
    sent = view(np.arange(40 * 60).reshape(40, 60).astype(dtype))
    np.testing.assert_array_equal(carry(sent), sent)


def test_elements_of_an_odd_size_with_gaps(carry):
    # No element type of numpy's has three bytes, but a vector of a DLPack type has.
    sent = np.arange(1200, dtype="uint8").reshape(30, 40)[:, 1::3]
    np.testing.assert_array_equal(carry(sent), sent)


def test_read_only_arrays_are_sent(carry):
    sent = np.arange(1000)
    sent.flags.writeable = False
    np.testing.assert_array_equal(carry(sent), sent)


def test_equal_descriptors_need_not_be_the_same(carry):
    sent = np.arange(5, dtype=np.dtype("float32", metadata={"unit": "m"}))
    np.testing.assert_array_equal(carry(sent), sent)


@pytest.mark.parametrize("length", [0, 10, 2000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes(carry, kind, length):
    content = bytes(range(250)) * 8
    sent = kind(content[:length])
    received = carry(sent)
    assert received.dtype == np.uint8 and received.tobytes() == content[:length]


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_arrays_of_the_standard_library(carry, code):
    sent = array.array(code, range(100))
    received = carry(sent)
    assert received.itemsize == sent.itemsize and received.tolist() == sent.tolist()


def test_views_with_gaps(carry):
    sent = memoryview(bytes(range(200)))[::-3]
    assert carry(sent).tolist() == list(sent)


def test_numbers_of_numpy(carry):
    received = carry(np.float32(1.5))
    assert received.shape == () and received == 1.5 and received.dtype == np.float32


@pytest.mark.parametrize(
    "strings",
    [["click", "", "Größe"], (b"\x00\xff", b""), [], np.array([["a", "bb"], ["ccc", ""]]), np.array([b"x", b"yy"])],
)
def test_strings(carry, strings):
    received = carry(strings)
    expected = np.array(strings)
    assert received.dtype == object and received.shape == expected.shape
    text = [item.encode() if isinstance(item, str) else item for item in np.ravel(strings).tolist()]
    assert received.ravel().tolist() == text
    # What was received can be sent.
    assert carry(received).ravel().tolist() == text


def test_one_string_of_no_dimension(carry):
    received = carry(np.array("hello"))
    assert received.shape == () and received.item() == b"hello"


@pytest.mark.parametrize("count", COUNTS)
def test_what_was_sent_was_copied(ps, worker, key, count):
    sent = np.ones(count)
    sending = ps.send_async(WORKER, 1, key, sent)
    sent[:] = 2
    assert (worker.recv(PS, 1, key) == 1).all()
    sending.result()


def test_large_arrays_lie_in_the_tensors_memory(carry):
    received = carry(np.ones(1000))
    assert isinstance(received.base, sealane.Tensor)
    assert address(received) == address(np.asarray(received.base))
    assert received.flags.writeable and received.flags.c_contiguous and received.flags.aligned


def test_what_was_received_stays(carry):
    received = [carry(np.full(1000, number)) for number in range(10)]
    for number, each in enumerate(received):
        assert (each == number).all()


@pytest.mark.parametrize("count", [0, *COUNTS])
def test_out(carry, count):
    out = np.zeros((count, 2), "int32")
    assert carry(np.ones((count, 2), "int32"), out=out) is out
    assert (out == 1).all()


def test_out_of_every_kind(carry):
    raw = bytearray(1000)
    assert carry(b"x" * 1000, out=raw) is raw and raw == b"x" * 1000
    own = carry(np.zeros(1000))
    assert carry(np.ones(1000), out=own.base) is own.base and (own == 1).all()


def test_part_of_an_array_as_out(carry):
    whole = np.zeros((4, 500))
    carry(np.ones(500), out=whole[2])
    assert whole.sum(axis=1).tolist() == [0, 0, 500, 0]


@pytest.mark.parametrize("sent_first", [True, False])
@pytest.mark.parametrize("count", [4, 100, 100_000])
@pytest.mark.parametrize("dtype, length", [("int64", 1), ("int32", 1), ("float32", 1), ("float32", 2)])
def test_out_of_another_type_or_shape_leaves_the_tensor(ps, worker, key, dtype, length, count, sent_first):
    sent, out = np.ones((2, count), "float32"), np.zeros(2 * count * length, dtype)
    if sent_first:
        sending = ps.send_async(WORKER, 1, key, sent)
        receiving = worker.recv_async(PS, 1, key, out=out)
    else:
        receiving = worker.recv_async(PS, 1, key, out=out)
        sending = ps.send_async(WORKER, 1, key, sent)
    wanted = rf"takes {dtype[0]}\d+\[{out.size}\], the tensor is f32\[2, {count}\]"
    with pytest.raises(sealane.InvalidArgument, match=wanted):
        receiving.result(10)
    assert (out == 0).all() and not sending.done()
    right = np.zeros((2, count), "float32")
    assert worker.recv(PS, 1, key, out=right) is right and (right == 1).all()
    sending.result(10)


def test_out_of_one_key_that_does_not_fit_leaves_its_tensor(ps, worker):
    sending = ps.send_all_async(WORKER, 1, {"fits": np.ones(100), "does not": np.ones(100)})
    out = {"fits": np.zeros(100), "does not": np.zeros(100, "int64")}
    came = worker.recv_all(PS, 1, out, out=out, partial=True)
    assert (came["fits"] == 1).all() and isinstance(came["does not"], sealane.InvalidArgument)
    assert (worker.recv(PS, 1, "does not", timeout=10) == 1).all()
    sending.result(10)


@pytest.mark.parametrize(
    "out, error",
    [
        (np.zeros((10, 10)).T[1:], "row-major"),
        (np.broadcast_to(np.zeros(1), (5,)), "read-only"),
        (b"read-only", "read-only"),
        (np.zeros(4, ">f4"), "big-endian"),
    ],
)
def test_out_that_cannot_be_written(worker, key, out, error):
    with pytest.raises(sealane.InvalidArgument, match=error):
        worker.recv(PS, 1, key, out=out)


@pytest.mark.parametrize("out", [[], ["text"], 5, np.array(["text"])])
def test_out_that_is_no_array_of_numbers(worker, key, out):
    with pytest.raises((TypeError, sealane.InvalidArgument)):
        worker.recv(PS, 1, key, out=out)


@pytest.mark.parametrize(
    "tensor, error",
    [
        (np.zeros(3, ">f4"), r"big-endian: send `a.astype\(a.dtype.newbyteorder\('='\)\)`"),
        (np.zeros(3, "datetime64[s]"), "view"),
        (np.zeros(3, "longdouble"), "astype"),
        (np.zeros(3, [("a", "f4"), ("b", "f4")]), "void64"),
        (memoryview(b"abcd").cast("c"), None),
        ([1, 2, 3], "int"),
        (["a", None], "NoneType"),
        (np.array([{}]), "dict"),
    ],
)
def test_what_no_tensor_can_be_made_of(ps, carry, key, tensor, error):
    if error is None:
        assert carry(tensor).tolist() == list(b"abcd")
        return
    with pytest.raises(sealane.InvalidArgument, match=error):
        ps.send(WORKER, 1, key, tensor)
    with pytest.raises(ValueError):
        ps.send_all(WORKER, 1, {key: tensor})


@pytest.mark.parametrize("tensor", [5, 1.5, None, object(), {}, "text"])
def test_what_is_no_array(ps, key, tensor):
    with pytest.raises(TypeError, match="call numpy.asarray first"):
        ps.send(WORKER, 1, key, tensor)


def test_big_endian_views(ps, key):
    import ctypes

    numbers = (ctypes.c_uint32.__ctype_be__ * 4)()
    with pytest.raises(sealane.InvalidArgument, match="big-endian"):
        ps.send(WORKER, 1, key, numbers)
    with pytest.raises(sealane.InvalidArgument, match="format"):
        ps.send(WORKER, 1, key, (ctypes.c_char_p * 4)())
