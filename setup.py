"""Builds the compiled form of the runtime, where that is asked for: ``OXIDE_NATIVE=1 pip install .``.

Everything else about the package is in ``pyproject.toml``. The modules named here are compiled by mypyc, from the same
source that runs interpreted without this; the build takes a minute or two, a C compiler and mypy. ``OXIDE_NATIVE=1``
asks for it and fails where it cannot be had; ``OXIDE_NATIVE=auto`` falls back to the interpreted form and says so.
"""

from __future__ import annotations

import os

from setuptools import setup

DRIVER_MODULES = ("cuda", "cuda_blocks", "cuda_handles", "cuda_launch")
RUNTIME_MODULES = (
    "arc",
    "binding",
    "combinators",
    "completion",
    "context",
    "future",
    "launch",
    "loading",
    "memory",
    "once",
    "operation",
    "pace",
    "pinned",
    "reclaim",
    "scheduling",
    "staging",
    "statistics",
    "stream",
    "submission",
    "tasks",
    "timeline",
    "transfers",
    "turns",
)


def extensions() -> list[object]:
    from mypyc.build import mypycify

    paths = [f"oxide/runtime/{name}.py" for name in RUNTIME_MODULES]
    paths += [f"oxide/driver/{name}.py" for name in DRIVER_MODULES]
    return mypycify(
        ["--config-file", "native.ini", *paths], opt_level=os.environ.get("OXIDE_NATIVE_OPT", "2"), group_name="oxide"
    )


setup(ext_modules=extensions() if os.environ.get("OXIDE_NATIVE") else [])
