"""Translates Python to LLVM IR: numba-cuda's typing and lowering, with oxide's own contexts and vocabulary.

The result is in numba-cuda's dialect (LLVM 7, typed pointers); ``compiler.ir`` translates it. Nothing here depends on a
device: a kernel is typed and lowered once. Only this package imports numba.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from types import BuiltinFunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import errors as core_errors
from numba.cuda import cgutils, types, utils
from numba.cuda import compiler as numba_compiler
from numba.cuda.core import errors, targetconfig
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.imputils import fix_returning_optional
from numba.cuda.cudadrv import nvvm
from numba.cuda.extending import core_models, register_model
from numba.cuda.flags import CUDAFlags
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.types.ext_types import GridGroup

from oxide.compiler.check.numba_errors import NO_TEXT, NO_UFUNC, Failure, compile_error
from oxide.compiler.check.numpy_functions import called_in_kernels
from oxide.compiler.frontend.economy import Compiler, without_waste
from oxide.compiler.frontend.lowering.function import DeviceDispatcher, compiled_with, function_type, twin_of
from oxide.compiler.frontend.lowering.registry import (
    Session,
    array_places,
    compiler_pass,
    is_numbas,
    lowering_registry,
    note,
    refused_at,
    running,
    session,
    sites,
    typing_registry,
)
from oxide.compiler.frontend.lowering.types import (
    NUMBA_TYPES,
    OPEN,
    ComponentsType,
    StructuredType,
    argument_type,
    conversion_problem,
    display,
    numba_type,
    structured,
)
from oxide.compiler.frontend.variables import UncountedLower
from oxide.compiler.ir.portable import LoweredKernel
from oxide.compiler.signature.signature import Closed, Lifted, NumbaParameter
from oxide.compiler.signature.tuples import Fields
from oxide.compiler.signature.untyped_arguments import ArgumentType, Captured
from oxide.compiler.source.faults import Conversion
from oxide.errors import OxideError
from oxide.host.environment import full_traceback
from oxide.host.weak_table import WeakTable
from oxide.language.types import bool_
from oxide.language.vectors import VECTORS, Vector

from .lowering import (  # noqa: F401 - importing them registers their topics
    atomic,
    captured,
    common,
    complex_numbers,
    half,
    inference,
    integers,
    literals,
    mathematics,
    numba_vocabulary,
    primitives,
    python_numbers,
    ranges,
    recorded_typings,
    refs,
    shared,
    structure_operations,
    vector_operations,
    vectors,
    views,
)
from .lowering import debug as debug_lowering
from .lowering import slices as slice_lowering
from .lowering.tensor import (  # noqa: F401 - they register themselves
    asynchronous,
    barriers,
    copies,
    fragments,
    shared_tiles,
    wgmma,
)
from .lowering.total_builder import TotalBuilder, lower_fused
from .lowering.whole_numbers import end_of_chain, goes_on


@global_compiler_lock
def lower(
    name: str,
    function: Callable[..., Any],
    parameters: tuple[Closed, ...],
    fastmath: bool,
    *,
    numba_style: bool = False,
    fma: bool = True,
    located: bool = False,
    constants: Mapping[int, str] | None = None,
    keeps_types: bool = False,
) -> LoweredKernel:
    """Types and lowers a kernel. Raises ``CompileError`` in terms of the kernel's source.

    With ``numba_style``, the kernel has numba-cuda's semantics, otherwise those of oxide's typed vocabulary.
    With ``fma``, products are fused into sums by the rules of ``lower_fused``. With ``located``, instructions carry
    their places in the source. ``constants`` maps the ``id`` of each array outside the kernel to the kernel's name for
    the array. With ``keeps_types``, which the interpreter needs, the result has the types of all expressions, and each
    fault site has the number of an expression in place of its line.
    """
    full = full_traceback()  # read first: an invalid value raises its own error
    run = Session(
        file=function.__code__.co_filename,
        fastmath=fastmath,
        fma=fma and not fastmath,  # under fastmath, LLVM chooses what to fuse
        numba_style=numba_style,
        located=located,
        constants=constants or {},
        typings=recorded_typings.Typings() if keeps_types else None,
    )
    try:
        with running(run), compiled_with(compile_function), without_waste():
            args = tuple(_parameter_type(parameter) for parameter in parameters)
            result = compile_function(function, args, types.void)
            typed = None if run.typings is None else run.typings.of(function, args)
    except (OxideError, RecursionError):
        raise
    except Exception as error:
        expected = isinstance(error, errors.NumbaError | core_errors.NumbaError | NotImplementedError)
        failure = run.failures[-1] if run.failures else Failure("", 0, None, str(error), ())
        raise compile_error(name, function, failure, numba_style=numba_style) from (
            error if full or not expected else None
        )
    numba_compiler.kernel_fixup(result.library.get_function(result.fndesc.llvm_func_name), False)
    libraries = _libraries(result.library)
    found = {each for library in libraries.values() for each in _conversions.get(library) or ()}
    conversions = sorted(found, key=lambda each: (each.file, each.line, str(each)))
    return LoweredKernel(
        tuple(libraries),
        result.fndesc.llvm_func_name,
        tuple(sites),
        array_places,
        tuple(conversions),
        typed,
        {number: array for library in libraries.values() for number, array in (_captured.get(library) or {}).items()},
    )


def compile_function(function: Callable[..., Any], args: tuple[Any, ...], return_type: Any) -> Any:
    """Types and lowers one Python function for the argument types ``args``, as numba-cuda's ``compile_cuda`` does.

    The function's result is converted to ``return_type``. If this is None, the result keeps the type that the body
    returns."""
    flags = _Flags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.compute_capability = (9, 0)
    if session().fastmath:
        flags.fastmath = True
    typing_context, target_context = _contexts()
    notes = len(session().notes)
    outer = session()
    with running(replace(outer, conversions=[], captured={})) as own:
        try:
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
        except Exception as error:
            inference.record_failure(error, function, notes)
            outer.file, outer.line, outer.span = own.file, own.line, own.span  # the failure of the caller, too
            raise
    if own.conversions:
        _conversions.set(result.library, tuple(own.conversions))
    if own.captured:
        _captured.set(result.library, own.captured)
    result.library.finalize()
    for library in _waiting.pop(result.fndesc.llvm_func_name, ()):
        _called_back.setdefault(library, []).append(result.library)
    return result


# Links between functions that call each other, because numba's own links between libraries must not form a cycle.
# ``_waiting`` maps the symbol of a function that is still being compiled to the libraries that call the function.
# ``_called_back`` maps each of these libraries to the libraries that it calls.
_waiting: dict[str, list[Any]] = {}
_called_back: WeakTable[Any, list[Any]] = WeakTable()

_conversions: WeakTable[Any, tuple[Conversion, ...]] = WeakTable()
"""The recorded conversions of each compiled function, by the function's library. A device function is compiled once for
many kernels, and each of these kernels reports the function's conversions."""

_captured: WeakTable[Any, dict[int, Captured]] = WeakTable()
"""The device arrays from outside that each compiled function names, by the function's library, which keeps them."""


class _Flags(CUDAFlags):  # type: ignore[misc]
    """Compiler flags that hash and compare only the options that were set. numba hashes and compares flags about ten
    times for each type of an operator, and gathers all options each time. That took a fifth of the front end's time."""

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, _Flags) else bool(super().__eq__(other))


class _Remembering(types.Function):  # type: ignore[misc]
    """An operator or builtin that resolves the signature of its calls once in a compilation for each tuple of argument
    types. numba tries all overloads in each round of inference, and again in lowering. That took a quarter of the front
    end's time."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        own = not session().numba_style and context.is_the_authors()
        key = self, tuple(args), tuple(kws.items()), own
        remembered = session().remembered
        found = remembered.get(key)
        if found is None:
            if not session().numba_style:
                found = complex_numbers.complex_signature(self, args) or vector_operations.vector_signature(
                    context, self, args
                )
            if found is None and own and not kws:
                found = integers.integer_signature(self, args)
            if found is None:
                found = super().get_call_type(context, args, kws)
            else:
                self._impl_keys[found.args] = self.typing_key
            remembered[key] = found
        return found

    def augment(self, other: Any) -> Any:
        return types.Function(self.templates + other.templates) if other.typing_key == self.typing_key else None


register_model(_Remembering)(core_models.OpaqueModel)


class _TypingContext(CUDATypingContext):  # type: ignore[misc]
    def __init__(self) -> None:
        self._remembering: dict[Any, _Remembering] = {}
        super().__init__()
        self.callstack = inference.PlacedCallStack()

    def _lookup_global(self, gv: Any) -> Any:
        found = super()._lookup_global(gv)
        if type(found) is not types.Function:
            return found
        return self._remembering.setdefault(found, _Remembering(found.templates))

    def load_additional_registries(self) -> None:
        super().load_additional_registries()
        self.install_registry(typing_registry)

    def resolve_value_type(self, val: Any) -> Any:
        if type(val) is not BuiltinFunctionType:
            return self._value_type(val)
        # This method is called several times for each arithmetic operator of a kernel.
        remembered = session().remembered
        found = remembered.get(val)
        if found is None:
            found = remembered[val] = self._value_type(val)
        return found

    def _value_type(self, val: Any) -> Any:
        if session().numba_style and (array := captured.type_of(val)) is not None:
            return array
        if not session().numba_style and isinstance(val, np.ndarray):
            kind = captured.constant_array_type(val)
            if kind is not None:
                return kind
        if not session().numba_style:
            structure = structure_operations.type_of_constant(val)
            if structure is not None:
                return structure
            literal = complex_numbers.type_of_constant(val)
            if literal is not None:
                return literal
            if type(val) is float and self.is_the_authors():
                return OPEN
            if (narrow := half.type_of_constant(val)) is not None:
                return narrow
            val = complex_numbers.in_kernels(called_in_kernels(val))
        return super().resolve_value_type(bool if val is bool_ else twin_of(val))

    def resolve_module_constants(self, typ: Any, attr: str) -> Any:
        if not hasattr(typ.pymod, attr):
            raise errors.TypingError(f"Unknown attribute '{attr}' of type {typ}")
        value = getattr(typ.pymod, attr)
        if type(value) is int and not session().numba_style and self.is_the_authors():
            return types.literal(value)  # as a literal, it takes the type of a float operand
        return super().resolve_module_constants(typ, attr)

    def is_the_authors(self) -> bool:
        """Returns whether the kernel's author, and not numba, wrote the function being typed."""
        function = next(iter(self.callstack), None)
        return function is None or not is_numbas(function.func_id.filename)

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        given = args
        if not session().numba_style:
            if structure_operations.is_structures(func):
                return func.get_call_type(self, args, kws)
            found = vector_operations.vector_signature(self, func, args)
            if found is not None:
                return func.get_call_type(self, args, kws)
            args = literals.literal_arguments(func, args)
        args = numba_vocabulary.word_arguments(func, half.half_arguments(func, args))
        if not session().numba_style:
            _refuse(func, args)
            args = python_numbers.power_arguments(func, complex_numbers.complex_arguments(func, args))
            found = complex_numbers.complex_signature(func, args)
            if found is not None and not isinstance(func, types.Function):
                return found
        elif _makes_text(func, args):
            # Refused early: numba would spend seconds on compiling its own number formatting, which needs heap memory.
            raise errors.TypingError(f"{NO_TEXT} str{args}")
        try:
            if session().numba_style:
                return super().resolve_function_type(func, integers.as_numbas(args), kws)
            if getattr(func, "typing_key", func) is range:
                return ranges.counted(super().resolve_function_type(func, ranges.range_arguments(args), kws))
            args = integers.small_integers(func, args)
            if not (isinstance(func, _Remembering) and integers.integer_signature(func, args)):
                args = integers.closed_arguments(func, args)
            return literals.open_result(func, given, super().resolve_function_type(func, args, kws))
        except core_errors.TypingError as error:
            # numba-cuda does not catch numba's own error class, but it must catch this error: it then tries other
            # overloads, and adds the place in the source.
            raise errors.TypingError(str(error)) from error

    def resolve_getattr(self, typ: Any, attr: str) -> Any:
        if isinstance(typ, GridGroup) and attr == "sync":
            return types.BoundFunction(numba_vocabulary.GridGroupSync, typ)
        return super().resolve_getattr(typ, attr)

    def can_convert(self, fromty: Any, toty: Any) -> Any:
        found = super().can_convert(fromty, toty)
        return half.half_conversion(fromty, toty) if found is None else found

    # ``can_convert`` allows a conversion from or to a narrow float for a function's return value. The two methods below
    # forbid it for the arguments of a call, which ``resolve_function_type`` converts by its own rules, if at all.

    def _rate_arguments(self, actualargs: Any, formalargs: Any, **options: Any) -> Any:
        return (
            None
            if _differ_in_a_half(actualargs, formalargs)
            else super()._rate_arguments(actualargs, formalargs, **options)
        )

    def install_possible_conversions(self, actualargs: Any, formalargs: Any) -> Any:
        return not _differ_in_a_half(actualargs, formalargs) and super().install_possible_conversions(
            actualargs, formalargs
        )

    def unify_pairs(self, first: Any, second: Any) -> Any:
        if first == second:
            return first
        if session().numba_style:
            return half.unify_half(first, second) or super().unify_pairs(first, second)
        mixed = (
            complex_numbers.unify_complex(first, second)
            or literals.unify_literals(first, second)
            or half.unify_half(first, second)
            or integers.unify_integers(first, second)
        )
        return mixed or super().unify_pairs(first, second)

    def resolve_static_getitem(self, value: Any, index: Any) -> Any:
        _check_index(value, index)
        return super().resolve_static_getitem(value, index)

    def resolve_static_setitem(self, target: Any, index: Any, value: Any) -> Any:
        _refuse_change(target)
        _check_index(target, index)
        return super().resolve_static_setitem(target, index, value)

    def resolve_setitem(self, target: Any, index: Any, value: Any) -> Any:
        _refuse_change(target)
        # The value is checked here, because the templates see a constant's type without its value.
        if isinstance(
            target, shared.BlockArrayType | refs.TileRefType | slice_lowering.SliceType
        ) and not common.check_value(target.dtype, value):
            return None
        try:
            return super().resolve_setitem(target, index, value)
        except (errors.TypingError, core_errors.TypingError):
            return None  # the caller then raises an error with the place in the source

    def resolve_setattr(self, target: Any, attr: str, value: Any) -> Any:
        if isinstance(target, refs.RefType) and attr == "value":
            if not common.check_value(target.dtype, value):
                raise errors.TypingError("the value of an element")
        elif isinstance(target, ComponentsType | StructuredType):
            _refuse_change(target)
        elif not session().numba_style and isinstance(target, types.Complex):
            note("the parts of a complex number are not assigned to: make another one, as in complex(real, z.imag)")
            raise errors.TypingError("a part of a complex number")
        return super().resolve_setattr(target, attr, value)


def _refuse_change(target: Any) -> None:
    if isinstance(target, ComponentsType):
        note(f"a {display(target)} does not change: make another one, as in {target.name}(…)")
        raise errors.TypingError("a component of a vector")
    if isinstance(target, StructuredType):
        field = target.fields[0]
        note(f"a {display(target)} does not change: make another one, as in a._replace({field}=…), and store it whole")
        raise errors.TypingError("a field of a structure")


def _check_index(array: Any, index: Any) -> None:
    if isinstance(array, ComponentsType):
        vector_operations.check_place(array, index)
    if isinstance(array, refs.TileRefType):
        refs.check_position(array, index)
    slice_lowering.refuse_from_the_end(array, index)


def _differ_in_a_half(actual: Any, formal: Any) -> bool:
    return any(
        first != second and half.half_conversion(first, second) for first, second in zip(actual, formal, strict=False)
    )


def _makes_text(function: Any, args: Any) -> bool:
    named = {getattr(function, "typing_key", function), getattr(function, "instance_type", None)}
    return bool(named & {str, types.unicode_type}) and not all(
        isinstance(types.unliteral(argument), types.UnicodeType) for argument in args
    )


def _refuse(function: Any, args: Any) -> None:
    """Refuses calls that numba would accept, but with a meaning that the author did not intend."""
    key = getattr(function, "typing_key", function)
    plain = [types.unliteral(argument) for argument in args]
    if key is range and any(isinstance(argument, types.Float) for argument in plain):
        note("range(...) takes integers; convert a float, as in i64(x)")
        raise errors.TypingError("range of a float")
    if key is math.ldexp and len(plain) == 2 and isinstance(plain[1], types.Float):
        note(f"math.ldexp(x, n) takes an integer n, not {display(plain[1])}; convert it, as in i32(n)")
        raise errors.TypingError("ldexp of a float")
    if key is print and not debug_lowering.check_print(args):
        raise errors.TypingError("print of something else")
    if key is operator.getitem and isinstance(args[0], types.BaseTuple) and not isinstance(args[0], ComponentsType):
        note("a tuple in a kernel is indexed with a constant: its elements are variables; use a LocalArray")
        raise errors.TypingError("index of a tuple")


class _TargetContext(CUDATargetContext):  # type: ignore[misc]
    def __init__(self, typing_context: Any) -> None:
        self._internal: dict[bool, dict[Any, Any]] = {False: {}, True: {}}
        super().__init__(typing_context)

    @property
    def cached_internal_func(self) -> dict[Any, Any]:
        """Returns numba's own functions that were compiled with the run's ``fastmath``, which numba asks for by this
        name."""
        return self._internal[session().fastmath]

    @cached_internal_func.setter
    def cached_internal_func(self, _: dict[Any, Any]) -> None:
        pass  # numba begins with one empty table

    def load_additional_registries(self) -> None:
        super().load_additional_registries()
        self.install_registry(lowering_registry)

    def _compile_subroutine_no_cache(
        self, builder: Any, impl: Any, sig: Any, locals: Any = None, flags: Any = None
    ) -> Any:
        # A copy of numba-cuda's own method that uses another pipeline.
        flags = flags or targetconfig.ConfigStack().top().copy()
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        library, convention = self.codegen().create_library(impl.__name__), CUDACallConv(self)
        pipeline = _SubroutinePipeline(
            self.typing_context, self, library, sig.args, sig.return_type, flags, locals or {}, convention, {}
        )
        result = pipeline.compile_extra(impl)
        self.active_code_library.add_linking_library(result.library)
        return result

    def get_ufunc_info(self, ufunc_key: Any) -> Any:
        try:
            return super().get_ufunc_info(ufunc_key)
        except KeyError:
            raise errors.TypingError(f"{NO_UFUNC} np.{ufunc_key.__name__}") from None

    def call_unresolved(self, builder: Any, name: str, sig: Any, args: Any) -> Any:
        _waiting.setdefault(name, []).append(self.active_code_library)
        kind = self.fndesc.call_conv.get_function_type(sig.return_type, sig.args)
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        status, result = self.fndesc.call_conv.call_function(builder, function, sig.return_type, sig.args, args)
        with cgutils.if_unlikely(builder, status.is_error):
            self.fndesc.call_conv.return_status_propagate(builder, status)
        return fix_returning_optional(self, builder, sig, status, result)

    @property
    def enable_nrt(self) -> bool:
        # Reference counting is off even if numba-cuda is configured for it, because a kernel allocates nothing.
        return False

    @cached_property
    def target_data(self) -> Any:
        # numba-cuda asks libNVVM, which may not be installed.
        return llvm.create_target_data(nvvm._datalayout)


class _TotalLower(UncountedLower):
    """Lowers numba's own Python functions with total arithmetic (``arithmetic.py``). numba compiles such functions
    to implement its operations."""

    builder_class: type[TotalBuilder] = TotalBuilder

    def setup_function(self, fndesc: Any) -> None:
        super().setup_function(fndesc)
        self.builder = self.builder_class(self.entry_block)
        self.call_helper = self.call_conv.init_call_helper(self.builder)


_I32 = ir.IntType(32)


class _Lower(_TotalLower):
    builder_class = numba_vocabulary.PrimitiveBuilder

    def notify_loc(self, loc: Any) -> None:
        inference.follow(loc)
        if session().located:
            # llvmlite attaches this metadata to all following instructions; ``compiler/ir/portable.py`` keeps it.
            name, first = self.func_ir.func_id.func_name, self.func_ir.loc.line
            place = [loc.filename, _I32(loc.line), name, _I32(first)]
            self.builder.debug_metadata = self.module.add_metadata(place)

    def lower_static_raise(self, inst: Any) -> None:
        # In bytecode, an assert ends in a raise. An explicit `raise` in the source was refused earlier.
        if inst.exc_class is AssertionError:
            debug_lowering.lower_failure(self.builder, inst.exc_args)
        super().lower_static_raise(inst)

    def lower_print(self, inst: Any) -> None:
        kinds = list(self.fndesc.calltypes[inst].args)
        for number, text in inst.consts.items():
            if isinstance(text, str):
                kinds[number] = types.literal(text)
        values = [self.loadvar(argument.name) for argument in inst.args]
        if inst.vararg is not None:  # Python passes more than 30 arguments as a tuple
            values += cgutils.unpack_tuple(self.builder, self.loadvar(inst.vararg.name))
        debug_lowering.lower_print(self.context, self.builder, kinds, values)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        value = super().lower_expr(resty, expr)
        if expr.op in ("binop", "inplace_binop", "unary", "call") and not session().numba_style:
            function = self.typeof(expr.func.name) if expr.op == "call" else expr.fn
            return value if goes_on(function) else end_of_chain(self.builder, value)
        return value

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        if session().fma:
            fused = lower_fused(self, resty, expr, op)
            if fused is not None:
                return fused
        return super().lower_binop(resty, expr, op)

    def _lower_call_RecursiveCall(self, fnty: Any, expr: Any, signature: Any) -> Any:
        kind = fnty.dispatcher_type
        if signature.args not in kind.dispatcher.overloads:
            return super()._lower_call_RecursiveCall(fnty, expr, signature)
        # The callee has already been compiled, for argument types that differ from the caller's.
        arguments = self.fold_call_args(fnty, signature, expr.args, expr.vararg, expr.kws)
        call = self.context.get_function(kind, signature)
        self.context.add_linking_libs(call.libs)
        return call(self.builder, arguments, self.loc)


class _NativeLowering(numba_compiler.CUDANativeLowering):  # type: ignore[misc]
    @property
    def lowering_class(self) -> Any:
        return _Lower


class _TotalNativeLowering(numba_compiler.CUDANativeLowering):  # type: ignore[misc]
    _name = "oxide_total_native_lowering"

    @property
    def lowering_class(self) -> Any:
        return _TotalLower


@compiler_pass
def _check_returns(state: Any) -> bool:
    """Refuses a returned value that cannot be converted to the function's declared result type."""
    if session().numba_style or not isinstance(state.return_type, types.Number | types.Boolean):
        return False
    for block in state.func_ir.blocks.values():
        returned = block.terminator
        if isinstance(returned, numba_ir.Return):
            cast = state.func_ir.get_definition(returned.value)
            value = state.typemap[cast.value.name] if isinstance(cast, numba_ir.Expr) else state.return_type
            why = conversion_problem(state.return_type, value)
            if why is not None:
                declared = f"{state.func_id.func_name} is declared to return {display(state.return_type)}"
                raise refused_at(returned.loc, f"{declared} and {why}")
    return False


class _Pipeline(Compiler):
    def replaced(self, passes: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
        return inference.replace_passes(passes)

    def define_cuda_lowering_pipeline(self, state: Any) -> Any:
        passes = _with_lowering(super().define_cuda_lowering_pipeline(state), _NativeLowering)
        passes.passes.insert(0, (_check_returns, "check the types of returned values"))
        return passes


class _SubroutinePipeline(Compiler):
    def define_cuda_lowering_pipeline(self, state: Any) -> Any:
        return _with_lowering(super().define_cuda_lowering_pipeline(state), _TotalNativeLowering)


def _with_lowering(passes: Any, lowering: Any) -> Any:
    passes.passes = [
        (lowering, text) if kind is numba_compiler.CUDANativeLowering else (kind, text) for kind, text in passes.passes
    ]
    return passes


numba_compiler.register_pass(mutates_CFG=True, analysis_only=False)(_NativeLowering)
numba_compiler.register_pass(mutates_CFG=True, analysis_only=False)(_TotalNativeLowering)

_context_pair: tuple[Any, Any] | None = None
DeviceDispatcher.compile_function = staticmethod(compile_function)


def _contexts() -> tuple[Any, Any]:
    global _context_pair
    if _context_pair is None:
        typing_context = _TypingContext()
        _context_pair = typing_context, _TargetContext(typing_context)
    return _context_pair


def adopted_signatures(dispatcher: Any) -> tuple[tuple[ArgumentType, ...], ...]:
    """Returns the argument types of each explicit signature of a numba-cuda kernel. Returns an empty tuple if the
    kernel has no explicit signature."""
    if dispatcher._can_compile:
        return ()
    return tuple(tuple(argument_type(kind) for kind in types) for types in dispatcher.overloads)


def _parameter_type(parameter: Closed) -> Any:
    if isinstance(parameter, NumbaParameter):
        return numba_type(parameter.type)
    if isinstance(parameter.lifted, Lifted):
        return function_type(parameter.lifted)
    if isinstance(parameter.lifted, Fields):
        elements = [_parameter_type(element) for element in parameter.lifted.elements]
        if issubclass(parameter.lifted.made_of, Vector):
            return ComponentsType(elements[0], parameter.lifted.made_of)
        return structured(parameter.lifted.made_of) or types.BaseTuple.from_types(elements, parameter.lifted.made_of)
    if parameter.structure is not None:
        scalar = StructuredType(parameter.structure)
    else:
        scalar = NUMBA_TYPES[parameter.scalar.name]
    if parameter.kind == "scalar":
        return scalar
    if parameter.components > 1:
        scalar = ComponentsType(scalar, VECTORS[parameter.components])
    kind = "disjoint" if parameter.kind == "tiles" else parameter.kind
    return slice_lowering.SliceType(kind, scalar, parameter.ndim, parameter.name, parameter.tile)


def _libraries(library: Any) -> dict[str, Any]:
    """Returns the libraries of a kernel and of all functions that it calls, by the text of their modules.

    Each module comes after a module that calls it, because LLVM links a device function only if an earlier module calls
    the function. The libraries that one module links are visited in the order of their texts. numba keeps them in sets,
    whose order differs from run to run, but the same kernel must always give the same code.
    """
    texts: dict[Any, str] = {}

    def text(each: Any) -> str:
        if each not in texts:
            texts[each] = str(each._module)
        return texts[each]

    found: dict[str, Any] = {}
    pending = [library]
    while pending:
        each = pending.pop()
        if text(each) not in found:
            found[text(each)] = each
            pending += sorted({*each._linking_libraries, *(_called_back.get(each) or ())}, key=text)
    return found
