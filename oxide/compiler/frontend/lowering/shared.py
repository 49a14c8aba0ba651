"""``SharedArray``, ``DynamicSharedArray`` and ``LocalArray``.

An array is one pointer, in a kernel's variables and in a device function's parameters: its type contains its shape,
and the length of a ``DynamicSharedArray`` follows from the launch's bytes of shared memory. Each back end places shared
memory. A call ``oxide.shared.static.<number>.<bytes>.<alignment>`` returns the address of a ``SharedArray``. Each axis
of an index is checked against the length of this axis, because ``a[0, 20]`` of a 16 by 16 array is out of bounds but
inside the array's memory.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, debuginfo, types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.ir.known_functions import LARGE_ARRAY, clearing_function, word_bits
from oxide.compiler.ir.primitives import LEAST_ALIGNMENT, array_name
from oxide.language.shared import DynamicSharedArray, LocalArray, SharedArray

from .common import (
    address,
    attribute,
    axes_in_bounds,
    axis_sites,
    check_axes,
    has_length,
    index_parts,
    readable,
    writable,
)
from .composites import alignment_of
from .primitives import call_primitive
from .registry import array_places, bound, lowering_registry, note, note_first, parameters, session, typing_registry
from .slices import SliceType, check_indices
from .types import PLACE, ComponentsType, OfElements, StructuredType, display

_WORD = ir.IntType(64)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_ALIGNMENTS = (16, 32, 64, 128, 256, 512, 1024)

_numbers = itertools.count()


class BlockArrayType(OfElements, types.Type):  # type: ignore[misc]
    """The type of an array in shared or local memory. ``shape`` is None for dynamic shared memory. ``alignment`` is the
    alignment that the declaration asks for, or None. ``shown`` is the array's name in errors, which does not contain
    the alignment."""

    def __init__(self, kind: str, shape: tuple[int, ...] | None, dtype: Any, alignment: int | None = None) -> None:
        self.kind = kind
        self.shape = shape
        self.dtype = dtype
        self.alignment = alignment
        sizes = "" if shape is None else f"{shape[0] if len(shape) == 1 else shape}, "
        self.shown = f"{kind}({sizes}{display(dtype)})"
        super().__init__(self.shown if alignment is None else f"{self.shown} aligned to {alignment}")

    @property
    def ndim(self) -> int:
        return 1 if self.shape is None else len(self.shape)


address(BlockArrayType)


def is_shared(kind: Any) -> bool:
    """Returns whether a type is that of a static shared array."""
    return isinstance(kind, BlockArrayType) and kind.kind == "SharedArray"


def _static(declaration: Any, accepted: tuple[str, ...]) -> Any:
    name = declaration.__name__

    @typing_registry.register_global(declaration)
    class StaticArray(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = bound(accepted, args, kws, optional=len(accepted) - 2)
            if given is None:
                more = " and, if you like, an alignment" if "alignment" in accepted else ""
                note(f"{name} takes a shape and a dtype{more}, as in {name}((16, 16), f32)")
                return None
            shape, dtype = _shape(name, given["shape"]), _dtype(name, given["dtype"])
            if shape is None or dtype is None:
                return None
            alignment = None
            if "alignment" in given and (alignment := _alignment(name, given["alignment"])) is None:
                return None
            names = accepted[: len(given)]
            kind = BlockArrayType(name, shape, dtype, alignment)
            return signature(kind, *(given[each] for each in names)).replace(pysig=parameters(*names))

    @lowering_registry.lower(declaration, types.Any, types.Any)
    @lowering_registry.lower(declaration, types.Any, types.Any, types.Any)
    def lower_static(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.return_type
        element = context.get_data_type(kind.dtype)
        count = math.prod(kind.shape)
        if name == "LocalArray":
            memory = local_memory(context, builder, element, count, alignment_of(context, kind.dtype))
            return builder.bitcast(memory, element.as_pointer())
        alignment = kind.alignment or max(LEAST_ALIGNMENT, context.get_abi_alignment(element))
        memory = static_memory(builder, count * context.get_abi_sizeof(element), alignment)
        return builder.bitcast(memory, element.as_pointer())


def static_memory(builder: Any, size: int, alignment: int) -> Any:
    """Returns the address of ``size`` bytes of static shared memory. Each declaration that is lowered has its own
    memory."""
    symbol = f"oxide.shared.static.{_number()}.{size}.{alignment}"
    return call_primitive(builder, _BYTE_POINTER, symbol, ())


def _number() -> int:
    """Returns a new number for the array being lowered, and records the array's place in the source under this
    number."""
    number = next(_numbers)
    array_places[number] = session().file, session().line, session().span
    return number


def local_memory(context: Any, builder: Any, element: Any, count: int, alignment: int | None = None) -> Any:
    """Returns the address of an array of ``count`` elements in the thread's local memory. The array is cleared to 0 at
    the function's entry."""
    kind = ir.ArrayType(element, count)
    alignment = alignment or 1 << (context.get_abi_alignment(element) - 1).bit_length()
    size = count * context.get_abi_sizeof(element)
    name = array_name(_number(), size)
    if count < LARGE_ARRAY:
        memory = cgutils.alloca_once(builder, kind, name=name)
    else:
        bits = word_bits(size, alignment)
        with debuginfo.suspend_emission(builder), builder.goto_entry_block():
            memory = builder.alloca(kind, name=name)
            address = builder.bitcast(memory, _BYTE_POINTER)
            words = ir.Constant(_WORD, size * 8 // bits)
            call_primitive(builder, ir.VoidType(), clearing_function(bits), (address, words))
    memory.align = alignment
    return memory


_static(SharedArray, ("shape", "dtype", "alignment"))
_static(LocalArray, ("shape", "dtype"))


@typing_registry.register_global(DynamicSharedArray)
class DynamicArray(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws:
            note("DynamicSharedArray takes a dtype; its length comes from LaunchConfig(shared_mem_bytes=…)")
            return None
        dtype = _dtype("DynamicSharedArray", args[0])
        return None if dtype is None else signature(BlockArrayType("DynamicSharedArray", None, dtype), args[0])


@lowering_registry.lower(DynamicSharedArray, types.Any)
def _lower_dynamic(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    element = context.get_data_type(sig.return_type.dtype)
    return builder.bitcast(call_primitive(builder, _BYTE_POINTER, "oxide.shared.dynamic", ()), element.as_pointer())


@has_length(BlockArrayType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _lengths(context, builder, sig.args[0])[0]


@attribute(BlockArrayType, "shape", lambda kind: types.UniTuple(PLACE, kind.ndim))
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.make_tuple(builder, types.UniTuple(PLACE, kind.ndim), _lengths(context, builder, kind))


def check_index(kind: Any, index: Any) -> bool:
    """Returns whether the type of an index fits an array or a slice. If not, adds a note with the reason."""
    if isinstance(kind, SliceType):
        return check_indices(kind, index)
    return check_axes(kind.shown, kind.ndim, index)


def locate(context: Any, builder: Any, kind: Any, index_type: Any, index: Any) -> tuple[Any, Any]:
    """Returns whether an index is in bounds, checked axis by axis, and the indexed element's offset in row-major
    order."""
    parts = index_parts(builder, index_type, index)
    axes = list(zip(parts, _lengths(context, builder, kind), strict=True))
    inside = axes_in_bounds(builder, axes, axis_sites(builder, kind.shown, len(axes)))
    offset = None
    for part, length in axes:
        offset = part if offset is None else builder.add(builder.mul(offset, length), part)
    return inside, offset


def element_of_array(context: Any, builder: Any, kind: Any, value: Any, *index: Any) -> tuple[Any, Any, Any]:
    """Does what ``locate`` does for ``elements``: a shared, local or constant array is the address of its elements."""
    inside, offset = locate(context, builder, kind, *index)
    return inside, value, offset


readable(BlockArrayType, check_index, element_of_array)
writable(BlockArrayType, check_index, element_of_array)


def _lengths(context: Any, builder: Any, kind: Any) -> list[Any]:
    if kind.shape is not None:
        return [ir.Constant(_WORD, length) for length in kind.shape]
    bytes_given = call_primitive(builder, _WORD, "oxide.shared.dynamic.bytes", ())
    return [builder.udiv(bytes_given, ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(kind.dtype))))]


def _shape(name: str, given: Any) -> tuple[int, ...] | None:
    parts = list(given) if isinstance(given, types.BaseTuple) else [given]
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, types.IntegerLiteral) for part in parts):
        # numba tries a second time without the values of constants, so only the note of the first time has the reason.
        note_first(
            f"the shape of {name} is a constant, or a tuple of up to three: a number, or a name that holds one outside "
            "the kernel; compute it there"
        )
        return None
    shape = tuple(int(part.literal_value) for part in parts)
    if min(shape) < 1:
        note(f"the shape of {name} is {shape}; every length is 1 or more")
        return None
    return shape


def _dtype(name: str, given: Any) -> Any:
    if isinstance(given, types.Function) and given.typing_key is bool:
        return types.boolean  # in a kernel, bool_ is Python's class bool
    if not isinstance(given, types.NumberClass) and not isinstance(
        getattr(given, "dtype", None), ComponentsType | StructuredType
    ):
        note(f"the dtype of {name} is one of oxide's scalar types, as f32; it is {display(given)}")
        return None
    return given.dtype


def _alignment(name: str, given: Any) -> int | None:
    value = int(given.literal_value) if isinstance(given, types.IntegerLiteral) else 0
    if value not in _ALIGNMENTS:
        found = f"it is {value}" if value else f"it is {display(given)}, and no constant"
        note_first(f"the alignment of {name} is a constant power of two from 16 to 1024; {found}")
        return None
    return value
