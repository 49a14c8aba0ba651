"""The primitives of ``oxide.tensor`` on a GPU."""

from __future__ import annotations

from collections.abc import Collection

from . import copies, mma
from .capabilities import check_capability

__all__ = ["check_capability", "definitions"]


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions of the primitives among ``symbols``."""
    return mma.definitions(symbols) + copies.definitions(symbols)
