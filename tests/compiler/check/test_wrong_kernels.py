"""What wrong kernels are told, word for word: ``wrong_kernels.txt``.

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
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.check.wrong_array_kernels import WRONG_ARRAYS
from tests.compiler.check.wrong_kernels import WRONG

MISTAKES = [*WRONG, *WRONG_ARRAYS]
SNAPSHOTS = Path(__file__).with_name("wrong_kernels.txt")


def told(wrong: Any) -> str:
    """The error's text, without the folder that the tests are in."""
    with pytest.raises((OxideError, TypeError, ValueError, AttributeError)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the operations that the refused launch would have run
        made = wrong()
        if isinstance(made, Kernel):
            made.specialize()
    text = re.sub(r"[^\s:]*/(?=wrong_(?:array_)?kernels\.py)", "", str(caught.value))
    return f"{type(caught.value).__name__}: {text}\n"


def name_of(wrong: Any) -> str:
    prefix = "array_" if wrong in WRONG_ARRAYS else ""
    return prefix + str(wrong.__name__)


def snapshots() -> dict[str, str]:
    parts = re.split(r"^== (\w+)\n", SNAPSHOTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_mistake_has_its_answer() -> None:
    if os.environ.get("OXIDE_UPDATE_SNAPSHOTS"):
        SNAPSHOTS.write_text("".join(f"== {name_of(w)}\n{told(w)}" for w in MISTAKES), encoding="utf-8")
    assert list(snapshots()) == [name_of(wrong) for wrong in MISTAKES]
    assert len(snapshots()) == 64


@pytest.mark.parametrize("wrong", MISTAKES, ids=name_of)
def test_a_mistake_is_answered_in_words_that_help(wrong: Any) -> None:
    text = told(wrong)
    assert text == snapshots()[name_of(wrong)]
    assert "numba" not in text.lower()
    assert "site-packages" not in text


@pytest.mark.parametrize("wrong", MISTAKES, ids=name_of)
def test_a_refused_kernel_is_shown_with_a_caret(wrong: Any) -> None:
    text = told(wrong)
    if text.startswith("CompileError") and "    @kernel" not in text and 'kernel("' not in text:
        assert text.rstrip("\n").splitlines()[-1].strip() == "^"
