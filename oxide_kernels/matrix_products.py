"""``matmul``: matrix products of every layout and size on tensor cores, with an epilogue.

The host checks shapes, dtypes and layouts, and ``_launch_of`` picks the kernel. A matrix may be a transposed view,
``box.T``, which costs no copy: the kernel then reads the box itself, with its axes exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from oxide import ArgumentError, DeviceBox, DeviceOperation, LaunchConfig, bf16, f16, f32, f64, i8, i32, u8, value, zip

from . import layout, mma_products, wgmma_products
from .checks import require_apart
from .mma_products import ACTIVATIONS, Form
from .operands import Operand, with_boxes

_NARROW: tuple[Any, ...] = (f16, bf16, f32)
_OUTPUTS: dict[tuple[Any, Any], tuple[Any, ...]] = {
    **{(kind, kind): _NARROW for kind in _NARROW},
    (f64, f64): (f64, f32),
    **{(a, b): (i32, *_NARROW) for a in (i8, u8) for b in (i8, u8)},
}
"""The types of results by the types of the matrices."""

_BIASES: dict[Any, tuple[Any, ...]] = {f32: _NARROW, f64: (f64, f32), i32: (i32,)}
"""The types of a bias by the type in which it is added."""

_KINDS: tuple[Any, ...] = (f16, bf16, f32, f64, i8, u8, i32)
_TYPES: dict[np.dtype[Any], Any] = {kind.dtype: kind for kind in _KINDS}
_PRECISIONS = (None, "tf32", "f32")
_ENOUGH_TILES = 100
"""The number of large tiles from which on they are used: a large GPU has about as many multiprocessors."""


def matmul(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    alpha: float = 1,
    beta: float = 0,
    bias: Operand | None = None,
    activation: str | None = None,
    precision: str | None = None,
) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``c = activation(alpha * a @ b + beta * c + bias)`` on tensor cores: ``a`` is m×k, ``b`` k×n, ``c`` m×n.

    The matrices are boxes of two axes, or operations that yield them; ``a`` and ``b`` may be transposed views
    (``box.T``). The operation yields ``a``, ``b`` and ``c``. ``bias`` has n elements, one for each column.
    ``activation`` is ``"relu"``, ``"gelu"`` or ``"silu"``. With a ``beta`` of 0, ``c`` is not read. A GPU needs compute
    capability 8.0. It is fastest if the rows in memory begin at multiples of 16 bytes.

    =============  ===========  =====================  =================
    a and b        sums in      c                      bias
    =============  ===========  =====================  =================
    f16, bf16      f32          f16, bf16, f32         f16, bf16, f32
    f32            f32          f16, bf16, f32         f16, bf16, f32
    f64            f64          f64, f32               f64, f32
    i8, u8         i32          i32                    i32
    i8, u8         i32          f16, bf16, f32         f16, bf16, f32
    =============  ===========  =====================  =================

    Both matrices have one dtype, but i8 goes with u8. The epilogue is computed in f32, or in f64 or i32 where sums and
    result are of that; i32 wraps. ``precision`` is for f32: ``"tf32"``, the default, rounds the elements to 10 bits of
    fraction; ``"f32"`` multiplies with about f32's precision, in three products.

    Raises ``ValueError`` for shapes that do not match, and ``ArgumentError`` for a wrong dtype, layout, activation or
    precision, and if ``c`` shares memory with an operand.
    """

    def product(a: DeviceBox, b: DeviceBox, c: DeviceBox, *more: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        m, n = _shape_of(a, b)
        if c.shape != (m, n):
            raise ValueError(f"matmul: c has shape {c.shape}, and the product of {a.shape} and {b.shape} {(m, n)}")
        if not c.is_contiguous:
            raise ArgumentError(f"matmul: c is a view with strides of {c.strides} bytes; give a contiguous box")
        made = _Product(a, b, c, more[0] if more else None, alpha, beta, activation, precision)
        return _launch_of(made).map(lambda _: (a, b, c))

    return with_boxes(product, a, b, c, *(() if bias is None else (bias,)))


def result_of(a: DeviceBox, b: DeviceBox, out_dtype: Any) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Returns the shape and the dtype of a product: by default that of the matrices, i32 for those of 8 bits. Raises
    ``ValueError`` and ``ArgumentError`` as ``matmul`` does."""
    shape = _shape_of(a, b)
    found = _outputs_of(a, b)[0] if _TYPES[a.dtype] in (i8, u8) else _TYPES[a.dtype]
    chosen = found if out_dtype is None else out_dtype
    return shape, np.dtype(chosen.dtype if chosen in _KINDS else chosen)


@final
@dataclass(frozen=True, slots=True)
class _Product:
    """A product whose shapes are right. ``form`` raises ``ArgumentError`` for all else."""

    a: DeviceBox
    b: DeviceBox
    c: DeviceBox
    bias: DeviceBox | None
    alpha: float
    beta: float
    activation: str | None
    precision: str | None

    def form(self, a_turned: bool, b_turned: bool) -> Form:
        """Returns the constants of the kernel."""
        outputs = _outputs_of(self.a, self.b)
        a_type, b_type, c_type = (_TYPES.get(box.dtype) for box in (self.a, self.b, self.c))
        if c_type not in outputs:
            raise ArgumentError(
                f"matmul: c has dtype {_named(self.c)}, and matrices of {_named(self.a)} give {_listed(outputs)}"
            )
        if self.precision not in _PRECISIONS or (self.precision is not None and a_type is not f32):
            raise ArgumentError(
                f"matmul: precision is {self.precision!r} for matrices of {_named(self.a)}; it is 'tf32' or 'f32' for "
                "those of f32, and None for others"
            )
        m, n = self.c.shape
        form = Form(
            a=a_type,
            b=b_type,
            output=c_type,
            bias=None if self.bias is None else _TYPES.get(self.bias.dtype),
            a_turned=a_turned,
            b_turned=b_turned,
            activation=self.activation,
            exact=self.precision == "f32",
            pairs=n % 2 == 0 and self.c.ptr % (2 * self.c.dtype.itemsize) == 0,
            large=-(-m // 128) * -(-n // 128) >= _ENOUGH_TILES,
        )
        if self.bias is not None and (self.bias.shape != (n,) or not self.bias.is_contiguous):
            raise ValueError(f"matmul: the bias has shape {self.bias.shape}; it is contiguous and has shape {(n,)}")
        if self.bias is not None and form.bias not in _BIASES[form.wide]:
            raise ArgumentError(
                f"matmul: the bias has dtype {_named(self.bias)}; with this result it is of "
                f"{_listed(_BIASES[form.wide])}"
            )
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise ArgumentError(f"matmul: activation is {self.activation!r}; it is {_listed(ACTIVATIONS)} or None")
        if self.activation not in (None, "relu") and form.wide is i32:
            raise ArgumentError(f"matmul: {self.activation} of integers is no integer; give c a dtype of floats")
        return form


def _launch_of(product: _Product) -> DeviceOperation[tuple[Any, ...]]:
    """Picks the kernel of a product and returns its launch."""
    (a, a_turned), (b, b_turned) = _laid_out("a", product.a), _laid_out("b", product.b)
    form = product.form(a_turned, b_turned)
    require_apart("matmul", product.c, a=a, b=b)
    if product.bias is not None:
        require_apart("matmul", product.c, bias=product.bias)
    if _has_wgmma(product.c, form) and a.size and b.size:
        multiple = _row_multiple(*product.c.shape)
        fit = [box.ptr % 16 == 0 and box.shape[1] % multiple == 0 for box in (a, b)]
        if not all(fit):
            wide = (value(box) if good else layout.widened(box, multiple) for box, good in ((a, fit[0]), (b, fit[1])))
            together: DeviceOperation[Any] = zip(*wide)
            return together.and_then(lambda boxes: _launch_of_boxes(product, form, *boxes))
    return _launch_of_boxes(product, form, a, b)


def _row_multiple(m: int, n: int) -> int:
    """Returns the number of elements, of 16 bits, of which the rows of an m×k and a k×n matrix have to be a multiple.
    Other matrices are copied first. The copy engine takes multiples of 8, and it reads multiples of 64, whole lines of
    memory, faster. For so many products of each element the copy takes less time than it saves."""
    return 64 if m * n >= 1024 * (m + n) else 8


def _launch_of_boxes(product: _Product, form: Form, a: DeviceBox, b: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
    """Returns the launch for matrices as they are in memory. Their rows may be longer than the product says: the rest
    is zeros, and a tile of the result ends where ``c`` ends."""
    biases = () if product.bias is None else (product.bias,)
    (m, n), k = product.c.shape, product.a.shape[1]
    if _has_wgmma(product.c, form) and all(map(_has_aligned_rows, (a, b))):
        multiprocessors = product.c.device.info.multiprocessors
        width = wgmma_products.width_of(m, n, k, multiprocessors)
        blocks = min(multiprocessors, -(-m // wgmma_products.TILE_M) * -(-n // width))
        config = LaunchConfig(blocks, wgmma_products.THREADS)
        persistent: DeviceOperation[tuple[Any, ...]] = wgmma_products.kernel_of(form, width)[config](
            product.alpha, a, b, *biases, product.beta, product.c
        )
        return persistent
    sizes = mma_products.tiles_of(form)
    config = LaunchConfig(max(1, -(-m // sizes.m) * -(-n // sizes.n)), sizes.threads)
    launch: DeviceOperation[tuple[Any, ...]] = mma_products.kernel_of(form)[config](
        product.alpha, a, b, *biases, product.beta, product.c
    )
    return launch


def _has_wgmma(c: DeviceBox, form: Form) -> bool:
    """Returns whether a product may be computed by a whole warpgroup: of f16 or bf16, on compute capability 9.0."""
    return form.a in (f16, bf16) and c.device.info.target.arch == "sm_90"


def _has_aligned_rows(box: DeviceBox) -> bool:
    """Returns whether the copy engine can read a matrix: it has rows, which begin at multiples of 16 bytes."""
    return box.size > 0 and box.ptr % 16 == 0 and box.shape[1] * box.dtype.itemsize % 16 == 0


def _shape_of(a: DeviceBox, b: DeviceBox) -> tuple[int, int]:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: matrices of shapes {a.shape} and {b.shape} have no product")
    return a.shape[0], b.shape[1]


def _outputs_of(a: DeviceBox, b: DeviceBox) -> tuple[Any, ...]:
    found = _OUTPUTS.get((_TYPES.get(a.dtype), _TYPES.get(b.dtype)))
    if found is None:
        raise ArgumentError(
            f"matmul: a has dtype {_named(a)} and b {_named(b)}; both are f16, bf16, f32 or f64, or each is i8 or u8"
        )
    return found


def _laid_out(name: str, box: DeviceBox) -> tuple[DeviceBox, bool]:
    """Returns a contiguous box, and whether it is the transpose of the matrix."""
    if box.is_contiguous:
        return box, False
    if box.T.is_contiguous:
        return box.T, True
    raise ArgumentError(
        f"matmul: {name} is a view of shape {box.shape} with strides of {box.strides} bytes; its rows or its columns "
        "have to be contiguous in memory: dup(view) makes a box with such rows"
    )


def _named(box: DeviceBox) -> str:
    kind = _TYPES.get(box.dtype)
    return str(box.dtype if kind is None else kind)


def _listed(names: tuple[Any, ...]) -> str:
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last
