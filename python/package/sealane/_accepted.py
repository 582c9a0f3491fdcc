"""What an accept gives."""

from typing import Any, NamedTuple


class Accepted(NamedTuple):
    """A tensor that was pushed, as ``Acceptor.accept`` gives it: ``sender, array = acceptor.accept()``."""

    sender: str
    array: Any
