"""The errors that calls raise: one class for each of gRPC's canonical codes that Sealane uses."""


class Error(Exception):
    """A call failed; ``code`` is the name of gRPC's canonical code."""

    code = "UNKNOWN"


class InvalidArgument(Error, ValueError):
    """The call is invalid in any state; the message says what is accepted."""

    code = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """The deadline passed before the tensor was sent, or requested."""

    code = "DEADLINE_EXCEEDED"


class NotFound(Error):
    """The task is not in the endpoint map, or not served at its address."""

    code = "NOT_FOUND"


class PermissionDenied(Error, PermissionError):
    """The daemon or the peer refuses this process."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """A limit was reached; the message names it: retry later, or raise the setting."""

    code = "RESOURCE_EXHAUSTED"


class Aborted(Error):
    """The step was aborted; the message gives the reason."""

    code = "ABORTED"


class Unimplemented(Error):
    """The peer does not support the operation."""

    code = "UNIMPLEMENTED"


class Unavailable(Error):
    """The daemon or the peer is gone or cannot be reached. The next call retries."""

    code = "UNAVAILABLE"


class Left(Unavailable):
    """The peer's process has ended, or has detached from its daemon."""
