"""Fast approximations of ``math``'s functions: CUDA's ``__expf``, ``__sinf`` and related functions.

Each function takes and returns ``f32``. On a GPU it is a few instructions. The error bounds are those of CUDA's
programming guide. The absolute errors of ``sin``, ``cos`` and ``tan`` are about 2**-21 for arguments in [-pi, pi] and
larger for other arguments. On the CPU device each is the ordinary function. With ``@kernel(fastmath=True)`` all calls
of ``math``'s functions with ``f32`` arguments use these approximations.
"""

from __future__ import annotations

from typing import NoReturn


def exp(x: float) -> float:
    """Computes ``__expf``: within 2 + 1.2 |x| units in the last place."""
    _only_in_a_kernel("exp")


def exp2(x: float) -> float:
    """Computes 2**x by one instruction, ``ex2.approx.ftz``, within 2 units in the last place. Results below 2**-126 are
    0."""
    _only_in_a_kernel("exp2")


def exp10(x: float) -> float:
    """Computes ``__exp10f``: 10**x, within 2 + 2.97 |x| units in the last place."""
    _only_in_a_kernel("exp10")


def log(x: float) -> float:
    """Computes ``__logf``. The absolute error is at most 2**-21.4 for x in [0.5, 2]; otherwise the error is at most 3
    units in the last place."""
    _only_in_a_kernel("log")


def log2(x: float) -> float:
    """Computes ``__log2f``. The absolute error is at most 2**-22 for x in [0.5, 2]; otherwise the error is at most 2
    units in the last place."""
    _only_in_a_kernel("log2")


def log10(x: float) -> float:
    """Computes ``__log10f``. The absolute error is at most 2**-24 for x in [0.5, 2]; otherwise the error is at most 3
    units in the last place."""
    _only_in_a_kernel("log10")


def sin(x: float) -> float:
    """Computes ``__sinf``, an approximate sine."""
    _only_in_a_kernel("sin")


def cos(x: float) -> float:
    """Computes ``__cosf``, an approximate cosine."""
    _only_in_a_kernel("cos")


def tan(x: float) -> float:
    """Computes ``__tanf``: ``__sinf`` divided by ``__cosf``."""
    _only_in_a_kernel("tan")


def pow(x: float, y: float) -> float:
    """Computes ``__powf``: ``2**(y * __log2f(x))``, for x of at least 0."""
    _only_in_a_kernel("pow")


def divide(x: float, y: float) -> float:
    """Computes ``__fdividef``: within 2 units in the last place for y between 2**-126 and 2**126."""
    _only_in_a_kernel("divide")


def reciprocal(x: float) -> float:
    """Computes 1/x by one instruction, ``rcp.approx.ftz``, within 1 unit in the last place. Arguments and results of
    magnitude below 2**-126 are taken as 0."""
    _only_in_a_kernel("reciprocal")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"fast.{name} has a meaning only inside a @kernel, where the compiler gives it one")
