"""What twenty wrong kernels are told, word for word: ``wrong_kernels.txt``.

``OXIDE_UPDATE_SNAPSHOTS=1`` writes the file anew, to be read before it is committed.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from oxide import OxideError
from oxide.compiler.kernel import Kernel
from tests.compiler.wrong_kernels import WRONG

SNAPSHOTS = Path(__file__).with_name("wrong_kernels.txt")


def told(wrong: Any) -> str:
    """The error's text, without the folder that the tests are in."""
    with pytest.raises((OxideError, TypeError)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the operations that the refused launch would have run
        made = wrong()
        if isinstance(made, Kernel):
            made.specialize()
    text = re.sub(r"[^\s:]*/(?=wrong_kernels\.py)", "", str(caught.value))
    return f"{type(caught.value).__name__}: {text}\n"


def snapshots() -> dict[str, str]:
    parts = re.split(r"^== (\w+)\n", SNAPSHOTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_are_twenty() -> None:
    if os.environ.get("OXIDE_UPDATE_SNAPSHOTS"):
        SNAPSHOTS.write_text("".join(f"== {w.__name__}\n{told(w)}" for w in WRONG), encoding="utf-8")
    assert len({wrong.__name__ for wrong in WRONG}) == 20
    assert list(snapshots()) == [wrong.__name__ for wrong in WRONG]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: each.__name__)
def test_a_mistake_is_answered_in_words_that_help(wrong: Any) -> None:
    text = told(wrong)
    assert text == snapshots()[wrong.__name__]
    assert "numba" not in text.lower()
