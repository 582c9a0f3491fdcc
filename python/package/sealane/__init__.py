"""Tensors between the tasks of a training job, through the host's Sealane daemon.

    import sealane

    with sealane.attach("worker0.train:2222") as task:
        weights = task.recv("ps0.train:2222", 7, "dense/kernel")
        task.send("ps0.train:2222", 7, "dense/kernel:gradient", weights * 0.1)

A forked child cannot use its parent's task and gets an error: attach in the child, or start processes with
multiprocessing's "spawn".
"""

import os as _os
from importlib.metadata import version as _version

from ._accepted import Accepted, AcceptedRows
from ._errors import (
    Aborted,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    Left,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from ._group import Group
from ._pulled import Pulled
from ._sealane import (
    Acceptor,
    Plan,
    Receiving,
    Sending,
    ShardedTable,
    Slicing,
    Table,
    Task,
    Tensor,
    attach,
    embedded,
)
from ._sealane import forked as _forked
from . import _waiting as _waiting

_os.register_at_fork(after_in_child=_forked)

__version__ = _version("sealane")

__all__ = [
    "Aborted",
    "Accepted",
    "AcceptedRows",
    "Acceptor",
    "DeadlineExceeded",
    "Error",
    "Group",
    "InvalidArgument",
    "Left",
    "NotFound",
    "PermissionDenied",
    "Plan",
    "Pulled",
    "Receiving",
    "ResourceExhausted",
    "Sending",
    "ShardedTable",
    "Slicing",
    "Table",
    "Task",
    "Tensor",
    "Unavailable",
    "Unimplemented",
    "attach",
    "embedded",
]
