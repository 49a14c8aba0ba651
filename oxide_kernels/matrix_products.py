"""``matmul``: matrix products of every layout and size on tensor cores, with an epilogue.

The host checks shapes, dtypes and layouts, and ``_launch_of`` picks the kernel. A matrix may be a transposed view,
``box.T``. The kernel then reads the box itself, with its axes exchanged. Only on Hopper may a matrix have to be copied:
if its rows do not begin at multiples of 16 bytes, if its elements have 8 or 32 bits and are not contiguous along k, or
for f32 with ``precision="high"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from oxide import (
    ArgumentError,
    DeviceBox,
    DeviceOperation,
    Kernel,
    LaunchConfig,
    bf16,
    empty,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i32,
    u8,
    value,
)

from . import data_movement, mma_products, wgmma_plans, wgmma_products, wgmma_split_products
from .mma_products import ACTIVATIONS, Form
from .operand_checks import require_apart
from .operands import Operand, with_boxes

_NARROW: tuple[Any, ...] = (f16, bf16, f32)
_F8: tuple[Any, ...] = (f8e4m3, f8e5m2)
_OUTPUTS: dict[tuple[Any, Any], tuple[Any, ...]] = {
    **{(kind, kind): _NARROW for kind in _NARROW},
    (f64, f64): (f64, f32),
    **{(a, b): (i32, *_NARROW) for a in (i8, u8) for b in (i8, u8)},
    **{(a, b): (bf16, f16, f32) for a in _F8 for b in _F8},
}
"""Maps the types of ``a`` and ``b`` to the types that the result may have."""

_BIASES: dict[Any, tuple[Any, ...]] = {f32: _NARROW, f64: (f64, f32), i32: (i32,)}
"""Maps the type in which the bias is added to the types that the bias may have."""

_KINDS: tuple[Any, ...] = (f16, bf16, f32, f64, i8, u8, i32, *_F8)
_TYPES: dict[np.dtype[Any], Any] = {kind.dtype: kind for kind in _KINDS}
_PRECISIONS: dict[Any, tuple[str, ...]] = {f32: ("tf32", "high"), **dict.fromkeys(_F8, ("high", "fast"))}
"""Maps the type of ``a`` to the possible values of ``precision``, the default first."""

_ENOUGH_TILES = 100
"""The least number of 128×128 tiles for which such tiles are used. It is about the number of multiprocessors of a large
GPU."""


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
    a_scale: Operand | None = None,
    b_scale: Operand | None = None,
) -> DeviceOperation[tuple[Any, ...]]:
    """Computes ``c = activation(alpha * a @ b + beta * c + bias)`` on tensor cores: ``a`` is m×k, ``b`` k×n, ``c`` m×n.

    The matrices are boxes of two axes, or operations that yield them; ``a`` and ``b`` may be transposed views
    (``box.T``, ``box.mT``). Boxes with three axes are stacks of matrices, and ``c[i]`` is the product of ``a[i]`` and
    ``b[i]``. A matrix with two axes, or a stack of one matrix, is used for every ``c[i]``. The operation yields ``a``,
    ``b`` and ``c``. ``bias`` has n elements, one for each column. ``activation`` is ``"relu"``, ``"gelu"`` or
    ``"silu"``. With a ``beta`` of 0, ``c`` is not read. A GPU needs compute capability 8.0. ``matmul`` is fastest if
    the addresses of all rows in memory are multiples of 16 bytes.

    =============  ===========  =====================  =================
    a and b        sums in      c                      bias
    =============  ===========  =====================  =================
    f16, bf16      f32          f16, bf16, f32         f16, bf16, f32
    f32            f32          f16, bf16, f32         f16, bf16, f32
    f64            f64          f64, f32               f64, f32
    i8, u8         i32          i32                    i32
    i8, u8         i32          f16, bf16, f32         f16, bf16, f32
    8-bit floats   f32          bf16, f16, f32         f16, bf16, f32
    =============  ===========  =====================  =================

    Both matrices have the same dtype, except that i8 may be combined with u8, and f8e4m3 with f8e5m2. The epilogue,
    which applies ``alpha``, ``beta``, ``bias`` and ``activation``, is computed in the type of the sums. If the sums are
    i32 and the result is of floats, it is computed in f32. i32 wraps.

    ``precision`` is for f32 and 8-bit floats. For f32 ``"tf32"``, the default, rounds the elements to 10 bits of
    fraction, and ``"high"`` multiplies with about f32's precision, in three products. For 8-bit floats, the tensor
    cores of a Hopper GPU keep only 14 bits of a sum. With ``"fast"`` they compute whole sums. With ``"high"``, the
    default, they compute sums of 128 terms, and these sums are added in f32.

    ``a_scale`` and ``b_scale`` are the scales of quantized matrices, f32, both or none: ``a[i, l] * a_scale[i]`` and
    ``b[l, j] * b_scale[j]`` are the true elements. ``a_scale`` has m elements and ``b_scale`` n, or each has one
    element for the whole matrix. For a stack each has one element. The sums of products are multiplied by the scales.
    The matrices must not be f64, and the result must be of floats.

    Raises ``ValueError`` for shapes that do not match, and ``ArgumentError`` for a wrong dtype, layout, activation,
    precision or scale, and if ``c`` shares memory with an operand.
    """
    more = {"bias": bias, "a_scale": a_scale, "b_scale": b_scale}
    present = {name: operand for name, operand in more.items() if operand is not None}

    def product(a: DeviceBox, b: DeviceBox, c: DeviceBox, *given: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        shape = _shape_of(a, b)
        if c.shape != shape:
            raise ValueError(f"matmul: c has shape {c.shape}, and the product of {a.shape} and {b.shape} {shape}")
        if not c.is_contiguous:
            raise ArgumentError(f"matmul: c is a view with strides of {c.strides} bytes; give a contiguous box")
        named = dict(zip(present, given, strict=True))
        made = _Product(a, b, c, alpha, beta, activation, precision, **named)
        return _launch_of(made).map(lambda _: (a, b, c))

    return with_boxes(product, a, b, c, *present.values())


def result_of(a: DeviceBox, b: DeviceBox, out_dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and the dtype of the result. The dtype is ``out_dtype``. By default it is the matrices' dtype,
    but i32 for integers of 8 bits and bf16 for floats of 8 bits. Raises ``ValueError`` and ``ArgumentError`` as
    ``matmul`` does."""
    shape = _shape_of(a, b)
    outputs = _outputs_of(a, b)
    found = _TYPES[a.dtype] if _TYPES[a.dtype] in outputs else outputs[0]
    chosen = found if out_dtype is None else out_dtype
    try:
        return shape, np.dtype(chosen.dtype if chosen in _KINDS else chosen)
    except TypeError:
        names = ", ".join(str(kind) for kind in outputs)
        raise ArgumentError(f"matmul: out_dtype is {out_dtype!r:.80}; here it is one of {names}") from None


@final
@dataclass(frozen=True, slots=True)
class _Product:
    """A call of ``matmul``. The shapes of a, b and c have been checked, and ``form`` checks everything else."""

    a: DeviceBox
    b: DeviceBox
    c: DeviceBox
    alpha: float
    beta: float
    activation: str | None
    precision: str | None
    bias: DeviceBox | None = None
    a_scale: DeviceBox | None = None
    b_scale: DeviceBox | None = None

    @property
    def products(self) -> int:
        """Returns the number of matrices in the result."""
        return self.c.shape[0] if len(self.c.shape) == 3 else 1

    def form(self, a_turned: bool, b_turned: bool) -> Form:
        """Returns the constants of the kernel. Raises ``ValueError`` or ``ArgumentError`` if the operands or options
        cannot be combined."""
        outputs = _outputs_of(self.a, self.b)
        a_type, b_type, c_type = (_TYPES.get(box.dtype) for box in (self.a, self.b, self.c))
        if c_type not in outputs:
            raise ArgumentError(
                f"matmul: c has dtype {_named(self.c)}, and matrices of {_named(self.a)} give {_listed(outputs)}"
            )
        precisions = _PRECISIONS.get(a_type, (None,))
        if self.precision not in (None, *precisions):
            raise ArgumentError(
                f"matmul: precision is {self.precision!r} for matrices of {_named(self.a)}; it is 'tf32' or 'high' for "
                "those of f32, 'high' or 'fast' for those of 8-bit floats, and None for others"
            )
        *_, m, n = self.c.shape
        form = Form(
            a=a_type,
            b=b_type,
            output=c_type,
            bias=None if self.bias is None else _TYPES.get(self.bias.dtype),
            a_turned=a_turned,
            b_turned=b_turned,
            activation=self.activation,
            exact=(self.precision or precisions[0]) == "high",
            pairs=n % 2 == 0 and self.c.ptr % (2 * self.c.dtype.itemsize) == 0,
            large=self.products * -(-m // 128) * -(-n // 128) >= _ENOUGH_TILES,
            scales=self._scales(),
            adds=self.beta != 0,
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
        if form.scales is not None and form.wide is not f32:
            raise ArgumentError(
                f"matmul: scales are multiplied in f32, and matrices of {_named(self.a)} with a result of "
                f"{_named(self.c)} give sums of {form.wide}"
            )
        return form

    def _scales(self) -> str | None:
        """Returns the ``scales`` of the form: "one", "each" or None. Raises ``ValueError`` or ``ArgumentError`` for
        wrong scales."""
        if self.a_scale is None and self.b_scale is None:
            return None
        lengths = self.c.shape[-2:]
        for name, box, length in (("a_scale", self.a_scale, lengths[0]), ("b_scale", self.b_scale, lengths[1])):
            if box is None:
                raise ArgumentError(f"matmul: {name} is missing; give both scales or none")
            if _TYPES.get(box.dtype) is not f32 or not box.is_contiguous:
                raise ArgumentError(f"matmul: {name} has dtype {_named(box)}; it is contiguous and of f32")
            if box.size not in (1, length) or max(box.shape, default=1) != box.size:
                raise ValueError(
                    f"matmul: {name} has shape {box.shape}; it has one element, or {length} along one axis"
                )
        if self.products > 1 and any(box.size > 1 for box in (self.a_scale, self.b_scale) if box is not None):
            raise ArgumentError("matmul: scales of stacks have one element, for all matrices")
        sizes = tuple(box.size for box in (self.a_scale, self.b_scale) if box is not None)
        if sizes not in ((1, 1), lengths):
            raise ArgumentError(
                "matmul: one scale has one element, and the other more; each has one, or one for each row of a and "
                "column of b"
            )
        return "one" if sizes == (1, 1) else "each"


def _launch_of(product: _Product) -> DeviceOperation[tuple[Any, ...]]:
    """Picks the kernel of a product and returns its launch."""
    (a, a_turned), (b, b_turned) = _laid_out("a", product.a), _laid_out("b", product.b)
    form = product.form(a_turned, b_turned)
    inputs = {"a": a, "b": b, "bias": product.bias, "a_scale": product.a_scale, "b_scale": product.b_scale}
    require_apart("matmul", product.c, None, **{name: box for name, box in inputs.items() if box is not None})
    if a.size and b.size and product.c.size and _has_wgmma(product.c, form, a, b):
        return _prepared(product, form, a, b)
    config = mma_products.config_of(form, product.products, *product.c.shape[-2:])
    return _launch(product, mma_products.kernel_of(form), config, a, b)


def _prepared(product: _Product, form: Form, a: DeviceBox, b: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
    """Returns the launch on Hopper. Matrices that the instructions or the copy engine cannot read directly are first
    copied. The rows of a copy may be padded with zeros. This changes no result: zeros along k add nothing, and the
    kernel stores nothing outside of ``c``."""
    (*_, m, n), k = product.c.shape, product.a.shape[-1]
    turned = _turned(form)
    if any(turned):
        form = form._replace(a_turned=False, b_turned=True)
    splits = form.exact and form.a is f32
    copies = [_copied(box, turns, splits) for box, turns in ((a, turned[0]), (b, turned[1]))]
    multiprocessors, stacked = product.c.device.info.multiprocessors, product.products > 1

    def launched(a: DeviceBox, b: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        if not stacked:
            a, b = a.reshape(a.shape[1:]), b.reshape(b.shape[1:])
        aligned = _has_whole_lines(a), _has_whole_lines(b)
        plan = wgmma_plans.plan_of(form, product.products, m, n, k, aligned, multiprocessors)
        config = LaunchConfig(plan.blocks(product.products, m, n, multiprocessors), wgmma_products.THREADS)
        oriented, *operands = _oriented(form, plan, a, b)
        if plan.parts:
            made = wgmma_split_products.kernel_of(oriented, plan, stacked)
        else:
            made = wgmma_products.kernel_of(oriented, plan, stacked, _has_even_rows(product.c))
        return _launch(product, made, config, *operands)

    return with_boxes(launched, *copies)


def _oriented(form: Form, plan: wgmma_plans.Plan, a: DeviceBox, b: DeviceBox) -> tuple[Form, DeviceBox, DeviceBox]:
    """Returns the form and the operands for a plan's kernel. For a swapped plan, they describe the transpose of the
    product."""
    if not plan.swapped:
        return form, a, b
    swapped = form._replace(a=form.b, b=form.a, a_turned=not form.b_turned, b_turned=not form.a_turned)
    return swapped, b, a


def _copied(box: DeviceBox, turns: bool, splits: bool) -> Operand:
    """Returns the box if it can be read directly. Otherwise returns the operation that yields a copy: transposed if
    ``turns``, split if ``splits``, or with padded rows."""
    planes, rows, columns = box.shape
    if turns:
        made = (
            empty((1, columns, rows), box.dtype)
            .and_then(lambda y: data_movement.transpose(rows, columns, box, y))
            .last()
        )
        return made.and_then(lambda turned: with_boxes(value, _copied(turned, False, splits)))
    if not splits and _has_even_rows(box):
        return box
    matrix = box.reshape(planes * rows, columns)
    copied = data_movement.split(matrix) if splits else data_movement.widened(matrix, _LINE // box.dtype.itemsize)
    return copied.map(lambda wide: wide.reshape(planes, rows, wide.shape[1]))


_LINE = 128
"""The bytes of a line of memory. The copy engine reads a row of 128 bytes in half the time if it begins at the start of
a line."""


def _has_even_rows(box: DeviceBox) -> bool:
    """Returns whether each row begins at a multiple of 16 bytes, as the copy engine needs."""
    return box.ptr % 16 == 0 and box.shape[-1] * box.dtype.itemsize % 16 == 0


def _has_whole_lines(box: DeviceBox) -> bool:
    """Returns whether each row begins at the start of a line of memory."""
    return box.ptr % _LINE == 0 and box.shape[-1] * box.dtype.itemsize % _LINE == 0


def _launch(
    product: _Product, made: Kernel, config: LaunchConfig, a: DeviceBox, b: DeviceBox
) -> DeviceOperation[tuple[Any, ...]]:
    """Returns the launch of a kernel. ``a`` and ``b`` are the operands in the form in which the kernel reads them."""
    more = (a if box is None else box for box in (product.a_scale, product.b_scale, product.bias))
    m, n = product.c.shape[-2:]
    c = product.c.reshape(product.products * m, n)
    launch: DeviceOperation[tuple[Any, ...]] = made[config](product.alpha, a, b, *more, product.beta, m, c)
    return launch


def _turned(form: Form) -> tuple[bool, bool]:
    """Returns two bools: whether ``wgmma`` needs a transposed copy of ``a``, and of ``b``. ``wgmma`` reads operands
    that are contiguous along k, and elements of 16 bits also in other layouts."""
    return (False, False) if form.a.dtype.itemsize == 2 else (form.a_turned, not form.b_turned)


def _has_wgmma(c: DeviceBox, form: Form, a: DeviceBox, b: DeviceBox) -> bool:
    """Returns whether ``wgmma`` can compute a product. It needs compute capability 9.0, and does not multiply f64. A
    stack of matrices that would need a transposed copy is excluded, because a launch of ``transpose`` takes one
    matrix."""
    if form.a is f64 or c.device.info.target.arch != "sm_90":
        return False
    return not any(turns and box.shape[0] > 1 for turns, box in zip(_turned(form), (a, b), strict=True))


def _shape_of(a: DeviceBox, b: DeviceBox) -> tuple[int, ...]:
    """Returns the shape of the result. It has three axes if ``a`` or ``b`` has three, otherwise two. Raises
    ``ValueError`` if the shapes do not match."""
    stacks = {box.shape[0] for box in (a, b) if len(box.shape) == 3}
    lengths = stacks - {1} or stacks
    if {len(a.shape), len(b.shape)} - {2, 3} or a.shape[-1] != b.shape[-2] or len(lengths) > 1:
        raise ValueError(f"matmul: matrices of shapes {a.shape} and {b.shape} have no product")
    return (*lengths, a.shape[-2], b.shape[-1])


def _outputs_of(a: DeviceBox, b: DeviceBox) -> tuple[Any, ...]:
    found = _OUTPUTS.get((_TYPES.get(a.dtype), _TYPES.get(b.dtype)))
    if found is None:
        raise ArgumentError(
            f"matmul: a has dtype {_named(a)} and b {_named(b)}; both are f16, bf16, f32 or f64, or each is i8 or u8, "
            "or each is f8e4m3 or f8e5m2"
        )
    return found


def _laid_out(name: str, box: DeviceBox) -> tuple[DeviceBox, bool]:
    """Returns a contiguous box of three axes with the elements of ``box``, and whether its matrices are the transposes
    of the matrices of ``box``. Raises ``ArgumentError`` for a view of another layout."""
    turned = not box.is_contiguous and box.mT.is_contiguous
    if turned or box.is_contiguous:
        plain = box.mT if turned else box
        return plain if len(plain.shape) == 3 else plain.reshape(1, *plain.shape), turned
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
