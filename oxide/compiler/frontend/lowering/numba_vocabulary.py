"""Lowers numba-cuda's own functions to primitives that both of oxide's back ends define.

numba-cuda lowers ``cuda.syncthreads()``, ``cuda.shfl_sync(…)`` and similar functions to NVVM intrinsics and inline PTX,
through templates, intrinsics and overloads. All of these end in ``builder.call``, so ``PrimitiveBuilder`` replaces the
calls there. At that point the line being lowered is still known, so a fault can name it. float16 has a lowering of its
own here, and so have arrays in shared and local memory, because numba-cuda's lowering places shared arrays in its own
globals and asks libNVVM for the size of an element.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import cuda
from numba.cuda import cudaimpl, fp16, types
from numba.cuda.types.ext_types import GridGroup
from numba.cuda.typing.npydecl import parse_dtype
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.primitives.threads import GRID_BARRIER

from .half import lower_absolute, lower_negative, lower_positive, narrow, through_single, widen
from .primitives import as_bit, call_primitive, site
from .registry import lowering_registry
from .shared import local_memory, static_memory
from .total_builder import TotalBuilder
from .types import COMPARISONS, forms_of

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
_WORD = ir.IntType(64)
_VOID = ir.VoidType()
_BYTE_POINTER = ir.IntType(8).as_pointer()
_LAYOUT = llvm.create_target_data("")
_PAIR = ir.LiteralStructType((_INT, _BIT))

_SHUFFLES = ("idx", "up", "down", "bfly")
_VOTES = ("all", "any", "uniform", "ballot")
_FENCES = {"cta": "block", "gl": "device", "sys": "system"}
_SEQUENTIALLY_CONSISTENT = 4


# float16: ``cuda.fp16`` and its operators, computed in f32 and rounded after each step. numba-cuda lowers them to calls
# of CUDA C++ functions, which must be compiled by NVRTC and linked. A sum, product, quotient or square root is the same
# as with a single rounding, because f32 has more than twice the precision of f16.

_HALF = types.float16
_SINGLE = ir.FloatType()
_DOUBLE = ir.DoubleType()

_BINARY = {
    function: getattr(fp16, f"h{function.__name__}")
    for function in (operator.add, operator.sub, operator.mul, max, min, *COMPARISONS)
} | {operator.truediv: fp16.hdiv}
_ROUNDED = {operator.add: "__hadd_rn", operator.sub: "__hsub_rn", operator.mul: "__hmul_rn"}
_UNARY = "ceil floor trunc rint sqrt rsqrt cos sin exp exp2 exp10 log log2 log10 tanh"


def _lower(function: Any, count: int, lowered: Any) -> None:
    lowering_registry.lower(function, *[_HALF] * count)(lowered)


def _unary(name: str) -> Any:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        single = call_primitive(builder, _SINGLE, f"__nv_{name}f", (widen(builder, _HALF, args[0]),))
        return narrow(builder, _HALF, single)

    return lowered


def _lower_fma(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The product of two f16 is exact in f64. ``narrow`` rounds the sum to odd, as an f32, before it rounds it to f16.
    left, right, addend = (builder.fpext(widen(builder, _HALF, value), _DOUBLE) for value in args)
    return narrow(builder, _HALF, builder.fadd(builder.fmul(left, right), addend))


def _lower_truth(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fcmp_unordered("!=", widen(builder, _HALF, args[0]), _SINGLE(0.0))


def _lower_reciprocal(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return narrow(builder, _HALF, builder.fdiv(_SINGLE(1.0), widen(builder, _HALF, args[0])))


for _single, _half in _BINARY.items():
    for _function in (*forms_of(_single), _half):
        _lower(_function, 2, through_single(_single))
for _single, _name in _ROUNDED.items():
    _lower(getattr(fp16, _name), 2, through_single(_single))
for _name in _UNARY.split():
    _lower(getattr(fp16, f"h{_name}"), 1, _unary(_name))
_lower(fp16.htanh_approx, 1, _unary("tanh"))
_lower(fp16.hfma, 3, _lower_fma)
for _function in (operator.neg, fp16.hneg):
    _lower(_function, 1, lower_negative)
for _function in (abs, fp16.habs):
    _lower(_function, 1, lower_absolute)
_lower(operator.pos, 1, lower_positive)
_lower(fp16.hrcp, 1, _lower_reciprocal)
_lower(bool, 1, _lower_truth)


# Conversions of float16, which numba-cuda writes as inline PTX


def _to_float(target: Any) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        wide = widen(builder, _HALF, value)
        return wide if target == _SINGLE else builder.fpext(wide, target)

    return lower


def _from_float(builder: Any, value: Any) -> Any:
    return narrow(builder, _HALF, value)


def _to_integer(signed: bool, bits: int) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        even = call_primitive(builder, _SINGLE, "llvm.rint.f32", (widen(builder, _HALF, value),))
        return (builder.fptosi if signed else builder.fptoui)(even, ir.IntType(bits))

    return lower


def _from_integer(signed: bool) -> Any:
    def lower(builder: Any, value: Any) -> Any:
        return narrow(builder, _HALF, (builder.sitofp if signed else builder.uitofp)(value, _DOUBLE))

    return lower


_CONVERSIONS: dict[str, Any] = {
    "cvt.f32.f16 $0, $1;": _to_float(_SINGLE),
    "cvt.f64.f16 $0, $1;": _to_float(_DOUBLE),
    "cvt.rn.f16.f32 $0, $1;": _from_float,
    "cvt.rn.f16.f64 $0, $1;": _from_float,
}
for _letter in "su":
    for _bits in (8, 16, 32, 64):
        _CONVERSIONS[f"cvt.rni.{_letter}{_bits}.f16 $0, $1;"] = _to_integer(_letter == "s", _bits)
        _CONVERSIONS[f"cvt.rn.f16.{_letter}{_bits} $0, $1;"] = _from_integer(_letter == "s")


# Calls of NVVM's intrinsics and inline PTX


def word_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of ``cuda.brev`` are converted to. numba-cuda defines ``cuda.brev`` only for
    unsigned integers, and would use only the lower half of an int64. Returns the arguments of any other function
    unchanged."""
    if getattr(function, "typing_key", None) is cuda.brev and args and types.unliteral(args[0]) == types.int64:
        return (types.uint64, *args[1:])
    return args


class PrimitiveBuilder(TotalBuilder):
    """A builder that replaces calls of NVVM intrinsics and inline PTX by calls of primitives that each back end
    defines."""

    def call(self, fn: Any, args: Any, *rest: Any, **options: Any) -> Any:
        found = _of_assembly(fn.asm) if isinstance(fn, ir.InlineAsm) else _INTRINSICS.get(fn.name)
        if found is None:
            return super().call(fn, args, *rest, **options)
        return found(self, *args)


def _of_assembly(text: str) -> Any:
    # Cache operators are hints, without which an access has the same meaning. Only ``cv`` makes an access atomic.
    match text.split(" "):
        case [opcode, "$0,", "[$1];"] if opcode.startswith("ld.global."):
            return _load_anew if opcode.startswith("ld.global.cv") else _load
        case [opcode, "[$0],", "$1;"] if opcode.startswith("st.global."):
            return _store
    return _ASSEMBLY.get(text)


def _load(builder: Any, pointer: Any) -> Any:
    return builder.load(pointer)


def _load_anew(builder: Any, pointer: Any) -> Any:
    size = pointer.type.pointee.get_abi_size(_LAYOUT)
    return builder.load_atomic(pointer, "monotonic", size)


def _store(builder: Any, pointer: Any, value: Any) -> Any:
    return builder.store(value, pointer)


def _barrier(builder: Any) -> Any:
    return call_primitive(builder, _VOID, "oxide.block.barrier", (), site(builder, "syncthreads()"))


def _barrier_count(builder: Any, condition: Any) -> Any:
    place = site(builder, "syncthreads_count()")
    return call_primitive(builder, _INT, "oxide.block.barrier.count", (as_bit(builder, condition),), place)


def _barrier_of(how: str) -> Any:
    def lower(builder: Any, condition: Any) -> Any:
        place = site(builder, f"syncthreads_{how}()")
        bit = call_primitive(builder, _BIT, f"oxide.block.barrier.{how}", (as_bit(builder, condition),), place)
        return builder.zext(bit, _INT)

    return lower


def _shuffle(builder: Any, mask: Any, mode: Any, value: Any, lane: Any, clamp: Any) -> Any:
    how = _SHUFFLES[mode.constant]
    place = site(builder, f"shfl_{'' if how == 'idx' else how.replace('bfly', 'xor') + '_'}sync()")
    moved = call_primitive(builder, _INT, f"oxide.warp.shuffle.{how}.i32", (mask, value, lane), place)
    return builder.insert_value(ir.Constant(_PAIR, ir.Undefined), moved, 0)


def _vote(builder: Any, mask: Any, mode: Any, condition: Any) -> Any:
    how = _VOTES[mode.constant]
    place = site(builder, "eq_sync()" if how == "uniform" else f"{how}_sync()")
    nothing = ir.Constant(_PAIR, ir.Undefined)
    if how == "ballot":
        lanes = call_primitive(builder, _INT, "oxide.warp.ballot", (mask, condition), place)
        return builder.insert_value(nothing, lanes, 0)
    if how == "uniform":
        everyone = call_primitive(builder, _BIT, "oxide.warp.all", (mask, condition), place)
        anyone = call_primitive(builder, _BIT, "oxide.warp.any", (mask, condition), place)
        return builder.insert_value(nothing, builder.or_(everyone, builder.not_(anyone)), 1)
    return builder.insert_value(
        nothing, call_primitive(builder, _BIT, f"oxide.warp.{how}", (mask, condition), place), 1
    )


def _warp_sync(builder: Any, mask: Any) -> Any:
    return call_primitive(builder, _VOID, "oxide.warp.sync", (mask,), site(builder, "syncwarp()"))


def _match_any(kind: str) -> Any:
    def lower(builder: Any, mask: Any, value: Any) -> Any:
        place = site(builder, "match_any_sync()")
        return call_primitive(builder, _INT, f"oxide.warp.match.any.{kind}", (mask, value), place)

    return lower


def _match_all(kind: str) -> Any:
    def lower(builder: Any, mask: Any, value: Any) -> Any:
        place = site(builder, "match_all_sync()")
        lanes = call_primitive(builder, _INT, f"oxide.warp.match.all.{kind}", (mask, value), place)
        agreed = builder.icmp_unsigned("!=", lanes, _INT(0))
        both = builder.insert_value(ir.Constant(_PAIR, ir.Undefined), lanes, 0)
        return builder.insert_value(both, agreed, 1)

    return lower


def _fence(scope: str) -> Any:
    def lower(builder: Any) -> Any:
        return call_primitive(builder, _VOID, f"oxide.fence.{scope}.{_SEQUENTIALLY_CONSISTENT}", ())

    return lower


def _atomic(operation: str) -> Any:
    def lower(builder: Any, pointer: Any, value: Any) -> Any:
        return builder.atomic_rmw(operation, pointer, value, "monotonic")

    return lower


def _extreme(operation: str) -> Any:
    """Returns a lowering of ``atomic.max`` or ``atomic.min`` of floats. A NaN in memory is kept, and a NaN operand has
    no effect."""

    def lower(builder: Any, pointer: Any, value: Any) -> Any:
        nothing = value.type(-math.inf if operation == "fmaximum" else math.inf)
        number = builder.select(builder.fcmp_unordered("uno", value, value), nothing, value)
        return builder.atomic_rmw(operation, pointer, number, "monotonic")

    return lower


def _grid(builder: Any, which: Any) -> Any:
    return _WORD(0)  # the handle of a grid is not used, because there is only one grid


def _grid_sync(builder: Any, grid: Any, flags: Any) -> Any:
    call_primitive(builder, _VOID, GRID_BARRIER, (), site(builder, "this_grid().sync()"))
    return _INT(0)


class GridGroupSync(AbstractTemplate):  # type: ignore[misc]
    """The typing of ``this_grid().sync()``. oxide lowers each call on its own, because each call has its own fault
    site. numba-cuda's own function is compiled once for all calls."""

    key = "oxide.grid_group.sync"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return None if args or kws else signature(types.int32, recvr=self.this)


@lowering_registry.lower(GridGroupSync.key, GridGroup)
def _lower_grid_group_sync(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _grid_sync(builder, args[0], None)


def _named(name: str, result: Any) -> Any:
    """Returns a lowering that emits a call of the function ``name``, which both back ends define."""

    def lower(builder: Any, *args: Any) -> Any:
        return call_primitive(builder, result, name, args)

    return lower


def _active_mask(builder: Any) -> Any:
    return call_primitive(builder, _INT, "oxide.warp.active_mask", (), site(builder, "activemask()"))


def _lanes_below(builder: Any) -> Any:
    lane = call_primitive(builder, _INT, "llvm.nvvm.read.ptx.sreg.laneid", ())
    return builder.sub(builder.shl(_INT(1), lane), _INT(1))


def _dynamic_bytes(builder: Any) -> Any:
    return builder.trunc(call_primitive(builder, _WORD, "oxide.shared.dynamic.bytes", ()), _INT)


_INTRINSICS: dict[str, Any] = {
    "llvm.nvvm.barrier0": _barrier,
    "llvm.nvvm.barrier0.popc": _barrier_count,
    "llvm.nvvm.barrier0.and": _barrier_of("and"),
    "llvm.nvvm.barrier0.or": _barrier_of("or"),
    "llvm.nvvm.shfl.sync.i32": _shuffle,
    "llvm.nvvm.vote.sync": _vote,
    "llvm.nvvm.bar.warp.sync": _warp_sync,
    **{f"llvm.nvvm.match.any.sync.{kind}": _match_any(kind) for kind in ("i32", "i64")},
    **{f"llvm.nvvm.match.all.sync.{kind}": _match_all(kind) for kind in ("i32", "i64")},
    **{f"llvm.nvvm.membar.{how}": _fence(scope) for how, scope in _FENCES.items()},
    **{f"llvm.nvvm.atomic.load.add.f{bits}.p0f{bits}": _atomic("fadd") for bits in (32, 64)},
    **{f"llvm.nvvm.atomic.load.{step}.32.p0i32": _atomic(f"u{step}_wrap") for step in ("inc", "dec")},
    **{f"___numba_atomic_u64_{step}": _atomic(f"u{step}_wrap") for step in ("inc", "dec")},
    "cudaCGGetIntrinsicHandle": _grid,
    "cudaCGSynchronize": _grid_sync,
    "___numba_atomic_double_add": _atomic("fadd"),
    **{f"___numba_atomic_{kind}_sub": _atomic("fsub") for kind in ("float", "double")},
    **{
        f"___numba_atomic_{kind}_{which}": _extreme(f"f{which}imum")
        for kind in ("float", "double")
        for which in ("max", "min")
    },
    # These work like C's fmax and fmin: for a NaN and a number, the result is the number.
    **{
        f"___numba_atomic_{kind}_nan{which}": _atomic(f"f{which}")
        for kind in ("float", "double")
        for which in ("max", "min")
    },
}

_ASSEMBLY: dict[str, Any] = {
    "activemask.b32 $0;": _active_mask,
    "mov.u32 $0, %lanemask_lt;": _lanes_below,
    "mov.u32 $0, %dynamic_smem_size;": _dynamic_bytes,
    "nanosleep.u32 $0;": _named("oxide.nanosleep", _VOID),
    "brkpt;": _named("oxide.breakpoint", _VOID),
    "tanh.approx.f32 $0, $1;": _named("__nv_fast_tanhf", ir.FloatType()),
    **_CONVERSIONS,
}


def _array(name: str) -> None:
    """Registers the lowering of ``cuda.shared.array`` or ``cuda.local.array``, for each form of the call that
    numba-cuda types."""
    declaration = getattr(cuda, name).array

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        shape = sig.args[0]
        lengths = [int(part.literal_value) for part in (shape if isinstance(shape, types.BaseTuple) else (shape,))]
        dtype = parse_dtype(sig.args[1])
        given = sig.args[2] if len(sig.args) == 3 else None
        alignment = int(given.literal_value) if isinstance(given, types.IntegerLiteral) else None
        return _block_array(context, builder, name, lengths, dtype, alignment)

    for shape in (types.IntegerLiteral, types.BaseTuple):
        for alignment in ((), (types.IntegerLiteral,), (types.NoneType,)):
            lowering_registry.lower(declaration, shape, types.Any, *alignment)(lower)


_array("shared")
_array("local")


def _block_array(context: Any, builder: Any, name: str, shape: list[int], dtype: Any, alignment: int | None) -> Any:
    dynamic = name == "shared" and shape == [0]
    if min(shape) < 1 and not dynamic:
        raise ValueError(f"cuda.{name}.array: the shape is {tuple(shape)}; every length is 1 or more")
    cudaimpl._validate_alignment(alignment)
    element = context.get_data_type(dtype)
    item = context.get_abi_sizeof(element)
    natural = 1 << (context.get_abi_alignment(element) - 1).bit_length()
    count = math.prod(shape)
    if name == "local":
        memory = local_memory(context, builder, element, count, alignment)
    elif dynamic:
        memory = call_primitive(builder, _BYTE_POINTER, "oxide.shared.dynamic", ())
    else:
        memory = static_memory(builder, count * item, alignment or max(16, natural))
    lengths = [_WORD(length) for length in shape]
    if dynamic:
        given = call_primitive(builder, _WORD, "oxide.shared.dynamic.bytes", ())
        lengths = [builder.udiv(given, _WORD(item))]
    strides = [_WORD(item * math.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    kind = types.Array(dtype, len(shape), "C")
    array = context.make_array(kind)(context, builder)
    context.populate_array(
        array,
        data=builder.bitcast(memory, array.data.type),
        shape=lengths,
        strides=strides,
        itemsize=_WORD(item),
        meminfo=None,
    )
    return array._getvalue()
