from collections.abc import Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, TypeVar, final, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Bell", "Receiving", "Sending", "Task", "Tensor", "attach", "embedded", "forked"]

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

_Out = TypeVar("_Out")

# Besides these, anything that has the buffer protocol, which Python 3.11 has no name for.
_Outgoing = (
    npt.NDArray[Any]
    | np.generic
    | _SupportsDLPack
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
    timeout: float = 10.0,
    idle_spin: float = 50e-6,
) -> Task:
    """Attaches this process to the host's daemon, as the task of that name in the endpoint map."""

def embedded(
    endpoint_map: str | PathLike[str],
    task: str,
    *,
    shards: int = 1,
    idle_spin: float = 200e-6,
    request_timeout: float = 600.0,
) -> Task:
    """Starts the engine in this process, for one task of the endpoint map."""

@final
class Task:
    """A task of this process: what it sends and receives as. For any thread."""

    @property
    def name(self) -> str: ...
    @overload
    def recv(self, peer: str, step: int, key: str, *, out: None = None, timeout: float | None = None) -> Any:
        """Asks ``peer`` for a tensor and waits for it: a numpy array, or a Tensor for types that numpy does not have."""
    @overload
    def recv(self, peer: str, step: int, key: str, *, out: _Out, timeout: float | None = None) -> _Out: ...
    def recv_async(
        self, peer: str, step: int, key: str, *, out: Any = None, timeout: float | None = None
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
    ) -> dict[str, Any]:
        """``recv`` for many tensors at once, as a dict in the order of the keys."""
    def send(self, peer: str, step: int, key: str, tensor: _Outgoing, *, timeout: float | None = None) -> None:
        """Deposits a tensor for ``peer`` and waits until it has it."""
    def send_async(
        self, peer: str, step: int, key: str, tensor: _Outgoing, *, timeout: float | None = None
    ) -> Sending:
        """``send`` that does not wait."""
    def send_all(
        self, peer: str, step: int, tensors: Mapping[str, _Outgoing], *, timeout: float | None = None
    ) -> None:
        """``send`` for many tensors at once."""
    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike | None = None) -> Any:
        """An array that is sent and received into without a copy. float32 unless given."""
    def abort(self, step: int, reason: str) -> None:
        """Ends a step, here and at its peers."""
    def cleanup(self, step: int) -> None:
        """Frees what is left of a step."""
    def close(self) -> None:
        """Detaches; with the engine in this process, stops it."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, class_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Sending:
    """A send under way: await it, call ``result``, or drop it: the send goes on."""

    def result(self, timeout: float | None = None) -> None:
        """Blocks until the consumer has the tensor; raises TimeoutError after ``timeout`` seconds."""
    def done(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, None]: ...

@final
class Receiving:
    """A recv under way: await it or call ``result``. Dropping it gives the recv up."""

    def result(self, timeout: float | None = None) -> Any:
        """Blocks until the tensor is there; raises TimeoutError after ``timeout`` seconds."""
    def done(self) -> bool: ...
    def cancel(self) -> bool:
        """Gives the recv up; False if it has ended already."""
    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Tensor:
    """A tensor's memory: the base of arrays that were received, or what numpy does not have."""

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
class Bell:
    def fileno(self) -> int: ...
    def tickets(self) -> list[int]: ...

def forked() -> None: ...
