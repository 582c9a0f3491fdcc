"""Groups: processes that compute with each other's arrays, as those of MPI do; no daemon is needed."""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy.typing as npt

from . import _sealane
from ._errors import InvalidArgument

_Array = npt.NDArray[Any]
_Path = str | os.PathLike[str]
_Op = Literal["sum", "product", "min", "max", "average", "and", "or", "xor"]


class Store(Protocol):
    """What all ranks of a job share, such as a server of keys and values."""

    def set(self, key: str, value: bytes) -> object:
        """Puts a value under a key."""

    def get(self, key: str, seconds: float) -> bytes:
        """The value under a key, once there is one; raises after so many seconds."""
        raise NotImplementedError


class Message:
    """A send or a recv that goes on. The arrays of one that is dropped are used until it ends, or at once no more if nothing has come."""

    def __init__(self, call: _sealane.GroupCall, array: _Array) -> None:
        self._call, self._array = call, array

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; the rank that sent it, or to which it went. Raises DeadlineExceeded after ``timeout`` seconds, Left if the
        other rank has gone, and InvalidArgument if the arrays have different sizes."""
        return self._call.wait(timeout)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._call.succeeded() is not None


class Group:
    """One rank of a group of ``size`` processes, which meet by a ``store``. Those of one host and one user share memory; the others are
    connected by TCP.

    Collectives are called by all ranks in the same order. They block, without the interpreter's lock. Arrays are contiguous; ``out`` may
    overlap ``array``, at the cost of a copy of the shorter, except that ``all_gather`` copies nothing.

    Any error but InvalidArgument of this rank's own arguments ends the group, and all ranks raise: DeadlineExceeded after ``timeout``
    seconds, with the ranks that have not come; Left if the process of a rank that is needed has ended, with its number; InvalidArgument
    where ranks call differently, with what both call.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: float = 300.0,
        interface: str | None = None,
        host: str | None = None,
        secret_file: _Path | None = None,
        tls: tuple[_Path, _Path, _Path] | None = None,
    ) -> None:
        """Waits until all have come, at most ``timeout`` seconds, as each call does then.

        Ranks of other hosts reach this one by an ``interface`` (or an address), else by any of this host's. They must show a number that is
        in the store; the secret in ``secret_file``; or certificates, where ``tls`` names certificate, key and authorities, and bytes are
        encrypted. Ranks share memory if they have the same ``host``, else if they are on one."""
        self._group = _sealane.Group(
            store, rank, size, timeout, interface=interface, host=host, secret_file=secret_file, tls=tls
        )
        self._rank, self._size, self._timeout = rank, size, timeout

    @property
    def rank(self) -> int:
        """This process's number, from 0 on."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @property
    def hosts(self) -> int:
        """How many hosts they are on."""
        return self._group.hosts()

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._run(self._group.barrier)

    def broadcast(self, array: _Array, root: int = 0) -> None:
        """Writes the array of rank ``root`` over those of the others."""
        self._run(self._group.broadcast, self._into(array), root)

    def all_reduce(self, array: _Array, op: _Op = "sum") -> None:
        """Writes what the arrays of all ranks reduce to over each of them: the same bytes."""
        self._run(self._group.reduce, self._into(array), array.dtype.name, op, None)

    def reduce(self, array: _Array, root: int = 0, op: _Op = "sum") -> None:
        """The same over that of rank ``root`` alone."""
        self._run(self._group.reduce, self._into(array), array.dtype.name, op, root)

    def reduce_scatter(self, array: _Array, out: _Array, op: _Op = "sum") -> None:
        """Reduces the equal parts of all ranks' arrays, one for each rank, and writes this rank's to ``out``."""
        self._check_types(array, out)
        self._run(self._group.reduce_scatter, self._given(array), self._into(out), out.dtype.name, op)

    def all_gather(self, array: _Array, out: _Array) -> None:
        """Writes the arrays of all ranks to ``out``, one behind the other."""
        self._check_types(array, out)
        self._run(self._group.all_gather, self._given(array), self._into(out))

    def gather(self, array: _Array, out: _Array | None = None, root: int = 0) -> None:
        """The same for rank ``root``, which alone has an ``out``."""
        self._check_types(array, out)
        whole = None if out is None else self._into(out)
        self._run(self._group.gather, self._given(array), whole, root)

    def scatter(self, array: _Array | None, out: _Array, root: int = 0) -> None:
        """Writes to each rank's ``out`` its part of the array of rank ``root``, which alone has one."""
        self._check_types(array, out)
        whole = None if array is None else self._given(array)
        self._run(self._group.scatter, whole, self._into(out), root)

    def all_to_all(
        self,
        array: _Array,
        out: _Array,
        given: Sequence[int] | None = None,
        wanted: Sequence[int] | None = None,
    ) -> None:
        """Gives each rank its part of ``array``, and gets one of each in ``out``: equal parts, or so many elements of each rank."""
        self._check_types(array, out)
        sizes = [self._parts(array, given), self._parts(out, wanted)]
        if given is None and wanted is None:
            self._run(self._group.all_to_all, self._given(array), self._into(out))
            return
        arguments = (self._given(array), sizes[0], self._into(out), sizes[1])
        self._run(self._group.all_to_all_uneven, *arguments)

    def _parts(self, array: _Array, counts: Sequence[int] | None) -> list[int]:
        """The bytes of each rank's part of an array: of so many elements, or of equally many."""
        if counts is None:
            if array.size % self._size:
                raise InvalidArgument(f"{array.size} elements are not an equal part for each of {self._size} ranks")
            counts = [array.size // self._size] * self._size
        return [count * array.itemsize for count in counts]

    def send(self, array: _Array, to: int, tag: int = 0) -> Message:
        """Sends a message to a rank, which receives it by its ``tag``. Messages of one tag arrive in order."""
        return Message(self._group.send(self._given(array), to, tag), array)

    def recv(self, out: _Array, source: int | None = None, tag: int = 0) -> Message:
        """Receives a message of a rank, or of any, into an array of exactly its size."""
        return Message(self._group.recv(self._into(out), source, tag), out)

    def abort(self, reason: str) -> None:
        """Ends the group for all ranks, also for calls that wait at this moment, and closes it here. Later calls of this rank raise
        Unavailable, with the reason."""
        self._group.abort(reason)

    def close(self) -> None:
        """Leaves the group, which ends it for ranks that still need this one. May be called twice."""
        self._group.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[..., _sealane.GroupCall | None], *arguments: Any) -> None:
        going_on = call(*arguments, self._timeout, True)
        # Another thread's call is before this one.
        if going_on is not None:
            going_on.wait()

    def _given(self, array: _Array) -> tuple[int, int, _Array]:
        self._check(array.flags.c_contiguous and not array.dtype.hasobject, "an array of gaps, or of objects")
        self._check(array.dtype.isnative, "one of another machine's byte order")
        return array.ctypes.data, array.nbytes, array

    def _into(self, array: _Array) -> tuple[int, int, _Array]:
        self._check(array.flags.writeable, "a result that cannot be written to")
        return self._given(array)

    def _check_types(self, array: _Array | None, out: _Array | None) -> None:
        if array is not None and out is not None:
            self._check(array.dtype == out.dtype, f"an array of {array.dtype} and one of {out.dtype}")

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            raise InvalidArgument(f"a group's call takes contiguous arrays of one type, and this is {what}")
