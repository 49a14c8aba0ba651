"""``@device`` functions. Each is compiled once for each tuple of argument types, and inlined by LLVM.

A function that a kernel takes as an argument is a device function too. After the function's own arguments, the call
passes the numbers that the function captures.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.typing.templates import make_concrete_template, signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.signature.annotations import Annotation
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.signature.signature import Lifted
from oxide.compiler.source.source import as_written
from oxide.host.weak_table import WeakTable

from .common import structure
from .numba_functions import ContextDispatcher
from .registry import lowering_registry, note, proxy, session
from .slices import SliceType
from .types import NUMBA_TYPES, OPEN, conversion_problem, display

# The dispatchers of each device function, by four options of the session: fastmath, fma, located and numba_style.
# A numba type holds its dispatcher weakly, so this table keeps the dispatcher while the device function lives.
_dispatchers: WeakTable[DeviceFunction[..., Any], dict[tuple[bool, bool, bool, bool], Any]] = WeakTable()


_numbers = itertools.count()


class DeviceDispatcher(ContextDispatcher):
    """Compiles a device function in oxide's own contexts, for no particular GPU."""

    compile_function: ClassVar[Callable[[Any, tuple[Any, ...], Any], Any]]
    """Compiles a function. ``frontend.py`` sets this attribute, because it imports this module and not the reverse."""

    def __init__(self, function: DeviceFunction[..., Any]) -> None:
        super().__init__(as_written(function.function), {"device": True})
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
        scalar = NUMBA_TYPES[annotation.scalar.name]
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
            returned = None if declared is None or declared.kind != "scalar" else NUMBA_TYPES[declared.scalar.name]
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
