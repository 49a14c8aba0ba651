"""Converts host arrays that are not plain ``numpy.ndarray``: a list, a number, a subclass, a masked array.

Device memory has no masks, and ``numpy.asarray`` silently drops an array's mask. Kernels would then compute with the
masked values, which are often garbage. So an array with masked elements is refused. An array whose mask is empty is
converted to its data. This module does not import ``numpy.ma``: if the program has not, no array has a mask.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def host_array(array: ArrayLike, what: str) -> NDArray[Any]:
    """Returns ``numpy.asarray(array)``, which does not copy an existing array. Raises ``TypeError`` for text, and
    ``ValueError`` for masked elements."""
    if isinstance(array, (str, bytes)):
        raise TypeError(
            f"{what} takes numbers, not the {type(array).__name__} {array!r:.80}; "
            "np.array([text]) makes an array of strings of a fixed length"
        )
    refuse_masked(array, what)
    return np.asarray(array)


def refuse_masked(array: object, what: str) -> None:
    """Raises ``ValueError`` if an element is masked, in the array or in an array that a list or a tuple holds."""
    found = masked(array)
    if found is not None:
        raise ValueError(
            f"{what}: {found}, and device memory has no masks; pass array.filled(x), which has x in place of what "
            "is masked, or array.data, what lies under the mask"
        )


def masked(array: Any) -> str | None:
    """Describes an array, or an array in a list, that has masked elements: ``a MaskedArray with 2 of 9 elements
    masked``. Returns None for any other object."""
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


def upload_of(value: object, dtype: object = None) -> str | None:
    """Returns the call that copies a list or a tuple of numbers to the device, for an error's advice. Returns None for
    any other value."""
    if not isinstance(value, (list, tuple, range)) or not _are_numbers(value):
        return None
    return "h2d(np.array(x))" if dtype is None else f"h2d(np.array(x, {str(dtype)!r}))"


def _are_numbers(value: object) -> bool:
    if isinstance(value, (list, tuple, range)):
        return len(value) > 0 and all(map(_are_numbers, value))
    return isinstance(value, (int, float, complex, np.generic, np.ndarray))
