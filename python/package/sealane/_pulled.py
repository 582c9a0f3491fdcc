"""What a pull gives."""

from typing import Any, NamedTuple


class Pulled(NamedTuple):
    """A published tensor, as ``Task.pull`` gives it: ``array, version = task.pull(...)``."""

    array: Any
    version: int
