"""Functions that a kernel calls: ``@device`` functions, and functions written for numba. Each is compiled once for each
tuple of argument types, and inlined by LLVM.

A function that a kernel takes as an argument is a device function too. After the function's own arguments, the call
passes the numbers that the function captures.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import numba.cuda as numba_cuda
from numba.cuda import types, utils
from numba.cuda.core import errors
from numba.cuda.core.bytecode import FunctionIdentity
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.typing.templates import make_concrete_template, signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.check.rewritten import plain
from oxide.compiler.signature.annotations import Annotation
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.signature.signature import Lifted
from oxide.compiler.source.source import as_written, with_ordinary_parameters
from oxide.host.weak_table import WeakTable

from .common import structure
from .complex_numbers import as_numbas
from .registry import lowering_registry, note, proxy, running, session
from .slices import SliceType
from .types import NUMBA_TYPES, OPEN, composite_of, conversion_problem, display


class ContextDispatcher(CUDADispatcher):  # type: ignore[misc]
    """A dispatcher whose functions are compiled in oxide's contexts. When the dispatcher is dropped, its functions are
    removed from these contexts. numba-cuda's own dispatcher would look for them in numba-cuda's contexts."""

    def _make_finalizer(self) -> Callable[[], None]:
        overloads = self.overloads

        def forget(shutting_down: Callable[[], bool] = utils.shutting_down) -> None:
            if shutting_down():
                return
            for result in overloads.values():
                with suppress(KeyError):
                    result.target_context.remove_user_function(result.entry_point)

        return forget


# The dispatchers of each device function, by four options of the session: fastmath, fma, located and numba_style.
# A numba type holds its dispatcher weakly, so this table keeps the dispatcher while the device function lives.
_dispatchers: WeakTable[DeviceFunction[..., Any], dict[tuple[bool, bool, bool, bool], Any]] = WeakTable()


_numbers = itertools.count()


class DeviceDispatcher(ContextDispatcher):
    """Compiles a device function in oxide's own contexts, for no particular GPU."""

    compile_function: ClassVar[Callable[[Any, tuple[Any, ...], Any], Any]]
    """Compiles a function. ``frontend.py`` sets this attribute, because it imports this module and not the reverse."""

    def __init__(self, function: DeviceFunction[..., Any]) -> None:
        super().__init__(with_ordinary_parameters(as_written(function.function)), {"device": True})
        self.annotations: dict[str, Annotation] = function.annotations
        self.number = next(_numbers)
        """A number that makes the name of the function's type unique. numba keeps types by their names, so the name
        must never be reused, as an address could be."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Returns the typing of a call; numba calls this method. Arguments are converted to the types that the
        function's annotations declare."""
        pysig, given = self.fold_argument_types(args, kws)
        wanted = tuple(self._parameter(name, argument) for name, argument in zip(pysig.parameters, given, strict=True))
        result = self.compile_device(wanted)
        name = self.py_func.__name__
        template = make_concrete_template(f"CallTemplate({name})", key=name, signatures=[result.signature])
        return template, pysig, wanted, {}

    def _parameter(self, name: str, given: Any) -> Any:
        annotation = self.annotations.get(name)
        if annotation is None:
            return given
        scalar = composite_of(annotation.scalar)
        if annotation.kind == "scalar":
            shown, why, wanted = display(scalar), conversion_problem(scalar, given), scalar
        else:
            form = "slice" if annotation.kind == "slice" else "disjoint"
            kind: Any = SliceType(form, scalar, annotation.ndim, "", annotation.tile)
            shown = kind.shown
            fits = type(given) is type(kind) and given.is_like(kind)
            why, wanted = None if fits else f"the value is {display(given)}", given
        if why is not None:
            note(f"{self.py_func.__name__}: parameter {name} is {shown} and {why}")
            raise errors.TypingError(why)
        return wanted

    def compile_device(self, args: tuple[Any, ...], return_type: Any = None) -> Any:
        if args not in self.overloads:
            declared = self.annotations.get("return")
            returned = None if declared is None or declared.kind != "scalar" else composite_of(declared.scalar)
            result = DeviceDispatcher.compile_function(self.py_func, args, returned)
            self.overloads[args] = result
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return self.overloads[args]


@typeof_impl.register(DeviceFunction)
def _type_of_device_function(function: DeviceFunction[..., Any], context: Any) -> Any:
    return types.Dispatcher(_dispatcher(function))


def _dispatcher(function: DeviceFunction[..., Any]) -> DeviceDispatcher:
    if session().typings is not None:
        if id(function) not in session().dispatchers:
            session().dispatchers[id(function)] = DeviceDispatcher(function)
        own: DeviceDispatcher = session().dispatchers[id(function)]
        return own
    variants = _dispatchers.setdefault(function, {})
    options = (session().fastmath, session().fma, session().located, session().numba_style)
    if options not in variants:
        variants[options] = DeviceDispatcher(function)
    found: DeviceDispatcher = variants[options]
    return found


def function_type(lifted: Lifted) -> FunctionValueType:
    """Returns the type of a kernel parameter that is a function."""
    dispatcher = _dispatcher(lifted.function)
    parts = zip(lifted.parts, lifted.literal, strict=True)
    return FunctionValueType(
        dispatcher, tuple(OPEN if literal else NUMBA_TYPES[part.scalar.name] for part, literal in parts)
    )


class FunctionValueType(types.Callable):  # type: ignore[misc]
    """The type of a function that is passed to a kernel. The type determines the code, and a value of the type holds
    the numbers that the function captures."""

    def __init__(self, dispatcher: DeviceDispatcher, captures: tuple[Any, ...]) -> None:
        self._dispatcher = weakref.ref(dispatcher)  # weak, as in types.Dispatcher: numba's tables keep types forever
        self.captures = captures
        super().__init__(f"function {dispatcher.py_func.__name__} {dispatcher.number}")

    @property
    def dispatcher(self) -> DeviceDispatcher:
        """Returns the dispatcher that compiles the function."""
        found = self._dispatcher()
        assert found is not None, "a type is used while its function is compiled"
        return found

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            note(f"{self.dispatcher.py_func.__name__} was passed to the kernel: its arguments are given by position")
            raise errors.TypingError("a keyword")
        wanted = self._wanted(args)
        result = self.dispatcher.compile_device(wanted)
        return signature(result.signature.return_type, *wanted[: len(args)], recvr=self)

    def get_call_signatures(self) -> Any:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return _CALL

    def _wanted(self, args: Any) -> Any:
        _, _, wanted, _ = self.dispatcher.get_call_template((*args, *self.captures), {})
        return wanted


_CALL = "oxide.function.call"


structure(
    FunctionValueType,
    members=lambda kind: [(f"capture{number}", capture) for number, capture in enumerate(kind.captures)],
)


@lowering_registry.lower(_CALL, FunctionValueType, types.VarArg(types.Any))
def _lower_call(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    value = proxy(context, builder, kind, args[0])
    captures = [getattr(value, f"capture{number}") for number in range(len(kind.captures))]
    result = kind.dispatcher.overloads[(*sig.args[1:], *kind.captures)]
    call = context.get_function(types.Dispatcher(kind.dispatcher), result.signature)
    return call(builder, [*args[1:], *captures])


# Functions written for numba that a kernel calls: device functions of numba-cuda's users, and numba's own Python
# implementations of operators and builtins. numba-cuda compiles such a function at its first use, in its own contexts
# and for the current device. Even its lookup of a compiled overload creates a CUDA context if there is no match. Here
# they are compiled in oxide's contexts and for no device, with numba-cuda's semantics. For a user's dispatcher a second
# one is made, the *twin*, so that the user's own keeps only numba-cuda's overloads.

CompileFunction = Callable[[Any, tuple[Any, ...], Any], Any]

# Twins by the user's dispatcher, then by three options of the session: fastmath, fma and located. numba's types hold
# their dispatchers weakly, so this table keeps the twins alive.
_twins: WeakTable[Any, dict[tuple[bool, bool, bool], Any]] = WeakTable()


class NumbaDispatcher(ContextDispatcher):
    """A device function of a numba user, compiled in oxide's contexts. If the function has explicit signatures, it is
    compiled only for these, and the arguments of a call are converted to the types of a signature."""

    def __init__(self, function: Any, options: dict[str, Any], signatures: tuple[Any, ...] = ()) -> None:
        super().__init__(as_written(function), options)
        self._explicit = signatures

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Returns the typing of a call; numba calls this method. Compiles the explicit signatures first."""
        if self._explicit:
            self._can_compile = True
            for signature in self._explicit:
                self.compile_device(signature.args, signature.return_type)
            self._can_compile = False
        kinds = {name: as_numbas(kind) for name, kind in dict(kws).items()}
        return super().get_call_template(tuple(map(as_numbas, args)), kinds)


def twin_of(value: Any) -> Any:
    """Returns the value that a kernel uses for ``value``: the twin of a numba or numba-cuda dispatcher, the module
    ``numba.cuda`` for the module ``oxide.numba_cuda``, and ``value`` itself for anything else."""
    if type(value) is ModuleType and value.__name__ == "oxide.numba_cuda":
        return numba_cuda  # the names in oxide.numba_cuda are resolved as names of numba.cuda
    value = getattr(value, "numba_dispatcher", value)  # unwraps a result of oxide.numba_cuda.jit
    if isinstance(value, CUDADispatcher):
        if type(value) is not CUDADispatcher:
            return value
    elif not (hasattr(value, "py_func") and hasattr(value, "targetoptions") and value._can_compile):
        return value  # numba.jit with explicit signatures is for the host only; numba's typing reports it
    twins = _twins.setdefault(value, {})
    fastmath = session().fastmath or bool(value.targetoptions.get("fastmath"))
    variant = fastmath, session().fma, session().located
    if variant not in twins:
        inline = value.targetoptions.get("inline", "never")
        inline = {True: "always", False: "never"}.get(inline, inline)  # deprecated values, as numba-cuda reads them
        options = {"device": True, "inline": inline, "fastmath": fastmath}
        signatures = () if value._can_compile else tuple(value.nopython_signatures)
        twins[variant] = NumbaDispatcher(value.py_func, options, signatures)
    return twins[variant]


def _read(function: Any) -> Any:
    """Returns the form in which numba compiles a function. Under numba's semantics, this is the function as written.
    Under oxide's semantics, the function's conveniences are rewritten and, if the session keeps types, the nodes of its
    syntax tree are numbered."""
    if session().numba_style:
        return as_written(function)
    return plain(function) if session().typings is None else session().typings.numbered(function)


@contextmanager
def compiled_with(compile_function: CompileFunction) -> Iterator[None]:
    """Makes every numba dispatcher compile with ``compile_function`` within the ``with`` block.

    Also makes numba compile the form of a function that ``_read`` returns, for inlined functions too. numba holds its
    compiler lock while it types a function, so no other thread sees these changes.
    """

    def compile_device(dispatcher: Any, args: tuple[Any, ...], return_type: Any = None) -> Any:
        if args not in dispatcher.overloads:
            fastmath = bool(dispatcher.targetoptions.get("fastmath"))
            fma = session().fma and not fastmath
            own = replace(session(), numba_style=True, fastmath=fastmath, fma=fma, remembered={})
            with running(own), dispatcher._compiling_counter:
                result = compile_function(dispatcher.py_func, args, return_type)
            dispatcher.overloads[args] = result
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return dispatcher.overloads[args]

    original, as_found = CUDADispatcher.compile_device, vars(FunctionIdentity)["from_function"]
    read = FunctionIdentity.from_function
    CUDADispatcher.compile_device = compile_device
    FunctionIdentity.from_function = staticmethod(lambda function: read(_read(function)))
    try:
        yield
    finally:
        CUDADispatcher.compile_device = original
        FunctionIdentity.from_function = as_found
