"""``thread.sync_threads()``, its counting forms, ``thread.sync_grid()``, ``thread.nanosleep(…)``, and the two functions
of programmatic dependent launch.

Each function is lowered to a call of a primitive that both back ends define. All calls but that of ``nanosleep`` also
pass the number of their fault site.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.ir.primitives import GRID_BARRIER
from oxide.language import thread

from .primitives import call_primitive, site
from .registry import lowering_registry, note, typing_registry
from .types import display

_BIT = ir.IntType(1)
_INT = ir.IntType(32)


@typing_registry.register_global(thread.sync_threads)
class SyncThreads(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return signature(types.none) if not args and not kws else None


@lowering_registry.lower(thread.sync_threads)
def _lower_sync_threads(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    call_primitive(builder, ir.VoidType(), "oxide.block.barrier", (), site(builder, "sync_threads()"))
    return context.get_dummy_value()


@typing_registry.register_global(thread.sync_grid)
class SyncGrid(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return signature(types.none) if not args and not kws else None


@lowering_registry.lower(thread.sync_grid)
def _lower_sync_grid(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    call_primitive(builder, ir.VoidType(), GRID_BARRIER, (), site(builder, "sync_grid()"))
    return context.get_dummy_value()


def _of_dependencies(function: Any, name: str) -> None:
    """Registers one of the two functions of programmatic dependent launch. This kind of launch lets a kernel begin
    before the previous kernel in the stream has ended."""

    @typing_registry.register_global(function)
    class Dependencies(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            return signature(types.none) if not args and not kws else None

    @lowering_registry.lower(function)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = site(builder, f"{function.__name__}()")
        call_primitive(builder, ir.VoidType(), f"oxide.dependencies.{name}", (), place)
        return context.get_dummy_value()


_of_dependencies(thread.wait_dependencies, "wait")
_of_dependencies(thread.launch_dependents, "launch")


@typing_registry.register_global(thread.nanosleep)
class Nanosleep(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws or not isinstance(types.unliteral(args[0]), types.Integer):
            note("thread.nanosleep takes an integer, the nanoseconds")
            return None
        return signature(types.none, types.uint32)


@lowering_registry.lower(thread.nanosleep, types.uint32)
def _lower_nanosleep(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    call_primitive(builder, ir.VoidType(), "oxide.nanosleep", args)
    return context.get_dummy_value()


def _counting(function: Any, name: str, result: Any, llvm_result: Any) -> None:
    """Registers a barrier that takes a condition from each thread, and returns to each thread one result computed from
    all conditions."""

    @typing_registry.register_global(function)
    class Counting(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            return condition_signature(f"thread.{function.__name__}", args, kws, result)

    @lowering_registry.lower(function, types.boolean)
    def lower_counting(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = site(builder, f"{function.__name__}()")
        return call_primitive(builder, llvm_result, name, (as_bit(builder, args[0]),), place)


_counting(thread.sync_threads_count, "oxide.block.barrier.count", types.int32, _INT)
_counting(thread.sync_threads_and, "oxide.block.barrier.and", types.boolean, _BIT)
_counting(thread.sync_threads_or, "oxide.block.barrier.or", types.boolean, _BIT)


def condition_signature(name: str, args: tuple[Any, ...], kws: Any, result: Any) -> Any:
    """Returns the signature of a function that takes one condition: a bool, or an integer, which is true if it is not
    0. If the arguments do not fit, adds a note and returns None."""
    if len(args) != 1 or kws:
        note(f"{name} takes one condition")
        return None
    if not isinstance(types.unliteral(args[0]), types.Boolean | types.Integer):
        note(f"{name} takes a condition, not {display(args[0])}; compare it, as in x > 0")
        return None
    return signature(result, types.boolean)


def as_bit(builder: Any, value: Any) -> Any:
    return value if value.type == _BIT else builder.icmp_unsigned("!=", value, value.type(0))
