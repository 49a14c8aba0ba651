"""Functions written for numba that a kernel calls: device functions of numba-cuda's users, and numba's own Python
implementations of operators and builtins.

numba-cuda compiles such a function at its first use, in numba-cuda's own contexts and for the current device. Even its
lookup of a compiled overload creates a CUDA context if there is no match. This module compiles these functions in
oxide's contexts and for no device, with numba-cuda's semantics. For a user's dispatcher it makes a second dispatcher,
the *twin*, so that the user's own dispatcher keeps only numba-cuda's overloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

import numba.cuda as numba_cuda
from numba.core import errors as core_errors
from numba.cuda import utils
from numba.cuda.core.bytecode import FunctionIdentity
from numba.cuda.dispatcher import CUDADispatcher

from oxide.compiler.check.rewritten import plain
from oxide.compiler.source.source import as_written
from oxide.host.weak_table import WeakTable

from .complex_numbers import as_numbas
from .registry import running, session

CompileFunction = Callable[[Any, tuple[Any, ...], Any], Any]

# Twins by the user's dispatcher, then by three options of the session: fastmath, fma and located. numba's types hold
# their dispatchers weakly, so this table keeps the twins alive.
_twins: WeakTable[Any, dict[tuple[bool, bool, bool], Any]] = WeakTable()


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
    """Makes every numba dispatcher compile with ``compile_function`` within the ``with`` block. If
    ``overloads`` of the session is False, a dispatcher raises ``TypingError`` instead.

    Also makes numba compile the form of a function that ``_read`` returns, for inlined functions too. numba holds its
    compiler lock while it types a function, so no other thread sees these changes.
    """

    def compile_device(dispatcher: Any, args: tuple[Any, ...], return_type: Any = None) -> Any:
        if not session().overloads:
            raise core_errors.TypingError(f"{dispatcher.py_func.__name__} is not defined in kernels")
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
