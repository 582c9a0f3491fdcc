"""The result of an accept."""

from typing import Any, NamedTuple


class Accepted(NamedTuple):
    """A tensor that was pushed, as ``Acceptor.accept`` returns it: ``sender, array = acceptor.accept()``."""

    sender: str
    array: Any
