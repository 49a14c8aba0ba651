"""What the declarations of the kernel language do on the host: they raise."""

from __future__ import annotations

from typing import NoReturn


class InKernels:
    """The base of types whose instances exist only inside a kernel. They have declarations of members, which the
    compiler gives their meaning and a type checker reads."""

    def __init__(self) -> None:
        raise TypeError(
            f"{type(self).__name__} exists only inside a @kernel; on the host, pass a device buffer where a kernel "
            "takes a slice"
        )


def only_in_a_kernel(name: str) -> NoReturn:
    """Raises the error for the use on the host of a member or a function that has a meaning only in a kernel."""
    raise TypeError(f"{name} has a meaning only inside a @kernel, where the compiler gives it one")
