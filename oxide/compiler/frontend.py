"""Python to LLVM IR: numba-cuda's typing and lowering, with oxide's own contexts and vocabulary.

The result is numba-cuda's dialect (LLVM 7, typed pointers); ``compiler.ir`` translates it. Nothing here knows a
device: a kernel is typed and lowered once. Only this file and ``lowering/`` import numba.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import errors as core_errors
from numba.cuda import compiler as numba_compiler
from numba.cuda import types, utils
from numba.cuda.core import errors
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.compiler_machinery import AnalysisPass
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.flags import CUDAFlags
from numba.cuda.lowering import CUDALower
from numba.cuda.target import CUDATargetContext, CUDATypingContext

from ..device.types import bool_
from ..errors import CompileError
from .diagnostics import compile_error
from .faults import FaultSite
from .lowering import assertions as assertion_lowering
from .lowering import (  # noqa: F401 - importing them registers their topics
    atomic,
    barrier,
    constant,
    half,
    mathematics,
    python_mathematics,
    shared,
    tiles,
    vectors,
    view_loops,
    warp,
)
from .lowering import debug as debug_lowering
from .lowering import slices as slice_lowering
from .lowering import unchecked as unchecked_lowering  # noqa: F401 - registers itself
from .lowering import unroll as unroll_lowering  # noqa: F401 - registers itself
from .lowering.function import DeviceDispatcher, function_type
from .lowering.registry import lowering_registry, note, session, sites, typing_registry
from .lowering.types import (
    NUMBA_TYPES,
    conversion_problem,
    display,
    lower_mixed_comparison,
    mixed_arguments,
    mixed_comparison,
    unify_mixed,
)
from .open_parameters import Lifted
from .signature import Parameter


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel in numba-cuda's dialect: the modules of the kernel and of its device functions, the kernel's symbol,
    and all sites known, in the numbering that the modules use."""

    modules: tuple[str, ...]
    symbol: str
    sites: tuple[FaultSite, ...]


@global_compiler_lock
def lower(
    name: str,
    function: Callable[..., Any],
    parameters: tuple[Parameter, ...],
    fastmath: bool,
    *,
    located: bool = False,
) -> LoweredKernel:
    """Types and lowers a kernel; with ``located``, its loads, stores and calls carry their places in the source.
    Raises ``CompileError`` in the user's terms."""
    args = tuple(_parameter_type(parameter) for parameter in parameters)
    session.notes.clear()
    session.fastmath = fastmath
    session.located = located
    session.file, session.line = function.__code__.co_filename, 0
    try:
        with _no_overloads():
            result = compile_function(function, args, types.void)
    except CompileError:
        raise
    except Exception as error:
        expected = isinstance(error, errors.NumbaError | core_errors.NumbaError | NotImplementedError)
        full = os.environ.get("OXIDE_TRACEBACK") == "full"
        place = (session.file, session.line)
        raise compile_error(name, function, error, session.notes, place) from (error if full or not expected else None)
    numba_compiler.kernel_fixup(result.library.get_function(result.fndesc.llvm_func_name), False)
    libraries = [result.library, *_linked(result.library)]
    modules = tuple(dict.fromkeys(str(module) for library in libraries for module in library.modules))
    return LoweredKernel(modules, result.fndesc.llvm_func_name, tuple(sites))


def compile_function(function: Callable[..., Any], args: tuple[Any, ...], return_type: Any) -> Any:
    """Types and lowers one Python function for some argument types, as numba-cuda's ``compile_cuda`` does.

    ``return_type`` is what the result is converted to, or None for what the body returns."""
    flags = CUDAFlags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.compute_capability = (9, 0)
    if session.fastmath:
        flags.fastmath = True
    typing_context, target_context = _contexts()
    with utils.numba_target_override(), warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NumbaWarning)
        result = numba_compiler.compile_extra(
            typingctx=typing_context,
            targetctx=target_context,
            func=function,
            args=args,
            return_type=return_type,
            flags=flags,
            locals={},
            pipeline_class=_Pipeline,
            call_conv=CUDACallConv(target_context),
            abi_info={},
        )
    result.library.finalize()
    return result


@contextmanager
def _no_overloads() -> Iterator[None]:
    """Leaves numba's Python implementations of operators and builtins out: all that kernels know is oxide's own.

    numba-cuda would compile them for "the current device": looking one up, if only to find that it does not fit, makes
    a CUDA context. numba holds its compiler lock through the typing of every function, so nobody else sees the change.
    """

    def refuse(dispatcher: Any, args: tuple[Any, ...], return_type: Any = None) -> Any:
        raise core_errors.TypingError(f"{dispatcher.py_func.__name__} is not defined in kernels")

    original = CUDADispatcher.compile_device
    CUDADispatcher.compile_device = refuse
    try:
        yield
    finally:
        CUDADispatcher.compile_device = original


class _TypingContext(CUDATypingContext):  # type: ignore[misc]
    def load_additional_registries(self) -> None:
        super().load_additional_registries()
        self.install_registry(typing_registry)

    def resolve_value_type(self, val: Any) -> Any:
        if isinstance(val, np.ndarray) and (kind := constant.constant_array_type(val)) is not None:
            return kind
        return super().resolve_value_type(bool if val is bool_ else val)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        _refuse(func, args)
        args = mathematics.power_arguments(func, half.half_arguments(func, args))
        try:
            return mixed_comparison(func, args) or super().resolve_function_type(func, mixed_arguments(func, args), kws)
        except core_errors.TypingError as error:
            # numba's own error class is not what numba-cuda catches to go on and to add the place in the source.
            raise errors.TypingError(str(error)) from error

    def unify_pairs(self, first: Any, second: Any) -> Any:
        return half.unify_half(first, second) or unify_mixed(first, second) or super().unify_pairs(first, second)

    def resolve_static_getitem(self, value: Any, index: Any) -> Any:
        if isinstance(value, tiles.TileRefType):
            tiles.check_position(value, index)
        return super().resolve_static_getitem(value, index)

    def resolve_static_setitem(self, target: Any, index: Any, value: Any) -> Any:
        if isinstance(target, tiles.TileRefType):
            tiles.check_position(target, index)
        return super().resolve_static_setitem(target, index, value)

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        # Here, as the templates see a constant's type without its number.
        if isinstance(target, shared.BlockArrayType | tiles.TileRefType) and not shared.check_value(
            target.dtype, value
        ):
            return None
        try:
            return super().resolve_setitem(target, index, value)
        except (errors.TypingError, core_errors.TypingError):
            return None  # and the caller raises, with the place in the source

    def resolve_setattr(self, target: Any, attr: str, value: Any) -> Any:
        if isinstance(target, slice_lowering.RefType) and attr == "value":
            slice_lowering.check_store(target, value)
        return super().resolve_setattr(target, attr, value)


def _refuse(function: Any, args: Any) -> None:
    """Refuses what numba would take, but with another meaning than the author's."""
    key = getattr(function, "typing_key", function)
    plain = [types.unliteral(argument) for argument in args]
    if key is range and any(isinstance(argument, types.Float) for argument in plain):
        note("range(...) takes integers; convert a float, as in i64(x)")
        raise errors.TypingError("range of a float")
    if key is print and not debug_lowering.check_print(args):
        raise errors.TypingError("print of something else")
    if key is operator.getitem and isinstance(args[0], types.BaseTuple):
        note("a tuple in a kernel is indexed with a constant: its elements are variables; use a LocalArray")
        raise errors.TypingError("index of a tuple")


class _TargetContext(CUDATargetContext):  # type: ignore[misc]
    def load_additional_registries(self) -> None:
        super().load_additional_registries()
        self.install_registry(lowering_registry)


class _Lower(CUDALower):  # type: ignore[misc]
    def notify_loc(self, loc: Any) -> None:
        session.file, session.line = loc.filename, loc.line
        if session.located:
            # llvmlite puts this on every instruction that follows; ir.py keeps it where memory is touched.
            place = [loc.filename, ir.Constant(ir.IntType(32), loc.line)]
            self.builder.debug_metadata = self.module.add_metadata(place)

    def lower_static_raise(self, inst: Any) -> None:
        # What is left of an assert in bytecode; `raise` itself was refused before.
        if inst.exc_class is AssertionError:
            assertion_lowering.lower_failure(self.builder, inst.exc_args)
        super().lower_static_raise(inst)

    def lower_print(self, inst: Any) -> None:
        kinds = list(self.fndesc.calltypes[inst].args)
        for number, text in inst.consts.items():
            if isinstance(text, str):
                kinds[number] = types.literal(text)
        values = [self.loadvar(argument.name) for argument in inst.args]
        debug_lowering.lower_print(self.context, self.builder, kinds, values)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        kinds = self.fndesc.calltypes[expr].args
        if mixed_comparison(op, kinds) is None:
            return super().lower_binop(resty, expr, op)
        operands = [
            self.context.cast(self.builder, self.loadvar(operand.name), self.typeof(operand.name), kind)
            for operand, kind in zip((expr.lhs, expr.rhs), kinds, strict=True)
        ]
        return lower_mixed_comparison(self.builder, op, kinds, *operands)


class _NativeLowering(numba_compiler.CUDANativeLowering):  # type: ignore[misc]
    @property
    def lowering_class(self) -> Any:
        return _Lower


class _CheckReturns(AnalysisPass):  # type: ignore[misc]
    """Refuses a returned value that the declared type of the result does not take."""

    _name = "oxide_check_returns"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        if not isinstance(state.return_type, types.Number | types.Boolean):
            return False
        for block in state.func_ir.blocks.values():
            returned = block.terminator
            if isinstance(returned, numba_ir.Return):
                cast = state.func_ir.get_definition(returned.value)
                value = state.typemap[cast.value.name] if isinstance(cast, numba_ir.Expr) else state.return_type
                why = conversion_problem(state.return_type, value)
                if why is not None:
                    note(f"{state.func_id.func_name} is declared to return {display(state.return_type)} and {why}")
                    raise errors.TypingError(f"{why} at {returned.loc.filename} ({returned.loc.line})")
        return False


class _Pipeline(numba_compiler.CUDACompiler):  # type: ignore[misc]
    def define_cuda_lowering_pipeline(self, state: Any) -> Any:
        passes = super().define_cuda_lowering_pipeline(state)
        passes.passes = [
            (_NativeLowering, text) if kind is numba_compiler.CUDANativeLowering else (kind, text)
            for kind, text in passes.passes
        ]
        passes.passes.insert(0, (_CheckReturns, "check the types of returned values"))
        return passes


numba_compiler.register_pass(mutates_CFG=True, analysis_only=False)(_NativeLowering)
numba_compiler.register_pass(mutates_CFG=False, analysis_only=True)(_CheckReturns)

_context_pair: tuple[Any, Any] | None = None
DeviceDispatcher.compile_function = staticmethod(compile_function)


def _contexts() -> tuple[Any, Any]:
    global _context_pair
    if _context_pair is None:
        typing_context = _TypingContext()
        _context_pair = typing_context, _TargetContext(typing_context)
    return _context_pair


def _parameter_type(parameter: Parameter) -> Any:
    if isinstance(parameter.lifted, Lifted):
        return function_type(parameter.lifted)
    if parameter.lifted is not None:
        elements = [_parameter_type(element) for element in parameter.lifted.elements]
        return types.BaseTuple.from_types(elements, parameter.lifted.made_of)
    scalar = NUMBA_TYPES[parameter.scalar.name]
    if parameter.kind == "scalar":
        return scalar
    if parameter.kind == "atomic":
        return atomic.AtomicSliceType(scalar, parameter.name)
    return slice_lowering.SliceType(scalar, parameter.kind != "slice", parameter.name, parameter.tile)


def _linked(library: Any) -> list[Any]:
    found: list[Any] = []
    pending = list(library._linking_libraries)
    while pending:
        linked = pending.pop()
        if linked not in found:
            found.append(linked)
            pending.extend(linked._linking_libraries)
    return found
