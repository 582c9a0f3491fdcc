"""Calls that wait: each is its form that does not, and the result of that."""

from inspect import signature
from typing import Any

from ._sealane import Plan, Task

_CALLS = {
    Task: (
        "publish",
        "publish_many",
        "publish_slices",
        "pull",
        "pull_all_rows",
        "pull_many",
        "pull_rows",
        "push",
        "push_all_rows",
        "push_many",
        "push_rows",
        "recv",
        "recv_all",
        "send",
        "send_all",
    ),
    Plan: ("pull",),
}


def _waiting(of: type, name: str) -> Any:
    begin = getattr(of, f"{name}_async")

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            begun = begin(self, *args, **kwargs)
        except TypeError as error:
            if begin.__name__ not in str(error):
                raise
            # Wrong arguments are reported under the name that was called.
            raise TypeError(str(error).replace(begin.__name__, name)) from None
        return begun.result()

    call.__name__, call.__qualname__, call.__module__ = name, f"{of.__name__}.{name}", of.__module__
    # The first paragraph is about what does not wait.
    call.__doc__ = begin.__doc__.partition("\n\n")[2]
    call.__signature__ = signature(begin)  # type: ignore[attr-defined]
    return call


for _class, _names in _CALLS.items():
    for _name in _names:
        setattr(_class, _name, _waiting(_class, _name))
