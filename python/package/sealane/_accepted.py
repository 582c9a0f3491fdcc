"""The result of an accept."""

from typing import Any, NamedTuple


class Accepted(NamedTuple):
    """A tensor that was pushed, as ``Acceptor.accept`` returns it: ``sender, array = acceptor.accept()``."""

    sender: str
    array: Any


class AcceptedRows(NamedTuple):
    """Rows of one table that were pushed, as ``Task.accept_rows`` hands them out: ``sender, table, ids, rows = acceptor.accept()``."""

    sender: str
    table: str
    ids: Any
    rows: Any
