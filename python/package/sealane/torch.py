"""PyTorch's collectives through Sealane: ``torch.distributed.init_process_group("sealane")``, without an import.

Ranks of one host reduce and copy tensors in memory that they share; those of several hosts are connected by TCP. There is no daemon.
Collectives that the caller waits for run in its thread, if no other goes on; else they run in threads of the group, in order, which also
call back in order.
"""

import atexit
import contextlib
import datetime
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.distributed import ReduceOp

from ._errors import Error
from ._sealane import Group, end_callbacks

_log = logging.getLogger(__name__)

# C++ keeps a backend, but not always its Python half.
_open: set["Backend"] = set()

_OPERATIONS = [
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "average"),
    (ReduceOp.PRODUCT, "product"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "and"),
    (ReduceOp.BOR, "or"),
    (ReduceOp.BXOR, "xor"),
]

# Longest interval in seconds at which a store is polled for a key.
_STORE_POLL_MAX = 0.1

# The tags of monitored_barrier's messages begin here, where no user's are.
_BARRIER_TAG = -1 << 62


def register() -> None:
    """Makes the backend known to PyTorch, which calls this for the entry point ``sealane``."""
    if "SEALANE" not in dist.Backend._plugins:
        dist.Backend.register_backend("sealane", _create, devices=["cpu", "cuda"])
        for name in _CALLS:
            _give_works(name)
        _leave_out_others()


def _create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> "Backend":
    return Backend(store, rank, size, timeout)


def _options() -> dict[str, Any]:
    """How ranks of other hosts reach this one, and what they must show, from the environment."""

    def variable(name: str) -> str | None:
        return os.environ.get(f"SEALANE_TORCH_{name}") or None

    # Whoever has told gloo its interface need not say it again.
    interface = variable("INTERFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None
    files = [variable(f"TLS_{name}") for name in ("CERTIFICATE", "KEY", "AUTHORITIES")]
    if any(files) and not all(files):
        raise ValueError("SEALANE_TORCH_TLS_CERTIFICATE, _KEY and _AUTHORITIES belong together: set all three or none")
    return {
        "interface": interface,
        "host": variable("HOST"),
        "secret_file": variable("SECRET_FILE"),
        "tls": tuple(files) if all(files) else None,
    }


# The works that backends make within a call of a process group, of each thread.
_made = threading.local()


def _noted(work: "_Work") -> "_Work":
    works = getattr(_made, "works", None)
    if works is not None:
        works.append(work)
    return work


# The calls of a process group that give works, as far as PyTorch has them.
_CALLS = [
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
]


def _give_works(name: str) -> None:
    """Has callers get the works of this backend themselves. PyTorch 2.14 and 2.15 wrap those that are made in Python (`PyWorkHolder`), and
    what it gives out knows of `wait` and `get_future` alone: not whether a call has ended, nor from which rank a message came."""
    call = getattr(dist.ProcessGroup, name, None)
    if call is None:
        return

    @functools.wraps(call)
    def with_work(group: dist.ProcessGroup, *arguments: Any, **named: Any) -> Any:
        outer, made = getattr(_made, "works", None), []
        _made.works = made
        try:
            work = call(group, *arguments, **named)
        finally:
            _made.works = outer
        return made[-1] if made else work

    setattr(dist.ProcessGroup, name, with_work)


def _leave_out_others() -> None:
    """Has `split_group` return nothing to ranks that are in no part: PyTorch 2.15 ends the process of one whose backend in Python does."""
    call = getattr(dist.ProcessGroup, "split_group", None)
    if call is None:
        return

    @functools.wraps(call)
    def split_group(group: dist.ProcessGroup, ranks: list[int], *arguments: Any, **named: Any) -> Any:
        backends = [group._get_backend(device) for device in group._device_types]
        if group.rank() not in ranks and all(isinstance(backend, Backend) for backend in backends):
            return None
        return call(group, ranks, *arguments, **named)

    dist.ProcessGroup.split_group = split_group


class _Store:
    """PyTorch's store, as ``Group`` asks for it."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, seconds: float) -> bytes:
        began = time.monotonic()
        while not self._store.check([key]):
            waited = time.monotonic() - began
            if waited >= seconds:
                raise dist.DistStoreError(f"{key} was not set within {seconds:.3g} s")
            # Signal handlers do not run in the store's own wait, which also logs each timeout.
            time.sleep(min(max(waited / 8, 0.001), _STORE_POLL_MAX))
        return self._store.get(key)


def _told(error: Exception) -> Exception:
    """The error as callers of ``torch.distributed`` expect it."""
    return dist.DistBackendError(str(error)) if isinstance(error, Error) else error


class _Work(dist._Work):
    """A call that goes on, or has ended if ``call`` is None. ``after`` puts the result where it belongs, also if nobody waits."""

    def __init__(
        self,
        result: Any,
        call: Any = None,
        after: Callable[[], None] | None = None,
        limit: float | None = None,
        *,
        is_recv: bool = False,
    ) -> None:
        super().__init__()
        self._result, self._call, self._after, self._limit = result, call, after, limit
        self._source = -1
        self._is_recv = is_recv
        # Held while the result is put where it belongs: then others wait for that.
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self._is_placed = after is None
        # Tensors that were made in this mode are written in it alone.
        self._mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad
        self._has_ended = call is None
        self._is_watched = after is not None
        self._told: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        if call is None:
            self._finish()
        elif after is not None:
            call.then(self._end)

    def _finish(self) -> None:
        """Puts the result where it belongs, once; raises if that has failed."""
        with self._lock:
            after, self._after = self._after, None
            if after is not None:
                try:
                    with self._mode():
                        after()
                except Exception as error:
                    self._failure = error
            self._is_placed = True
        if self._failure is not None:
            raise self._failure

    def _end(self, error: Exception | None) -> None:
        """The call has ended, as is heard in some thread."""
        if error is None:
            try:
                self._finish()
            except Exception as failure:
                error = failure
        with self._lock:
            self._has_ended, self._failure = True, error
            told = self._told
        if told is not None:
            told.set_result((error, self._result))

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if self._call is not None:
            seconds = timeout.total_seconds() if timeout is not None else 0
            try:
                rank = self._call.wait(seconds if seconds > 0 else self._limit)
            except Error as error:
                raise _told(error) from None
            if self._is_recv:
                self._source = rank
        self._finish()
        return True

    def is_completed(self) -> bool:
        succeeded = True if self._call is None else self._call.succeeded()
        return succeeded is False or succeeded is True and (self._is_placed or self._failure is not None)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        error = self._failure or (None if self._call is None else self._call.error())
        return None if error is None else _told(error)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._result

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> "torch.futures.Future[Any]":
        with self._lock:
            if self._future is not None:
                return self._future
            self._told = torch.futures.Future()
            # Not an exception that is set: C++ would take it for a value. One that is raised it knows.
            self._future = self._told.then(_unwrap)
            has_ended, is_watched, self._is_watched = self._has_ended, self._is_watched, True
        if has_ended:
            self._told.set_result((self._failure, self._result))
        elif not is_watched:
            self._call.then(self._end)
        return self._future


def _unwrap(told: "torch.futures.Future[Any]") -> Any:
    error, result = told.value()
    if error is not None:
        raise _told(error)
    return result


def _profiled(name: str, begin: Callable[[], _Work]) -> _Work:
    """Begins a call, which PyTorch's profiler shows by its name until it ends."""
    if not profiler._is_profiler_enabled:
        return begin()
    with profiler.record_function(f"sealane:{name}") as span:
        work = begin()
        if not work.is_completed():
            span._call_end_callbacks_on_future(work.get_future())
    return work


def _memory(tensor: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    return tensor.data_ptr(), tensor.nbytes, tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()


def _given(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as contiguous memory of the host."""
    if tensor.layout != torch.strided:
        raise RuntimeError(f"Sealane's collectives take dense tensors, and this one's layout is {tensor.layout}")
    if _is_plain(tensor):
        return tensor
    return _staged(tensor).detach().resolve_conj().resolve_neg().contiguous()


def _into(tensor: torch.Tensor, *, keeps: bool = False) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Memory of the host for a result, and what puts it into the tensor; it has the tensor's elements if it ``keeps`` them."""
    if tensor.layout == torch.strided and _is_plain(tensor):
        return tensor, None
    if keeps:
        place = _given(tensor)
        place = place.clone() if place.data_ptr() == tensor.data_ptr() else place
    else:
        place = torch.empty(tensor.shape, dtype=tensor.dtype)
    return place, functools.partial(_copy, tensor, place)


def _copy(to: torch.Tensor, place: torch.Tensor) -> None:
    if to.is_cuda:
        # Another thread's streams may have work on it.
        torch.cuda.synchronize(to.device)
    to.detach().copy_(place)


_staging_told = threading.Event()


def _staged(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    if not _staging_told.is_set():
        _staging_told.set()
        _log.warning(
            "Sealane copies tensors of %s through the host's memory: for GPUs, init_process_group('cpu:sealane,cuda:nccl') is faster",
            tensor.device,
        )
    return tensor.cpu()


def _both(first: Callable[[], None] | None, then: Callable[[], None] | None) -> Callable[[], None] | None:
    if first is None or then is None:
        return first or then

    def both() -> None:
        first()
        then()

    return both


def _split_back(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """What puts the parts of contiguous memory into tensors."""

    def split() -> None:
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    return split


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    _check_types(tensors)
    return torch.cat([_given(tensor).detach().reshape(-1) for tensor in tensors])


def _check_types(tensors: Sequence[torch.Tensor]) -> None:
    types = sorted({_dtype(tensor) for tensor in tensors})
    if len(types) > 1:
        raise RuntimeError(f"the tensors of a call must have one type, not {' and '.join(types)}")


def _operation(op: ReduceOp) -> str:
    for known, name in _OPERATIONS:
        if op == known:
            return name
    raise RuntimeError(f"Sealane has no reduction {op}")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _only(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) != 1:
        raise RuntimeError(f"a rank has one tensor in a call, and not {len(tensors)}")
    return tensors[0]


class Backend(dist._Backend):
    """One rank's part in a process group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout.total_seconds()
        self._options = dist._Backend.Options("sealane", timeout=timeout)
        self._sequence = 0
        self._barriers = 0
        try:
            self._group = Group(_Store(store), rank, size, self._timeout, **_options())
        except Error as error:
            raise _told(error) from None
        _open.add(self)

    # What PyTorch asks.

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def getBackendName(self) -> str:
        return "sealane"

    @property
    def options(self) -> Any:
        return self._options

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout.total_seconds()

    def _set_default_timeout(self, timeout: datetime.timedelta) -> None:
        self.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def split(self, store: dist.Store, ranks: Sequence[int], opts: Any) -> "Backend":
        if self.rank() not in ranks:
            raise RuntimeError("with several backends, split_group must have a part for each rank")
        return Backend(store, list(ranks).index(self.rank()), len(ranks), opts._timeout)

    def abort(self) -> None:
        # PyTorch does not call `shutdown` after this.
        _open.discard(self)
        # There is nothing to end once it has left, nor in a forked child.
        with contextlib.suppress(Error):
            self._group.abort(f"rank {self.rank()} said so")

    def shutdown(self) -> None:
        _open.discard(self)
        self._group.leave()

    def _run(
        self,
        call: Callable[..., Any],
        *arguments: Any,
        opts: Any,
        result: Any,
        after: Callable[[], None] | None = None,
        name: str | None = None,
    ) -> _Work:
        self._sequence += 1

        def begin() -> _Work:
            try:
                going_on = call(*arguments, self._limit(opts), not getattr(opts, "asyncOp", True))
            except Error as error:
                raise _told(error) from None
            return _Work(result, going_on, after)

        return _noted(_profiled(name or call.__name__, begin))

    def _wait_for(self, call: Callable[..., Any], *arguments: Any, opts: Any) -> None:
        """A part of a call, which is waited for."""
        try:
            going_on = call(*arguments, self._limit(opts), True)
            if going_on is not None:
                going_on.wait()
        except Error as error:
            raise _told(error) from None

    def _done(self, result: Any) -> _Work:
        self._sequence += 1
        return _noted(_Work(result))

    def _limit(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None else 0
        return seconds if seconds > 0 else self._timeout

    # Collectives.

    def barrier(self, opts: Any) -> _Work:
        return self._run(self._group.barrier, opts=opts, result=None)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        place, after = _into(_only(tensors), keeps=opts.rootRank == self.rank())
        return self._run(self._group.broadcast, _memory(place), opts.rootRank, opts=opts, result=tensors, after=after)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        tensor = _only(tensors)
        if tensor.layout == torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        place, after = _into(tensor, keeps=True)
        return self._reduce(place, opts, None, tensors, after)

    def _reduce(
        self, place: torch.Tensor, opts: Any, root: int | None, result: Any, after: Callable[[], None] | None
    ) -> _Work:
        arguments = (_memory(place), _dtype(place), _operation(opts.reduceOp), root)
        name = "all_reduce" if root is None else "reduce"
        return self._run(self._group.reduce, *arguments, opts=opts, result=result, after=after, name=name)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        work = None
        for same in by_type.values():
            if work is not None:
                work.wait()
            flat = _joined(same)
            work = self._reduce(flat, opts, None, tensors, _split_back(flat, same))
        return work or self._done(tensors)

    def allreduce_sparse(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        """All ranks' elements, added up where they are at one place."""
        tensor = _only(tensors)
        if _operation(opts.reduceOp) != "sum":
            raise RuntimeError("sparse tensors are reduced by sums alone")
        given = tensor.detach().coalesce()
        indices, values = given.indices(), given.values()
        counts = torch.empty(self.size(), dtype=torch.int64)
        counts[self.rank()] = values.shape[0]
        self._wait_for(self._group.all_gather, _memory(counts[self.rank()]), _memory(counts), opts=opts)
        most = int(counts.max())
        gathered = []
        for part in (indices.t(), values):
            whole = torch.zeros((self.size(), most, *part.shape[1:]), dtype=part.dtype)
            whole[self.rank(), : part.shape[0]] = part
            self._wait_for(self._group.all_gather, _memory(whole[self.rank()]), _memory(whole), opts=opts)
            gathered.append(torch.cat([whole[rank, : int(count)] for rank, count in enumerate(counts)]))
        total = torch.sparse_coo_tensor(gathered[0].t(), gathered[1], tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return self._done(tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> _Work:
        place, after = _into(_only(tensors), keeps=True)
        return self._reduce(place, opts, opts.rootRank, tensors, after)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> _Work:
        given, (parts,) = _given(_only(inputs)), outputs
        self._check_parts(parts, given)
        whole = torch.empty(self.size() * given.numel(), dtype=given.dtype)
        arguments = (_memory(given), _memory(whole))
        return self._run(
            self._group.all_gather, *arguments, opts=opts, result=outputs, after=_split_back(whole, parts)
        )

    def _check_parts(self, parts: Sequence[torch.Tensor], like: torch.Tensor) -> None:
        if len(parts) != self.size():
            raise RuntimeError(f"there are {len(parts)} tensors for {self.size()} ranks")
        if any(part.numel() != like.numel() or part.dtype != like.dtype for part in parts):
            raise RuntimeError("the tensors of all ranks must have one type and one size")

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> _Work:
        given, (whole, after) = _given(tensor), _into(output)
        if output.dtype != tensor.dtype or output.numel() != tensor.numel() * self.size():
            raise RuntimeError("the output must have the input's type, and its size for each rank")
        arguments = (_memory(given), _memory(whole))
        return self._run(self._group.all_gather, *arguments, opts=opts, result=output, after=after)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> _Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor, opts).wait()
        return self._done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> _Work:
        for number, tensor in enumerate(inputs):
            self.allgather([[rank[number] for rank in outputs]], [tensor], opts).wait()
        return self._done(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> _Work:
        given, whole, after = _given(_only(inputs)), None, None
        if opts.rootRank == self.rank():
            (parts,) = outputs
            self._check_parts(parts, given)
            flat = torch.empty(self.size() * given.numel(), dtype=given.dtype)
            whole, after = _memory(flat), _split_back(flat, parts)
        arguments = (_memory(given), whole, opts.rootRank)
        return self._run(self._group.gather, *arguments, opts=opts, result=outputs, after=after)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> _Work:
        (place, after), whole = _into(_only(outputs)), None
        if opts.rootRank == self.rank():
            (parts,) = inputs
            self._check_parts(parts, place)
            whole = _memory(_joined(parts))
        arguments = (whole, _memory(place), opts.rootRank)
        return self._run(self._group.scatter, *arguments, opts=opts, result=outputs, after=after)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> _Work:
        output, (parts,) = _only(outputs), inputs
        self._check_parts(parts, output)
        return self._reduce_scatter(output, _joined(parts), opts, outputs)

    def _reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, opts: Any, result: Any) -> _Work:
        place, after = _into(output)
        arguments = (_memory(given), _memory(place), _dtype(place), _operation(opts.reduceOp))
        return self._run(self._group.reduce_scatter, *arguments, opts=opts, result=result, after=after)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> _Work:
        if output.dtype != tensor.dtype or tensor.numel() != output.numel() * self.size():
            raise RuntimeError("the input must have the output's type, and its size for each rank")
        return self._reduce_scatter(output, _given(tensor), opts, output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any
    ) -> _Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts).wait()
        return self._done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> _Work:
        _check_types([*inputs, *outputs])
        given = _joined(inputs)
        place = torch.empty(sum(output.numel() for output in outputs), dtype=given.dtype)
        sizes = [[tensor.nbytes for tensor in tensors] for tensors in (inputs, outputs)]
        arguments = (_memory(given), sizes[0], _memory(place), sizes[1])
        after = _split_back(place, outputs)
        return self._run(
            self._group.all_to_all_uneven, *arguments, opts=opts, result=outputs, after=after, name="all_to_all"
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> _Work:
        if output.dtype != tensor.dtype:
            raise RuntimeError("the input and the output must have one type")
        given, (place, after) = _given(tensor), _into(output)
        sizes = [self._sizes(given, input_splits), self._sizes(place, output_splits)]
        if not output_splits and not input_splits:
            arguments = (_memory(given), _memory(place))
            return self._run(self._group.all_to_all, *arguments, opts=opts, result=output, after=after)
        arguments = (_memory(given), sizes[0], _memory(place), sizes[1])
        return self._run(
            self._group.all_to_all_uneven, *arguments, opts=opts, result=output, after=after, name="all_to_all"
        )

    alltoall_base = all_to_all_single

    def _sizes(self, tensor: torch.Tensor, splits: list[int]) -> list[int]:
        """The bytes of the parts of a tensor, in whole rows."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size():
                raise RuntimeError(f"{rows} rows are not a part for each of {self.size()} ranks: give split sizes")
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise RuntimeError(f"split sizes {splits} are not those of {rows} rows for {self.size()} ranks")
        return [split * (tensor.nbytes // rows if rows else 0) for split in splits]

    # Messages.

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> _Work:
        return self._message(lambda: self._group.send(_memory(_given(_only(tensors))), to, tag), tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> _Work:
        return self._recv(tensors, source, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _Work:
        return self._recv(tensors, None, tag)

    def _recv(self, tensors: list[torch.Tensor], source: int | None, tag: int) -> _Work:
        place, after = _into(_only(tensors))
        return self._message(lambda: self._group.recv(_memory(place), source, tag), tensors, after, is_recv=True)

    def _message(
        self,
        start: Callable[[], Any],
        tensors: list[torch.Tensor],
        after: Callable[[], None] | None = None,
        *,
        is_recv: bool = False,
    ) -> _Work:
        def begin() -> _Work:
            try:
                call = start()
            except Error as error:
                raise _told(error) from None
            return _Work(tensors, call, after, self._timeout, is_recv=is_recv)

        return _noted(_profiled("recv" if is_recv else "send", begin))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Rank 0 waits for each of the others and tells them whether all came; its error, and theirs, are worded as gloo's."""
        self._barriers += 1
        own, tag = self.rank(), _BARRIER_TAG + self._barriers
        limit = 0.0 if opts.timeout == datetime.timedelta(0) else self._limit(opts)
        mark = torch.zeros(1, dtype=torch.uint8)
        if own != 0:
            try:
                self._group.send(_memory(mark), 0, tag).wait(limit)
                self._group.recv(_memory(mark), 0, tag).wait(limit)
                reason = "which some rank has not passed" if mark.item() else None
            except Error as error:
                reason = str(error)
            if reason is not None:
                raise RuntimeError(
                    f"Rank {own} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                    f"from rank 0: {reason}"
                )
            return
        until, late, reason = time.monotonic() + limit, [], ""
        for rank in range(1, self.size()):
            left = until - time.monotonic()
            if left <= 0 and not late:
                raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {int(limit * 1000)} ms")
            try:
                self._group.recv(_memory(mark), rank, tag).wait(max(left, 0))
            except Error as error:
                late.append(rank)
                reason = str(error)
                if not wait_all_ranks:
                    break
        mark.fill_(bool(late))
        for rank in set(range(1, self.size())).difference(late):
            try:
                self._group.send(_memory(mark), rank, tag).wait(1)
            except Error as error:
                late.append(rank)
                reason = str(error)
        if late:
            ranks = ", ".join(map(str, sorted(late)))
            raise RuntimeError(f"Rank {ranks} failed to pass monitoredBarrier in {int(limit * 1000)} ms: {reason}")


# Of a property that a backend in Python does not have, PyTorch 2.15 calls itself without end.
for _name, _member in vars(dist._Backend).items():
    if "supports_" in _name and isinstance(_member, property):
        setattr(Backend, _name, property(lambda self, name=_name: name == "supports_splitting"))


def _leave_all() -> None:
    end_callbacks()
    for backend in list(_open):
        backend.shutdown()


atexit.register(_leave_all)
