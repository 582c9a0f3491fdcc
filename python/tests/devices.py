"""Arrays in the memory of a CUDA device that the tests make themselves: ``tests/fake_cuda/driver.c``."""

import ctypes
import functools
import pathlib
import subprocess
import tempfile

import numpy

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fake_cuda" / "driver.c"
CUDA = 2


@functools.cache
def build():
    """The driver's file, which is found by its name once it is loaded."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="sealane-cuda-")) / "libcuda.so.1"
    command = ["cc", "-O1", "-fPIC", "-shared", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", path, SOURCE]
    subprocess.run(command, check=True)
    return path


class Driver:
    """The driver's functions for tests."""

    def __init__(self, path):
        library = ctypes.CDLL(str(path))
        address, size = ctypes.c_uint64, ctypes.c_size_t

        def function(name, result, *arguments):
            found = getattr(library, "fake_" + name)
            found.restype, found.argtypes = result, arguments
            return found

        self.allocate = function("allocate", address, ctypes.c_int, ctypes.c_char_p, size)
        self._read = function("read", ctypes.c_int, address, ctypes.c_void_p, size)
        self.free = function("free", None, address)
        self.stream = function("stream", address, ctypes.c_int)
        self.compute = function("compute", None, address, address, ctypes.c_char_p, size)
        self.order = function("order", None, address, address)
        self.gate = function("gate", address, address)
        self.open = function("open", None, address)
        self.hold = function("hold", None, ctypes.c_int)
        self._fail = function("fail", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
        self.lose = function("lose", None, ctypes.c_int)
        self._counts = function("counts", None, ctypes.POINTER(ctypes.c_long))

    def read(self, place, length):
        memory = ctypes.create_string_buffer(length)
        assert self._read(place, memory, length)
        return memory.raw

    def fail(self, name, status=700, after=0):
        self._fail(name.encode(), status, after)

    def copies(self):
        """Those from and to pinned memory, and others."""
        counts = (ctypes.c_long * 4)()
        self._counts(counts)
        return counts[0], counts[1]


class Interface:
    """An array of a device, as numba and older libraries show them: by ``__cuda_array_interface__``."""

    def __init__(self, driver, values, device=0, stream=None):
        self.driver, self.device, self.stream, self.read_only, self.strides = driver, device, stream, False, None
        values = numpy.ascontiguousarray(values)
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.place = driver.allocate(device, values.tobytes(), max(values.nbytes, 1))

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.place, self.read_only),
            "strides": self.strides,
            "stream": self.stream,
            "version": 3,
        }

    def values(self):
        return numpy.frombuffer(self.driver.read(self.place, self.nbytes), self.dtype).reshape(self.shape)

    def compute(self, values):
        """A kernel on the array's stream that writes these."""
        self.driver.compute(self.stream or 0, self.place, values.tobytes(), values.nbytes)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exchanged(Interface):
    """An array of a device, as torch and jax show them: by DLPack."""

    __cuda_array_interface__ = property()

    def __dlpack_device__(self):
        return CUDA, self.device

    def __dlpack__(self, *, stream=None):
        assert stream is not None and stream > 2
        if self.stream is not None:
            self.driver.order(stream, self.stream)
        dimensions = (ctypes.c_int64 * len(self.shape))(*self.shape)
        code = {"f": 2, "i": 0, "u": 1}[self.dtype.kind]
        bits = 8 * self.dtype.itemsize
        tensor = _Tensor(self.place, CUDA, self.device, len(self.shape), code, bits, 1, dimensions, None, 0, None, None)
        self.kept = (dimensions, tensor)
        return _new_capsule(ctypes.addressof(tensor), b"dltensor", None)
