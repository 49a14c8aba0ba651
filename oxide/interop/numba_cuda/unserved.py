"""Names of numba.cuda's host side that oxide does not have. Each is a function that raises an error with the name."""

from __future__ import annotations

from typing import Any

UNSERVED = {
    "declare_device": "linking with foreign device code: oxide.module launches foreign kernels",
    "mapped": "mapping memory of the program's own: mapped_array makes some that kernels use in place",
    "open_ipc_array": "memory of other processes",
    "set_memory_manager": "other memory managers: its own pools are asynchronous and ordered by streams",
    "compile_all": "numba-cuda's compiler: .kernel.specialize(…).ptx() of a jitted function is oxide's PTX",
}


def unserved(name: str) -> Any:
    """Returns a function that raises ``NotImplementedError`` for the name."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"cuda.{name}: oxide has no {UNSERVED[name]}")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse
