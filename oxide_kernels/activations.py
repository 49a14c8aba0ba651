"""Elementwise activation functions. Each thread computes four elements, which is enough to reach the memory's
bandwidth.

Elements are f16, bf16, f32 or f64. f16 and bf16 are computed in f32 and rounded once, at the end. The launch raises
``LaunchError`` if input and output do not have the same number of elements. For extreme arguments the results are those
of the formulas, as in torch: ``gelu`` and ``silu`` of -inf are NaN, and ``silu`` below -88.7 is -0 in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from oxide import DisjointSlice, Slice, bf16, device, f16, f32, f64, fast, intrinsics, kernel, thread

from .accumulators import widen

T = TypeVar("T", f16, bf16, f32, f64)

_LENGTHS = ("len(input) == len(output)",)


@kernel(block=256, items_per_thread=4, requires=_LENGTHS)
def relu(input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = max(0, input)``; NaN stays NaN. Input and output may be the same buffer."""
    _by_fours(relu_of, input, output)


@kernel(block=256, requires=_LENGTHS)
def _relu_each(input: Slice[T], output: DisjointSlice[T]) -> None:
    _each(relu_of, input, output)


relu.each = _relu_each


@device
def relu_of(x: T) -> T:
    """Returns 0 if ``x`` is negative, else ``x``."""
    return type(x)(0) if x < type(x)(0) else x


@kernel(block=256, items_per_thread=4, requires=_LENGTHS)
def gelu(input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = input * Φ(input)``, where Φ is the distribution function of the standard normal distribution.
    Input and output may be the same buffer."""
    _by_fours(gelu_of, input, output)


@kernel(block=256, requires=_LENGTHS)
def _gelu_each(input: Slice[T], output: DisjointSlice[T]) -> None:
    _each(gelu_of, input, output)


gelu.each = _gelu_each


@kernel(block=256, items_per_thread=4, requires=_LENGTHS)
def silu(input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = input * sigmoid(input)``. Input and output may be the same buffer."""
    _by_fours(silu_of, input, output)


@kernel(block=256, requires=_LENGTHS)
def _silu_each(input: Slice[T], output: DisjointSlice[T]) -> None:
    _each(silu_of, input, output)


silu.each = _silu_each


@kernel(block=256, items_per_thread=4, requires=_LENGTHS)
def sigmoid(input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = 1 / (1 + exp(-input))``. Input and output may be the same buffer."""
    _by_fours(sigmoid_of, input, output)


@kernel(block=256, requires=_LENGTHS)
def _sigmoid_each(input: Slice[T], output: DisjointSlice[T]) -> None:
    _each(sigmoid_of, input, output)


sigmoid.each = _sigmoid_each


@device
def _by_fours(f: Callable[[T], T], input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = f(input)`` for a thread's four elements. They are loaded and stored as one vector if both
    buffers are aligned."""
    first, length, out = 4 * thread.index_1d().get(), len(output), output.unchecked_mut
    if first + 4 <= length and input.is_aligned(4) and output.is_aligned(4):
        a, b, c, d = input.load4(first)
        out.store4(first, f(a), f(b), f(c), f(d))
    else:
        for i in range(first, min(first + 4, length)):
            out[i] = f(input[i])


@device
def _each(f: Callable[[T], T], input: Slice[T], output: DisjointSlice[T]) -> None:
    """Computes ``output = f(input)`` for one element in each thread. The compiler can fuse kernels that have this
    form."""
    index = thread.index_1d()
    element = output.get_mut(index)
    if element is not None:
        element.value = f(input[index.get()])


@device
def silu_of(x: T) -> T:
    """Returns ``x`` times its logistic function."""
    wide = widen(x)
    return wide * sigmoid_of(wide)  # type: ignore[no-any-return]


@device
def gelu_of(x: T) -> T:
    """Returns ``x`` times the probability that a standard normal random variable is less than ``x``."""
    wide = widen(x)
    kind = type(wide)
    return kind(0.5) * wide * (kind(1) + math.erf(wide * kind(math.sqrt(0.5))))  # type: ignore[no-any-return]


@device
def gelu_for_f16(x: f32) -> f32:
    """Approximates ``gelu_of(x)`` for results that are rounded to f16, with a third of the instructions of ``gelu_of``.
    The error is at most ``2.5e-5 * abs(x)``. For ``x`` of at least -3, the relative error is at most 1e-4.

    The logit of Φ(x), ``log(Φ(x) / (1 - Φ(x)))``, is approximated by an odd polynomial of ``x``. The polynomial is
    fitted so that the result stays within these errors for ``abs(x)`` up to 5.6. For larger ``abs(x)`` a straight line
    continues it, and the result is ``x`` or about 0.
    """
    z = intrinsics.fmin(x * x, f32(5.6 * 5.6))
    series = f32(-6.220673960214131e-05 * _BITS) + z * (
        f32(3.2963163968750412e-06 * _BITS) + z * f32(-5.592993590423331e-08 * _BITS)
    )
    series = f32(0.07319365312793749 * _BITS) + z * (f32(-0.0003085283720924052 * _BITS) + z * series)
    return x * _share(x * (f32(1.5954277104230408 * _BITS) + z * series))


@device
def gelu_for_bf16(x: f32) -> f32:
    """Approximates ``gelu_of(x)`` for results that are rounded to bf16, as ``gelu_for_f16`` does. The error is at most
    ``1e-4 * abs(x)``. For ``x`` of at least -3, the relative error is at most 1.2e-3."""
    z = intrinsics.fmin(x * x, f32(5.6 * 5.6))
    series = f32(0.07424794818207758 * _BITS) + z * f32(-0.0007608913748196741 * _BITS)
    return x * _share(x * (f32(1.595429062497729 * _BITS) + z * series))


@device
def silu_for_16_bits(x: f32) -> f32:
    """Approximates ``silu_of(x)`` for results that are rounded to 16 bits. The relative error is at most 5e-6 for ``x``
    of at least -87. For smaller ``x`` the result may be 0."""
    return x * _share(x * f32(_BITS))


_BITS = -math.log2(math.e)
"""The factor that converts a logit to the exponent of 2 that ``_share`` takes. The polynomials' coefficients contain
this factor, so that the kernels need not multiply by it. It is computed here, on the host: a kernel would compute it
for each element, and a logarithm of a double takes longer than everything else in the kernel."""


@device
def _share(bits: f32) -> f32:
    """Returns ``1 / (1 + 2**bits)``, the logistic function of ``bits / _BITS``."""
    return fast.reciprocal(f32(1) + fast.exp2(bits))


@device
def sigmoid_of(x: T) -> T:
    """Returns the logistic function of ``x``. It is 0 or 1 for extreme arguments, where the exponential is infinite or
    0."""
    wide = widen(x)
    return type(wide)(1) / (type(wide)(1) + math.exp(-wide))  # type: ignore[no-any-return]
