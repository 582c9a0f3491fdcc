"""The result of a pull."""

from typing import Any, NamedTuple


class Pulled(NamedTuple):
    """A published tensor, as ``Task.pull`` returns it: ``array, version = task.pull(...)``."""

    array: Any
    version: int
