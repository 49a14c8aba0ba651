"""What a host array is made of that is no plain ``numpy.ndarray``: a list, a number, a subclass, a masked array.

Device memory has no masks, and ``numpy.asarray`` drops an array's without a word, so that what lies under it, often
rubbish, would be computed with. An array in which something is masked is therefore refused. One that masks nothing is
its data. Loaded with the first array that is no plain one, and ``numpy.ma`` is left to the program that makes masks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def host_array(array: ArrayLike, what: str) -> NDArray[Any]:
    """``numpy.asarray(array)``, without a copy where there is an array already. Refuses as ``refuse_masked`` does."""
    refuse_masked(array, what)
    return np.asarray(array)


def refuse_masked(array: object, what: str) -> None:
    """Raises ``ValueError`` where an element is masked, in the array or in one that a list or a tuple holds."""
    found = masked(array)
    if found is not None:
        raise ValueError(
            f"{what}: {found}, and device memory has no masks; pass array.filled(x), which has x in place of what "
            "is masked, or array.data, what lies under the mask"
        )


def masked(array: Any) -> str | None:
    """``a MaskedArray with 2 of 9 elements masked``: what an array is, or one in a list, that masks something. None for
    any other."""
    masked_array: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked_array is None:
        return None
    if isinstance(array, masked_array):
        mask = np.ma.getmask(array)
        if mask is np.ma.nomask:
            return None
        flags = np.ma.flatten_mask(mask)  # a structured array has a mask for each of its fields
        count = int(np.count_nonzero(flags))
        return f"a {type(array).__name__} with {count} of {flags.size} elements masked" if count else None
    if isinstance(array, (list, tuple)):
        kinds = set(map(type, array))
        if any(issubclass(kind, (list, tuple, masked_array)) for kind in kinds):
            return next((found for element in array if (found := masked(element)) is not None), None)
    return None
