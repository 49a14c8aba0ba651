"""Hides installed packages from the import system, as if they were not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

COMPILERS = ("numba", "numba_cuda", "llvmlite", "cuda")
"""The packages that compile kernels or reach a GPU."""


def hide(packages: Iterable[str]) -> None:
    """Makes Python find none of the packages, for the rest of the process. None may have been imported."""
    hidden = frozenset(packages)
    if loaded := hidden & sys.modules.keys():
        raise RuntimeError(f"{', '.join(sorted(loaded))} cannot be hidden: imported already")

    class Hiding:
        """Python's own finder, but for the hidden packages."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

        invalidate_caches = PathFinder.invalidate_caches
        find_distributions = PathFinder.find_distributions

    sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]  # type: ignore[list-item]
