"""What calls raise: one class for each of gRPC's canonical codes that Sealane answers with."""


class Error(Exception):
    """A call that did not succeed; ``code`` is the name of gRPC's canonical code."""

    code = "UNKNOWN"


class InvalidArgument(Error, ValueError):
    """The call cannot be carried out, whatever the state: its message says what is accepted."""

    code = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """The deadline passed before the tensor was sent, or asked for."""

    code = "DEADLINE_EXCEEDED"


class NotFound(Error):
    """The task is not in the endpoint map, or not served where the map says."""

    code = "NOT_FOUND"


class PermissionDenied(Error, PermissionError):
    """The daemon or the peer refuses this process."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """A limit was reached, which the message names: try again later, or raise the setting."""

    code = "RESOURCE_EXHAUSTED"


class Aborted(Error):
    """The step was aborted, for the reason that the message gives."""

    code = "ABORTED"


class Unimplemented(Error):
    """The peer does not know the operation."""

    code = "UNIMPLEMENTED"


class Unavailable(Error):
    """The daemon or the peer is gone or cannot be reached. The next call tries again."""

    code = "UNAVAILABLE"
