"""``@device`` functions: each is compiled once for each tuple of argument types, and inlined by LLVM."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.typing.templates import make_concrete_template
from numba.cuda.typing.typeof import typeof_impl

from ..function import DeviceFunction
from ..signature import Annotation
from .registry import note, session
from .slices import SliceType
from .types import NUMBA_TYPES, conversion_problem, display

# By fastmath and by whose semantics it gets. The type holds its dispatcher weakly, so it is kept here, while the device
# function lives.
_dispatchers: weakref.WeakKeyDictionary[DeviceFunction[..., Any], dict[tuple[bool, bool], Any]] = (
    weakref.WeakKeyDictionary()
)


class DeviceDispatcher(CUDADispatcher):  # type: ignore[misc]
    """Compiles a device function in oxide's own contexts and for no particular GPU."""

    compile_function: ClassVar[Callable[[Any, tuple[Any, ...], Any], Any]]
    """What compiles kernels; ``frontend`` sets it, as it imports this module."""

    def __init__(self, function: DeviceFunction[..., Any]) -> None:
        super().__init__(function.function, {"device": True})
        self.annotations: dict[str, Annotation] = function.annotations

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The types that a call's arguments are converted to, which the annotations say, and the function for them."""
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
            mutable = annotation.kind == "disjoint"
            shown = f"{'DisjointSlice' if mutable else 'Slice'}[{display(scalar)}]"
            fits = isinstance(given, SliceType) and (given.dtype, given.mutable) == (scalar, mutable)
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
    variants = _dispatchers.setdefault(function, {})
    variant = session.fastmath, session.numba_style
    if variant not in variants:
        variants[variant] = DeviceDispatcher(function)
    return types.Dispatcher(variants[variant])
