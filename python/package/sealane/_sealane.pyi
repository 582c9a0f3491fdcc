from collections.abc import Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self, SupportsIndex, TypeVar, final, overload

import numpy as np
import numpy.typing as npt

from ._accepted import Accepted
from ._pulled import Pulled

__all__ = [
    "Acceptor",
    "Bell",
    "Group",
    "GroupCall",
    "Plan",
    "Receiving",
    "Sending",
    "ShardedTable",
    "Slicing",
    "Table",
    "Task",
    "Tensor",
    "attach",
    "embedded",
    "end_callbacks",
    "forked",
]

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class _SupportsCuda(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_Out = TypeVar("_Out")

# Besides these, anything that has the buffer protocol, which Python 3.11 has no name for.
_Outgoing = (
    npt.NDArray[Any]
    | np.generic
    | _SupportsDLPack
    | _SupportsCuda
    | bytes
    | bytearray
    | memoryview
    | Sequence[str]
    | Sequence[bytes]
)

def attach(
    task: str,
    *,
    socket: str | PathLike[str] | None = None,
    arena_bytes: int | None = None,
    timeout: float | None = None,
    idle_spin: float | None = None,
    job: str | None = None,
    replace: bool = False,
) -> Task:
    """Attaches this process to the host's daemon as ``task``, which the endpoint map lists."""

def embedded(
    endpoint_map: str | PathLike[str],
    task: str,
    *,
    shards: int | None = None,
    idle_spin: float | None = None,
    request_timeout: float | None = None,
    secret_file: str | PathLike[str] | None = None,
    tls: tuple[str | PathLike[str], str | PathLike[str], str | PathLike[str]] | None = None,
    insecure: bool = False,
    job: str | None = None,
) -> Task:
    """Starts the engine in this process, for one task of the endpoint map.

    ``tls`` names the files of the certificate, its key, and the authorities.
    """

@final
class Task:
    """A task of this process, under whose name it sends and receives. Usable from any thread."""

    @property
    def name(self) -> str: ...
    @overload
    def recv(
        self,
        peer: str,
        step: int,
        key: str,
        *,
        out: None = None,
        timeout: float | None = None,
        fail_if_gone: bool = False,
    ) -> Any:
        """Requests a tensor from ``peer`` and waits for it: a numpy array, or a Tensor for types that numpy lacks."""
    @overload
    def recv(
        self,
        peer: str,
        step: int,
        key: str,
        *,
        out: _Out,
        timeout: float | None = None,
        fail_if_gone: bool = False,
    ) -> _Out: ...
    def recv_async(
        self,
        peer: str,
        step: int,
        key: str,
        *,
        out: Any = None,
        timeout: float | None = None,
        fail_if_gone: bool = False,
    ) -> Receiving:
        """``recv`` that does not wait."""
    def recv_all(
        self,
        peer: str,
        step: int,
        keys: Iterable[str],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        partial: bool = False,
        fail_if_gone: bool = False,
    ) -> dict[str, Any]:
        """``recv`` for many tensors at once, as a dict in key order; with ``partial``, including errors."""
    def recv_all_async(
        self,
        peer: str,
        step: int,
        keys: Iterable[str],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        partial: bool = False,
        fail_if_gone: bool = False,
    ) -> Receiving:
        """``recv_all`` that does not wait."""
    def send(self, peer: str, step: int, key: str, tensor: _Outgoing, *, timeout: float | None = None) -> None:
        """Sends a tensor to ``peer`` and waits until it has it."""
    def send_async(
        self, peer: str, step: int, key: str, tensor: _Outgoing, *, timeout: float | None = None
    ) -> Sending:
        """``send`` that does not wait."""
    def send_all(
        self, peer: str, step: int, tensors: Mapping[str, _Outgoing], *, timeout: float | None = None
    ) -> None:
        """``send`` for many tensors at once."""
    def send_all_async(
        self, peer: str, step: int, tensors: Mapping[str, _Outgoing], *, timeout: float | None = None
    ) -> Sending:
        """``send_all`` that does not wait."""
    def publish(self, key: str, version: int, tensor: _Outgoing) -> None:
        """Publishes a tensor, which any peer may pull until a newer one replaces it."""
    def publish_async(self, key: str, version: int, tensor: _Outgoing) -> Sending:
        """``publish`` that does not wait."""
    def publish_many(self, version: int, tensors: Mapping[str, _Outgoing]) -> None:
        """``publish`` for many tensors of one version."""
    def publish_many_async(self, version: int, tensors: Mapping[str, _Outgoing]) -> Sending:
        """``publish_many`` that does not wait."""
    def withdraw(self, key: str) -> None:
        """Withdraws a published tensor."""
    def publish_slices(self, key: str, version: int, slicing: Slicing, tensor: _Outgoing) -> None:
        """Publishes this task's slices of a tensor: of the whole array, or of this task's rows."""
    def publish_slices_async(self, key: str, version: int, slicing: Slicing, tensor: _Outgoing) -> Sending:
        """``publish_slices`` that does not wait."""
    def withdraw_slices(self, key: str, slicing: Slicing) -> None:
        """Withdraws this task's slices of a tensor."""
    def pull(
        self,
        peer: str,
        key: str,
        min_version: int = 0,
        *,
        timeout: float | None = None,
        view: bool = False,
        fail_if_gone: bool = False,
    ) -> Pulled:
        """Waits for a tensor published by ``peer``, at ``min_version`` or newer; with ``view``, a read-only array without a copy."""
    def pull_async(
        self,
        peer: str,
        key: str,
        min_version: int = 0,
        *,
        timeout: float | None = None,
        view: bool = False,
        fail_if_gone: bool = False,
    ) -> Receiving:
        """``pull`` that does not wait."""
    @overload
    def pull_many(
        self,
        peer: str,
        keys: Iterable[str],
        min_version: int = 0,
        *,
        timeout: float | None = None,
        partial: Literal[False] = False,
        view: bool = False,
        fail_if_gone: bool = False,
    ) -> dict[str, Pulled]:
        """``pull`` for many tensors at once, as a dict in key order; with ``partial``, including errors."""
    @overload
    def pull_many(
        self,
        peer: str,
        keys: Iterable[str],
        min_version: int = 0,
        *,
        timeout: float | None = None,
        partial: bool,
        view: bool = False,
        fail_if_gone: bool = False,
    ) -> dict[str, Pulled | Exception]: ...
    def pull_many_async(
        self,
        peer: str,
        keys: Iterable[str],
        min_version: int = 0,
        *,
        timeout: float | None = None,
        partial: bool = False,
        view: bool = False,
        fail_if_gone: bool = False,
    ) -> Receiving:
        """``pull_many`` that does not wait."""
    def plan(self, peer: str, keys: Iterable[str]) -> Plan:
        """Prepares to pull these keys of ``peer`` together, repeatedly, into the same arrays."""
    def sliced_plan(self, slicings: Mapping[str, Slicing], *, any_versions: bool = False) -> Plan:
        """Prepares to pull tensors that several tasks publish in slices, repeatedly, each into one array."""
    def push(self, to: str, queue: str, array: _Outgoing, *, timeout: float | None = None) -> None:
        """Pushes a tensor into a queue of ``to`` and waits until the queue has taken it."""
    def push_async(self, to: str, queue: str, array: _Outgoing, *, timeout: float | None = None) -> Sending:
        """``push`` that does not wait."""
    def push_many(self, to: str, queue: str, arrays: Iterable[_Outgoing], *, timeout: float | None = None) -> None:
        """``push`` for many tensors at once, in order."""
    def push_many_async(
        self, to: str, queue: str, arrays: Iterable[_Outgoing], *, timeout: float | None = None
    ) -> Sending:
        """``push_many`` that does not wait."""
    def acceptor(self, queue: str, *, tensors_max: int = 4096, bytes_max: int = 268_435_456) -> Acceptor:
        """Opens a queue of this task, into which peers push."""
    def publish_table(self, key: str, array: _Outgoing, *, version: int = 0, torn: bool = False) -> Table:
        """Publishes a table, whose rows any peer may pull. A writable array from ``empty`` is published in place."""
    def set_versions(self, tables: Sequence[Table], version: int) -> None:
        """``Table.set_version`` of many tables, in one round trip."""
    @overload
    def pull_rows(
        self,
        table: ShardedTable,
        ids: npt.ArrayLike,
        *,
        out: Any | None = None,
        min_version: int | None = None,
        timeout: float | None = None,
        partial: Literal[False] = False,
        fail_if_gone: bool = True,
    ) -> Any:
        """Rows of a table by their numbers: an array of the shape of ``ids`` with that of a row behind it."""
    @overload
    def pull_rows(
        self,
        table: ShardedTable,
        ids: npt.ArrayLike,
        *,
        out: Any | None = None,
        min_version: int | None = None,
        timeout: float | None = None,
        partial: Literal[True],
        fail_if_gone: bool = True,
    ) -> tuple[Any, list[tuple[str, list[int], Exception]]]: ...
    def pull_rows_async(
        self,
        table: ShardedTable,
        ids: npt.ArrayLike,
        *,
        out: Any | None = None,
        min_version: int | None = None,
        timeout: float | None = None,
        partial: bool = False,
        fail_if_gone: bool = True,
    ) -> Receiving:
        """``pull_rows`` that does not wait."""
    def pull_all_rows(
        self,
        tables: Sequence[ShardedTable],
        ids: Sequence[npt.ArrayLike],
        *,
        out: Sequence[Any] | None = None,
        min_version: int | None = None,
        timeout: float | None = None,
        partial: bool = False,
        fail_if_gone: bool = True,
    ) -> list[Any]:
        """``pull_rows`` from many tables at once."""
    def pull_all_rows_async(
        self,
        tables: Sequence[ShardedTable],
        ids: Sequence[npt.ArrayLike],
        *,
        out: Sequence[Any] | None = None,
        min_version: int | None = None,
        timeout: float | None = None,
        partial: bool = False,
        fail_if_gone: bool = True,
    ) -> Receiving:
        """``pull_all_rows`` that does not wait."""
    def push_rows(
        self,
        table: ShardedTable,
        queue: str,
        ids: npt.ArrayLike,
        rows: _Outgoing,
        *,
        sum: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Pushes rows to the owners of a table; with ``sum`` those of the same number are added up."""
    def push_rows_async(
        self,
        table: ShardedTable,
        queue: str,
        ids: npt.ArrayLike,
        rows: _Outgoing,
        *,
        sum: bool = False,
        timeout: float | None = None,
    ) -> Sending:
        """``push_rows`` that does not wait."""
    def push_all_rows(
        self,
        tables: Sequence[ShardedTable],
        queue: str,
        ids: Sequence[npt.ArrayLike],
        rows: Sequence[_Outgoing],
        *,
        sum: bool = False,
        timeout: float | None = None,
    ) -> None:
        """``push_rows`` to many tables at once."""
    def push_all_rows_async(
        self,
        tables: Sequence[ShardedTable],
        queue: str,
        ids: Sequence[npt.ArrayLike],
        rows: Sequence[_Outgoing],
        *,
        sum: bool = False,
        timeout: float | None = None,
    ) -> Sending:
        """``push_all_rows`` that does not wait."""
    def accept_rows(self, queue: str, *, tensors_max: int = 4096, bytes_max: int = 268_435_456) -> Acceptor:
        """Opens a queue of this task, into which peers push rows: what it accepts are ``AcceptedRows``."""
    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None) -> Any:
        """An array that is sent, and received into, without a copy. float32 by default."""
    def pin(self, device: int = 0) -> None:
        """Has the CUDA driver pin the memory of ``empty``. Experimental."""
    def direct_peers(self) -> list[str]:
        """Tasks of this host and user to which small tensors go past the daemon now, by memory that the two processes share."""
    def abort(self, step: int, reason: str) -> None:
        """Ends a step, here and at its peers."""
    def cleanup(self, step: int) -> None:
        """Frees everything that is left of a step."""
    def set_credentials(
        self,
        *,
        secret_file: str | PathLike[str] | None = None,
        tls: tuple[str | PathLike[str], str | PathLike[str], str | PathLike[str]] | None = None,
    ) -> None:
        """Replaces the secret or certificates of an embedded engine, for new links."""
    def close(self) -> None:
        """Detaches; stops an embedded engine."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, class_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class ShardedTable:
    """A table that one task has published, or several, each a part of it."""

    def __new__(
        cls,
        key: str,
        owners: str | Sequence[str],
        *,
        rows: int | None = None,
        sharding: Literal["range", "modulo", "hash"] = "modulo",
    ) -> Self: ...
    @property
    def key(self) -> str: ...
    @property
    def owners(self) -> tuple[str, ...]: ...
    def rows_of(self, owner: int) -> npt.NDArray[np.uint64]:
        """The numbers of the rows that an owner has, in the order in which its part has them."""

@final
class Table:
    """A table that this process publishes, and writes while others pull its rows. Usable from any thread."""

    def update(self, ids: npt.ArrayLike, rows: _Outgoing) -> None:
        """Writes rows over those of these numbers."""
    def add(self, ids: npt.ArrayLike, rows: _Outgoing) -> None:
        """Adds rows to those of these numbers."""
    def withdraw(self) -> None:
        """Withdraws the table; pulls of it wait for the next one."""
    def set_version(self, version: int) -> None:
        """The table is of that version from now on."""
    @property
    def key(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def version(self) -> int: ...

@final
class Plan:
    """Keys that a peer publishes, pulled together. Usable from any thread, one pull at a time."""

    def pull(
        self,
        min_version: int = 0,
        *,
        timeout: float | None = None,
        partial: bool = False,
        copy: bool = False,
        out: Mapping[str, Any] | None = None,
        fail_if_gone: bool = False,
    ) -> dict[str, Any]:
        """The tensors at ``min_version`` or newer: the plan's own arrays, which the next pull overwrites, copies, or ``out``."""
    def pull_async(
        self,
        min_version: int = 0,
        *,
        timeout: float | None = None,
        partial: bool = False,
        copy: bool = False,
        out: Mapping[str, Any] | None = None,
        fail_if_gone: bool = False,
    ) -> Receiving:
        """``pull`` that does not wait."""
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def versions(self) -> dict[str, int | None]: ...
    def close(self) -> None:
        """Frees the plan here and at its peer. Arrays that it returned stay valid."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, class_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Slicing:
    """Which tasks publish which rows of an array."""

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        owners: Iterable[str],
        *,
        rows: Sequence[int] | None = None,
    ) -> Self: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def slices(self) -> tuple[tuple[str, slice], ...]:
        """Each slice's owner, and what cuts it out of the whole array."""
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

@final
class Acceptor:
    """Accepts tensors that peers push into a queue. Usable from any thread; iterate over it until it is closed."""

    @property
    def queue(self) -> str: ...
    def accept(self, timeout: float | None = None, *, fail_if_gone: Sequence[str] | None = None) -> Accepted:
        """The next tensor and its sender; raises DeadlineExceeded after ``timeout`` seconds."""
    def accept_many(
        self, most: int, timeout: float | None = None, *, fail_if_gone: Sequence[str] | None = None
    ) -> list[Accepted]:
        """The next tensors: all that are available, or the first to arrive."""
    def close(self) -> None:
        """Frees the queue and unaccepted tensors, and ends iterations."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Accepted: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, class_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Sending:
    """A send, push or publication in progress: await it or call ``result``. If dropped, it continues."""

    def result(self, timeout: float | None = None) -> None:
        """Blocks until it has ended; raises TimeoutError after ``timeout`` seconds."""
    def done(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, None]: ...

@final
class Receiving:
    """A recv or pull in progress: await it or call ``result``. Dropping it cancels it."""

    def result(self, timeout: float | None = None) -> Any:
        """Blocks until it has ended; raises TimeoutError after ``timeout`` seconds."""
    def done(self) -> bool: ...
    def cancel(self) -> bool:
        """Cancels the call; False if it has already ended."""
    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Tensor:
    """A tensor's memory: the base of received arrays, or a type that numpy lacks."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def is_dead(self) -> bool: ...
    def numpy(self) -> npt.NDArray[Any]: ...
    def tobytes(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class Stream:
    """One end of a stream, whose calls are waited for or awaited; ``sealane.streams`` makes files of them."""

    @property
    def peer(self) -> str: ...
    def read(self, most: int) -> Receiving: ...
    def write(self, data: bytes | bytearray) -> Sending: ...
    def flush(self) -> Sending: ...
    def finish(self) -> Sending: ...
    def reset(self, reason: str) -> None: ...
    def close(self) -> None: ...

@final
class StreamListener:
    def accept(self) -> Receiving: ...
    def close(self) -> None: ...

def dial(task: Task, to: str, name: str, window_bytes: int | None = None) -> Receiving: ...
def listen(task: Task, name: str, window_bytes: int | None = None) -> StreamListener: ...

@final
class Bell:
    def fileno(self) -> int: ...
    def tickets(self) -> list[int]: ...

def forked() -> None: ...

# Contiguous memory of an object: its address, so many bytes, and the object, which keeps them.
_Memory = tuple[int, int, Any]

class _Store(Protocol):
    def set(self, key: str, value: bytes, /) -> object: ...
    def get(self, key: str, seconds: float, /) -> bytes: ...

def end_callbacks() -> None:
    """Nobody is called back any more: the interpreter is about to end."""

@final
class GroupCall:
    """A call of a group that goes on."""

    def wait(self, timeout: float | None = None) -> int: ...
    def succeeded(self) -> bool | None: ...
    def error(self) -> BaseException | None: ...
    def then(self, callback: Any) -> None: ...

@final
class Group:
    """One rank of a group, by addresses of memory; ``sealane.Group`` is the one for arrays. A call that is not to be waited for, or that
    others are before, gives its ``GroupCall``."""

    def __new__(
        cls,
        store: _Store,
        rank: int,
        size: int,
        timeout: float,
        *,
        interface: str | None = None,
        host: str | None = None,
        secret_file: str | PathLike[str] | None = None,
        tls: tuple[str | PathLike[str], str | PathLike[str], str | PathLike[str]] | None = None,
    ) -> Self: ...
    def hosts(self) -> int: ...
    def check(self) -> None: ...
    def abort(self, reason: str) -> None: ...
    def leave(self) -> None: ...
    def barrier(self, timeout: float | None, wait: bool) -> GroupCall | None: ...
    def broadcast(self, data: _Memory, root: int, timeout: float | None, wait: bool) -> GroupCall | None: ...
    def reduce(
        self, data: _Memory, dtype: str, op: str, root: int | None, timeout: float | None, wait: bool
    ) -> GroupCall | None: ...
    def reduce_scatter(
        self, given: _Memory, into: _Memory, dtype: str, op: str, timeout: float | None, wait: bool
    ) -> GroupCall | None: ...
    def all_gather(self, part: _Memory, whole: _Memory, timeout: float | None, wait: bool) -> GroupCall | None: ...
    def gather(
        self, part: _Memory, whole: _Memory | None, root: int, timeout: float | None, wait: bool
    ) -> GroupCall | None: ...
    def scatter(
        self, whole: _Memory | None, part: _Memory, root: int, timeout: float | None, wait: bool
    ) -> GroupCall | None: ...
    def all_to_all(self, given: _Memory, into: _Memory, timeout: float | None, wait: bool) -> GroupCall | None: ...
    def all_to_all_uneven(
        self,
        given: _Memory,
        given_parts: list[int],
        into: _Memory,
        into_parts: list[int],
        timeout: float | None,
        wait: bool,
    ) -> GroupCall | None: ...
    def send(self, data: _Memory, to: int, tag: int) -> GroupCall: ...
    def recv(self, data: _Memory, source: int | None, tag: int) -> GroupCall: ...
