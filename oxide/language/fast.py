"""Fast approximations of ``math``'s functions: CUDA's ``__expf``, ``__sinf`` and related functions.

Each function takes and returns ``f32``. On a GPU it is a few instructions. The error bounds are those of CUDA's
programming guide. The absolute errors of ``sin``, ``cos`` and ``tan`` are about 2**-21 for arguments in [-pi, pi] and
larger for other arguments. On the CPU device each is the ordinary function. With ``@kernel(fastmath=True)`` all calls
of ``math``'s functions with ``f32`` arguments use these approximations.
"""

from __future__ import annotations

from . import primitives


@primitives.function
def exp(x: float) -> float:
    """Computes ``__expf``: within 2 + 1.2 |x| units in the last place."""


@primitives.function
def exp2(x: float) -> float:
    """Computes 2**x by one instruction, ``ex2.approx.ftz``, within 2 units in the last place. Results below 2**-126 are
    0."""


@primitives.function
def exp10(x: float) -> float:
    """Computes ``__exp10f``: 10**x, within 2 + 2.97 |x| units in the last place."""


@primitives.function
def log(x: float) -> float:
    """Computes ``__logf``. The absolute error is at most 2**-21.4 for x in [0.5, 2]; otherwise the error is at most 3
    units in the last place."""


@primitives.function
def log2(x: float) -> float:
    """Computes ``__log2f``. The absolute error is at most 2**-22 for x in [0.5, 2]; otherwise the error is at most 2
    units in the last place."""


@primitives.function
def log10(x: float) -> float:
    """Computes ``__log10f``. The absolute error is at most 2**-24 for x in [0.5, 2]; otherwise the error is at most 3
    units in the last place."""


@primitives.function
def sin(x: float) -> float:
    """Computes ``__sinf``, an approximate sine."""


@primitives.function
def cos(x: float) -> float:
    """Computes ``__cosf``, an approximate cosine."""


@primitives.function
def tan(x: float) -> float:
    """Computes ``__tanf``: ``__sinf`` divided by ``__cosf``."""


@primitives.function
def pow(x: float, y: float) -> float:
    """Computes ``__powf``: ``2**(y * __log2f(x))``, for x of at least 0."""


@primitives.function
def divide(x: float, y: float) -> float:
    """Computes ``__fdividef``: within 2 units in the last place for y between 2**-126 and 2**126."""


@primitives.function
def reciprocal(x: float) -> float:
    """Computes 1/x by one instruction, ``rcp.approx.ftz``, within 1 unit in the last place. Arguments and results of
    magnitude below 2**-126 are taken as 0."""
