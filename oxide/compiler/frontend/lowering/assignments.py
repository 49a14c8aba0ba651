"""Annotated local variables: with ``h: u32 = 2166136261``, each assignment to ``h`` converts the value to ``u32``.

In numba's IR, each of these assignments becomes a call of an ``Assignment``, which numba types and lowers as any other
call. So all versions of the variable have the annotated type, in loops and after branches too. The value is converted
as in a store to an element, but for one rule: the annotation is the author's word that a signed integer may become an
unsigned one.
"""

from __future__ import annotations

from typing import Any, final

from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import signature

from oxide.language.structures import StructureType
from oxide.language.types import ScalarType
from oxide.language.vectors import VectorType

from .registry import lowering_registry, note
from .types import assignment_problem, composite_of, display, is_narrowed
from .whole_numbers import ASSIGN, end_of_chain


@final
class Assignment:
    """The conversion of a value that is assigned to an annotated local variable, as a function in numba's IR."""

    def __init__(self, variable: str, kind: ScalarType | VectorType | StructureType) -> None:
        self._numba_type_ = AssignmentType(variable, composite_of(kind))


class AssignmentType(types.Callable):  # type: ignore[misc]
    """The type of an ``Assignment``."""

    typing_key = ASSIGN

    def __init__(self, variable: str, target: Any) -> None:
        self.variable, self.target = variable, target
        super().__init__(f"assignment to {variable}: {display(target)}")

    @property
    def key(self) -> Any:
        return self.variable, self.target

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        (value,) = args
        why = assignment_problem(self.target, value)
        if why is not None:
            note(f"{self.variable} is annotated as {display(self.target)} and {why}")
            raise errors.TypingError(why)
        return signature(self.target, value)

    def get_call_signatures(self) -> Any:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return ASSIGN


register_model(AssignmentType)(core_models.OpaqueModel)


@lowering_registry.lower_constant(AssignmentType)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@lowering_registry.lower(ASSIGN, types.Any)
def _lower_assignment(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    (given,) = sig.args
    value = context.cast(builder, args[0], given, sig.return_type)
    return end_of_chain(builder, value) if is_narrowed(given, sig.return_type) else value
