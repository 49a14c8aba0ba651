"""The vocabulary of tile kernels: annotations of parameters, and functions. The functions have a meaning only in a
kernel's body, where the compiler recognises their names. A launch runs a tile kernel many times in parallel, and each
of these runs is called a *program*.

The names are NumPy's. For operations that NumPy does not have, they are those of cuTile and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NoReturn, TypeVar, final

from oxide.language.types import ScalarType

__all__ = [
    "Annotation", "Constant", "Partition", "Partition1", "Partition2", "Partition3", "Target", "Target1", "Target2",
    "Target3", "Tensor", "Tensor1", "Tensor2", "Tensor3",
]  # fmt: skip

T = TypeVar("T")


class Annotation:
    """A parsed annotation: ``Tensor[f32, 2]`` is of kind ``tensor``, with a scalar type and a number of axes."""

    def __init__(self, kind: str, scalar: ScalarType, ndim: int) -> None:
        self.kind = kind
        self.scalar = scalar
        self.ndim = ndim

    def __repr__(self) -> str:
        if self.kind == "constant":
            return f"tile.Constant[{getattr(self.scalar, '__name__', self.scalar)}]"
        return f"tile.{self.kind.capitalize()}[{self.scalar.name}, {self.ndim}]"


class _Typed:
    """A class whose subscript is an ``Annotation`` of a kind, with a number of axes if the class gives none."""

    _kind: str
    _axes: int | None

    def __init_subclass__(cls, kind: str, axes: int | None = None) -> None:
        super().__init_subclass__()
        cls._kind = kind
        cls._axes = axes

    def __class_getitem__(cls, item: Any) -> Any:
        given = item if isinstance(item, tuple) and len(item) == 2 and cls._axes is None else (item, cls._axes)
        scalar, axes = given
        shown = f"tile.{cls._kind.capitalize()}"
        if not isinstance(scalar, ScalarType):
            raise TypeError(f"{shown}[…] takes one of oxide's types, as in {shown}[f32, 2], not {scalar!r}")
        if isinstance(axes, bool) or not isinstance(axes, int) or axes not in (1, 2, 3):
            raise TypeError(f"{shown}[{scalar.name}, …] takes a number of axes, 1 to 3, not {axes!r}")
        return Annotation(cls._kind, scalar, axes)


class _Tensor(Generic[T]):
    """The attributes of tensors, for static type checkers."""

    if TYPE_CHECKING:
        shape: tuple[Any, ...]
        dtype: Any
        ndim: int

        def load(self, index: Any = ..., shape: Any = ..., padding: Any = 0) -> Any: ...


class _Partition(_Tensor[T]):
    """The attributes of partitions, for static type checkers."""

    if TYPE_CHECKING:
        index: tuple[Any, ...]
        tile_shape: tuple[int, ...]

        def store(self, tile: Any) -> None: ...


class Tensor(_Typed, _Tensor[T], kind="tensor"):
    """A parameter that the kernel reads: ``Tensor[f32, 2]`` takes a box of two axes.

    ``x.shape`` has the lengths of the axes, as scalars. ``x.load(index, shape, padding=0)`` returns a tile of shape
    ``shape``. ``index`` has a number for each axis and counts tiles of this shape. Elements outside of the tensor are
    ``padding``.
    """


class Tensor1(_Typed, _Tensor[T], kind="tensor", axes=1):
    """``Tensor[T, 1]`` in a form that a static type checker accepts: ``Tensor1[f32]``."""


class Tensor2(_Typed, _Tensor[T], kind="tensor", axes=2):
    """``Tensor[T, 2]`` in a form that a static type checker accepts: ``Tensor2[f32]``."""


class Tensor3(_Typed, _Tensor[T], kind="tensor", axes=3):
    """``Tensor[T, 3]`` in a form that a static type checker accepts: ``Tensor3[f32]``."""


class Partition(_Typed, _Partition[T], kind="partition"):
    """A parameter that the kernel writes. ``Partition[f32, 2]`` takes ``box.partition((rows, columns))``, a box that is
    divided into tiles of this shape. A launch runs one program for each tile of the kernel's first ``Partition``.

    ``z.index`` is the index of this program's tile, ``z.tile_shape`` is the shape of a tile, and ``z.shape`` is the
    shape of the box. ``z.store(tile)`` writes this program's tile and nothing else. ``z.load()`` reads this program's
    tile.
    """


class Partition1(_Typed, _Partition[T], kind="partition", axes=1):
    """``Partition[T, 1]`` in a form that a static type checker accepts: ``Partition1[f32]``."""


class Partition2(_Typed, _Partition[T], kind="partition", axes=2):
    """``Partition[T, 2]`` in a form that a static type checker accepts: ``Partition2[f32]``."""


class Partition3(_Typed, _Partition[T], kind="partition", axes=3):
    """``Partition[T, 3]`` in a form that a static type checker accepts: ``Partition3[f32]``."""


class Target(_Typed, _Tensor[T], kind="target"):
    """A parameter that every program may write, but only by ``scatter`` and the atomic operations: ``Target[f32, 1]``
    takes a box of one axis. A program may read elements of the box only by ``gather``.

    If two programs scatter to one element, the element gets one of the two values. ``atomic_add`` adds the values of
    all programs. ``t.shape`` has the lengths of the axes, as scalars.
    """


class Target1(_Typed, _Tensor[T], kind="target", axes=1):
    """``Target[T, 1]`` in a form that a static type checker accepts: ``Target1[f32]``."""


class Target2(_Typed, _Tensor[T], kind="target", axes=2):
    """``Target[T, 2]`` in a form that a static type checker accepts: ``Target2[f32]``."""


class Target3(_Typed, _Tensor[T], kind="target", axes=3):
    """``Target[T, 3]`` in a form that a static type checker accepts: ``Target3[f32]``."""


if TYPE_CHECKING:
    Constant = Annotated[T, "known when the kernel is compiled"]
else:

    class Constant(Generic[T]):
        """A parameter whose value is known when the kernel is compiled: ``bk: tile.Constant[int] = 64``. The kernel is
        compiled once for each value."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Annotation("constant", item, 0)


@final
class Function:
    """A function that tile kernels can call, made by ``@tile.function``."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.__name__ = wrapped.__name__
        self.__doc__ = wrapped.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self.__name__} is a @tile.function, which only a tile kernel can call")


@final
class Word:
    """A name of the vocabulary: a function that a tile kernel calls."""

    def __init__(self, name: str, doc: str) -> None:
        self.__name__ = name
        self.__doc__ = doc

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"tile.{self.__name__} only works in a tile kernel: a function with @tile.kernel")

    def __repr__(self) -> str:
        return f"tile.{self.__name__}"


_FLOATING = "Applies the function of this name to each element. Integers and bools become f64, Python's numbers f32."
_DOCS = {
    "zeros": "Returns a tile of zeros: ``zeros(shape, dtype=f32)``.",
    "ones": "Returns a tile of ones: ``ones(shape, dtype=f32)``.",
    "full": "Returns a tile of equal elements: ``full(shape, value, dtype=f32)``.",
    "arange": "Returns ``0, 1, …, n - 1``: ``arange(n, dtype=i64)``.",
    "where": "Returns ``a`` where the condition is true, and ``b`` elsewhere.",
    "maximum": "Returns the larger of two elements; a NaN if one is a NaN, as NumPy does.",
    "minimum": "Returns the smaller of two elements; a NaN if one is a NaN, as NumPy does.",
    "sum": "Returns the sum over one axis, or over all: ``sum(x, axis=None, keepdims=False)``. As in NumPy, sums of "
    "integers and bools are of 64 bits.",
    "max": "Returns the largest element along an axis, or of all: ``max(x, axis=None, keepdims=False)``.",
    "min": "Returns the smallest element along an axis, or of all: ``min(x, axis=None, keepdims=False)``.",
    "argmax": "Returns the first index of the largest element along an axis, an i64: ``argmax(x, axis)``.",
    "argmin": "Returns the first index of the smallest element along an axis, an i64: ``argmin(x, axis)``.",
    "cumsum": "Returns the running sums along an axis: ``cumsum(x, axis)``.",
    "reshape": "Returns the elements in row-major order with another shape.",
    "transpose": "Returns the tile with its axes in another order, reversed if none is given.",
    "broadcast_to": "Returns the tile repeated to a shape, by NumPy's rules.",
    "cat": "Returns tiles one after the other along an axis: ``cat((a, b), axis=0)``.",
    "mma": "Returns ``a @ b + acc`` for tiles of shapes (m, k), (k, n) and (m, n): ``mma(a, b, acc, tf32=False)``. "
    "Products and sums have the type of ``acc``: f32 for narrower floats, f64, i32 or i64. ``tf32`` allows tensor "
    "cores to round f32 operands to 10 bits of fraction.",
    "load_like": "Returns a tensor's tile at the index of this program's tile of a partition, in the same shape: "
    "``load_like(x, z, padding=0)``. Also called ``load_tile_like``.",
    "gather": "Returns ``x[indices]``, or ``x[i, j]`` for a tuple: ``gather(x, indices, mask=None, padding=0)``. An "
    "index outside of the tensor is a ``BoundsError``. Where the mask is false nothing is read, and the result is "
    "``padding``.",
    "scatter": "Writes elements of a target or of a partition: ``scatter(t, indices, values, mask=None)`` is "
    "``t[indices] = values``. An index outside is a ``BoundsError``. If an index occurs several times, "
    "one of its values is written.",
    "atomic_add": "Adds to elements of a target or of a partition: ``atomic_add(t, indices, values, mask=None)``. All "
    "values are added, in any order. An index outside is a ``BoundsError``.",
    "atomic_max": "Writes the larger of a value and the element that is there: ``atomic_max(t, indices, values, "
    "mask=None)``, as ``atomic_add``. A NaN among the values changes nothing.",
    "atomic_min": "Writes the smaller of a value and the element that is there, as ``atomic_max``.",
    "atomic_and": "Replaces an element ``e`` by ``e & value``, for integers: ``atomic_and(t, indices, values, "
    "mask=None)``, as ``atomic_add``.",
    "atomic_or": "Replaces an element ``e`` by ``e | value``, as ``atomic_and``.",
    "atomic_xor": "Replaces an element ``e`` by ``e ^ value``, as ``atomic_and``.",
    "sort": "Returns the elements in order along an axis, a NaN last: ``sort(x, axis=-1, descending=False)``.",
    "topk": "Returns the ``k`` largest elements along an axis, largest first, and their indices, i64: ``topk(x, k, "
    "axis=-1)``. Of equal elements the first comes first. A NaN is larger than any number.",
    "rand": "Returns f32 numbers from 0 up to 1, which follow from a seed and from counters: ``rand(seed, counters)``. "
    "Each element is one of Philox4x32-10, so equal counters give equal numbers on any device: those of "
    "``oxide.random.uniform``.",
    "program_id": "Returns this program's place along an axis of the grid, an i64.",
    "num_programs": "Returns the length of an axis of the grid, an i64.",
    "cdiv": "Returns ``a / b`` rounded up, for integers.",
    "static_range": "A ``range`` for a loop that is unrolled: ``for i in static_range(4)``. Its arguments must be "
    "known when the kernel is compiled, and ``i`` is known in each copy of the loop's body.",
    "abs": "Returns the magnitude of each element.",
    "floor": "Returns each element rounded down.",
    "ceil": "Returns each element rounded up.",
}
FLOATING: Final = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "arcsin", "arccos", "arctan", "erf",
)  # fmt: skip
"""The names of elementwise functions whose result is a float."""

WORDS: Final[dict[str, Word]] = {
    name: Word(name, doc) for name, doc in (_DOCS | dict.fromkeys(FLOATING, _FLOATING)).items()
}
WORDS["load_tile_like"] = WORDS["load_like"]

_ROUND: Final = "use f = floor(x) and where(x - f > 0.5, f + 1, where(x - f < 0.5, f, 2 * floor(f / 2 + 0.5)))"
_PRODUCT: Final = "multiply in a loop, as in p *= x.load((i, j), (rows, 1))"
_INSTEAD: Final = {
    "dot": "use mma or @", "matmul": "use mma or @", "concatenate": "use cat", "stack": "use cat of x[None, :]",
    "load": "a tensor has the method x.load(index, shape)", "store": "a partition has the method z.store(tile)",
    "mean": "divide sum(x) by the length", "var": "divide the sum of the squares of x - mean by the length",
    "std": "take sqrt of the variance",
    "prod": _PRODUCT, "cumprod": _PRODUCT, "softmax": "use exp, max and sum", "sigmoid": "use 1 / (1 + exp(-x))",
    "relu": "use maximum(x, 0)", "any": "use max(x != 0)", "all": "use min(x != 0)",
    "clip": "use maximum and minimum",
    "power": "use **", "pow": "use **", "concat": "use cat", "expand_dims": "use x[:, None]", "squeeze": "use reshape",
    "argsort": "use topk, which also gives indices, of the largest elements first",
    "randn": "use sqrt(-2 * log(1 - u)) * cos(6.2831855 * v) of two numbers u and v from rand",
    "empty": "use zeros", "zeros_like": "use zeros(x.shape, x.dtype)", "print": "use print(…)", "range": "use range(…)",
    "cast": "use x.astype(dtype)", "astype": "use x.astype(dtype)", "flip": "use gather from the tensor",
    "roll": "use gather from the tensor",
    "split": "use load at two indices", "inv": "a tile kernel has no linear algebra but mma",
    "einsum": "use mma and .T",
    "device": "use @tile.function", "atomic_cas": "use atomic_max or atomic_min, or a @kernel",
    "atomic_xchg": "use a @kernel", "barrier": "a tile kernel needs none",
    "shared": "a tile kernel needs none",
    "isnan": "use x != x", "logical_and": "use & of bools, as in (x != 0) & (y != 0)", "logical_or": "use | of bools",
    "logical_not": "use x == 0",
    "autotune": "use @tile.kernel(configs=[…]) or k.tune", "bid": "use program_id", "num_blocks": "use num_programs",
    "sign": "use where", "square": "use x * x", "round": _ROUND, "rint": _ROUND,
}  # fmt: skip
"""Maps names of NumPy and other tile languages to the end of an error message, which names the replacement in oxide."""


_LOOP = "use a loop over range(n) or static_range(n)"
_OF_TYPES = "the types are known before the launch; test there"
_TEXT = 'print("x", x) prints a text and a value'
_INSTEAD_OF_BUILTINS = {
    "sorted": "use sort(x)", "divmod": "use // and %", "list": "use a tuple", "dict": "use a tuple",
    "set": "use a tuple", "complex": "tiles have no complex numbers",
    **dict.fromkeys(("zip", "enumerate", "reversed", "map", "filter", "iter", "next"), _LOOP),
    **dict.fromkeys(("isinstance", "type", "hasattr", "getattr"), _OF_TYPES),
    **dict.fromkeys(("str", "repr", "format"), _TEXT),
}  # fmt: skip
"""Maps Python's builtins that tile kernels do not have to the end of an error message."""


def instead_of_builtin(name: str) -> str:
    """Returns the end of an error message for a builtin that tile kernels do not have."""
    found = _INSTEAD_OF_BUILTINS.get(name) or _INSTEAD.get(name)
    return f"; {found}" if found else ""


def instead(name: str) -> str:
    """Returns the end of an error message for an unknown name: its replacement, a similar name, or the list of all
    names."""
    import difflib  # imported here: only the error of a wrong kernel needs it

    if name in _INSTEAD:
        return f"; {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, WORDS, 1)
    return f"; did you mean tile.{near[0]}?" if near else f"; it has {' '.join(sorted(WORDS))}"
