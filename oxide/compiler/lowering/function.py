"""``@device`` functions: each is compiled once for each tuple of argument types, and inlined by LLVM."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from numba.cuda import types
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.typing.typeof import typeof_impl

from ..function import DeviceFunction
from .registry import session

# With and without fastmath. The type holds its dispatcher weakly, so it is kept here, while the device function lives.
_dispatchers: weakref.WeakKeyDictionary[DeviceFunction[..., Any], dict[bool, Any]] = weakref.WeakKeyDictionary()


class DeviceDispatcher(CUDADispatcher):  # type: ignore[misc]
    """Compiles a device function in oxide's own contexts and for no particular GPU."""

    compile_function: ClassVar[Callable[[Any, tuple[Any, ...], bool], Any]]
    """What compiles kernels; ``frontend`` sets it, as it imports this module."""

    def compile_device(self, args: tuple[Any, ...], return_type: Any = None) -> Any:
        if args not in self.overloads:
            result = DeviceDispatcher.compile_function(self.py_func, args, False)
            self.overloads[args] = result
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return self.overloads[args]


@typeof_impl.register(DeviceFunction)
def _type_of_device_function(function: DeviceFunction[..., Any], context: Any) -> Any:
    variants = _dispatchers.setdefault(function, {})
    if session.fastmath not in variants:
        variants[session.fastmath] = DeviceDispatcher(function.function, {"device": True})
    return types.Dispatcher(variants[session.fastmath])
