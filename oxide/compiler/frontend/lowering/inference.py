"""Gives each expression its place in the source, and records the causes of failed type inference.

numba keeps only the line of an instruction, and a failed inference names this line only in the text of its error. Here,
instructions keep Python's columns too. Each constraint of type inference that fails leaves a ``Failure``: the place,
the notes that oxide's rules made for this constraint, and the cause if the constraint is a call and inference failed in
the called function. So each mistake is reported at its own place, even if a kernel has several.
"""

from __future__ import annotations

import builtins
from typing import Any

from numba.core import errors as core_errors
from numba.cuda import compiler as numba_compiler
from numba.cuda import types
from numba.cuda import utils as numba_utils
from numba.cuda.core import bytecode, errors, typed_passes
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import FunctionPass
from numba.cuda.core.typeinfer import ConstraintNetwork, IntrinsicCallConstraint
from numba.cuda.typing.context import CallStack

from oxide.compiler.check import advice
from oxide.compiler.check.constructs import unsupported
from oxide.compiler.check.numba_errors import Failure
from oxide.compiler.check.vocabulary import LARGEST, LEAST
from oxide.compiler.source.annotated_locals import annotated_locals
from oxide.compiler.source.source import Span
from oxide.host.messages import written

from .assignments import Assignment
from .captured import outside
from .literals import fold_integers
from .recorded_conversions import record_conversions
from .recorded_typings import keep_types
from .refs import RefType, TileRefType
from .registry import compiler_pass, failure_at, is_numbas, rank_of, refused_at, session
from .typed_variables import check_variables
from .types import display


class ColumnPlace(numba_ir.Loc):  # type: ignore[misc]
    """A place in the source with columns. Columns are byte offsets in their lines."""

    span: Span | None = None


class _Interpreter(numba_compiler.CUDABytecodeInterpreter):  # type: ignore[misc]
    def __init__(self, func_id: Any) -> None:
        super().__init__(func_id)
        self.loc = self.first_loc = ColumnPlace.from_function_id(func_id)
        self._positions = tuple(func_id.code.co_positions())
        self._corrected = False
        numbas = session().numba_style or is_numbas(func_id.filename)
        self._annotated = {} if numbas else annotated_locals(func_id.func)

    def store(self, value: Any, name: str, redefine: bool = False) -> Any:
        """Calls numba's method. Before, converts a value that is assigned to an annotated local variable, and removes
        blocks from ``cfa._backbone``, the set of blocks in which numba's method makes a new variable for an assignment.

        numba's set has each block that all paths pass through, and all blocks that are later in the bytecode use the
        new variable. But in the bytecode, the code after a ``while True`` may stand before some blocks of the loop.
        These blocks would then use the new variable, and the loop's other blocks the old one. So only blocks that
        dominate all later blocks stay in the set.
        """
        if not self._corrected:
            self._corrected = True
            dominators, above = self.cfa.graph.dominators(), self.cfa.graph.immediate_dominators()
            kept = set()
            nearest = max(dominators)  # the nearest dominator of the blocks visited so far
            for block in sorted(dominators, reverse=True):
                if block in dominators[nearest]:
                    kept.add(block)
                while nearest not in dominators[block]:
                    nearest = above[nearest]
            self.cfa._backbone &= kept
        if name in self._annotated:
            value = self._converted(value, name)
        return super().store(value, name, redefine)

    def _converted(self, value: Any, name: str) -> Any:
        """Converts a value to the type of the annotated local variable ``name``. Returns the temporary that holds the
        result."""
        shown = f"assignment to {name}"
        function = numba_ir.Global(shown, Assignment(name, self._annotated[name]), self.loc)
        called = super().store(function, f"${shown}", redefine=True)
        call = numba_ir.Expr.call(called, [value], (), self.loc)
        return super().store(call, f"$converted for {name}", redefine=True)

    def _remove_unused_temporaries(self) -> None:
        """Calls numba's method. If the session keeps types, first marks as used the temporaries that a block passes to
        the next blocks.

        A conditional expression then joins these temporaries instead of variables. Each temporary is one read of a
        variable, and a read has a place of its own in the source.
        """
        if session().typings is not None:
            for name in self.dfainfo.outgoing_phis.values():
                self.assigner.dest_to_src.pop(name, None)
                self.assigner.unused_dests.discard(name)
        super()._remove_unused_temporaries()

    def _dispatch(self, inst: Any, kws: Any) -> Any:
        number = (inst.offset - bytecode._FIXED_OFFSET) // 2  # one entry for every two bytes of bytecode
        line, end_line, column, end_column = (
            self._positions[number] if 0 <= number < len(self._positions) else (None,) * 4
        )
        place = self.loc.with_lineno(inst.lineno)
        if line == inst.lineno and end_line is not None and column is not None and end_column is not None:
            place.span = line, column, end_line, end_column
        self.loc = place
        try:
            return super()._dispatch(inst, kws)
        except Exception as error:
            if not hasattr(error, "failure"):
                error.failure = failure_at(place, str(error), ())  # type: ignore[attr-defined]
            raise


class TranslateBytecode(FunctionPass):  # type: ignore[misc]
    """Replaces numba-cuda's pass of the same name. Reads the bytecode with ``_Interpreter``, which keeps columns."""

    _name = "oxide_translate_bytecode"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state["bc"].labels = frozenset(state["bc"].labels)  # numba looks up each instruction in this list
        state["func_ir"] = _Interpreter(state["func_id"]).interpret(state["bc"])
        return True


@compiler_pass
def check_names(state: Any) -> bool:
    """Refuses global and closure names that kernels cannot use, and integers that no type can hold, at the place of
    their use. Marks the names of device arrays. Must run after the pass that removes branches decided by constants."""
    for block in state.func_ir.blocks.values():
        for statement in block.body:
            value = getattr(statement, "value", None)
            if isinstance(value, numba_ir.Global | numba_ir.FreeVar):
                _check_name(state, block, statement, value)
            elif isinstance(value, numba_ir.Const):
                _check_constant(value.value, statement.loc)
    return False


def _check_name(state: Any, block: Any, statement: Any, name: Any) -> None:
    function, place = state.func_id.func, statement.loc
    if name.value is numba_ir.UNDEFINED:
        known = {*state.func_id.code.co_varnames, *function.__globals__, *vars(builtins)}
        problem, said = advice.undefined(name.name, known), f"NameError: name '{name.name}' is not defined"
    elif name.value is function or name.name == state.func_id.func_name:
        return  # a recursive call: numba finds the function without this value
    else:
        try:
            state.typingctx.resolve_value_type(name.value)
            if session().numba_style:
                name.value = outside(name.value, name.name)
            return
        except (ValueError, core_errors.NumbaError) as error:  # numba-cuda's error classes extend numba's
            said = f"Untyped global name '{name.name}': {error}"
            problem = advice.of_value(name.name, name.value, numba_style=True)
            found = _attribute_of(block, statement.target) if isinstance(name.value, type) else None
            if found is not None:
                problem = advice.of_attribute(f"{name.name}.{found.attr}", name.value, found.attr)
                place = found.loc
    raise refused_at(place, problem, said)


def _check_constant(value: Any, place: Any) -> None:
    """Refuses an integer that does not fit in 64 bits, whether it is written as a literal or computed by Python's
    compiler, as ``2**64`` is."""
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, tuple):
            _check_constant(each, place)
        elif isinstance(each, int) and not LEAST <= each <= LARGEST:
            limit = "the largest integer, a u64, is 2**64 - 1" if each > 0 else "the least integer, an i64, is -2**63"
            raise refused_at(place, f"{written(each)} does not fit in 64 bits; {limit}")


def _attribute_of(block: Any, variable: Any) -> Any:
    """Returns the first expression in a block that reads an attribute of a variable. Returns None if no expression
    does."""
    for statement in block.body:
        value = getattr(statement, "value", None)
        if isinstance(value, numba_ir.Expr) and value.op == "getattr" and value.value.name == variable.name:
            return value
    return None


@compiler_pass
def check_references(state: Any) -> bool:
    """Refuses ``element = x[i]`` if ``element`` was assigned a result of ``get_mut`` before. The assignment would bind
    the name to a number and would not write to the output."""
    if session().numba_style:
        return False
    references: dict[str, ColumnPlace] = {}
    numbers: list[tuple[str, Any, ColumnPlace]] = []
    scope = next(iter(state.func_ir.blocks.values())).scope
    names = {version: name for name, versions in scope.var_redefinitions.items() for version in versions}
    for block in state.func_ir.blocks.values():
        for statement in block.body:
            if not isinstance(statement, numba_ir.Assign) or _is_phi(statement.value):
                continue
            name, kind = (
                names.get(statement.target.name, statement.target.name),
                state.typemap[statement.target.name],
            )
            if name.startswith("$"):
                continue
            if isinstance(kind, RefType | TileRefType):
                first = references.setdefault(name, statement.loc)
                if statement.loc.line < first.line:
                    references[name] = statement.loc
            elif isinstance(kind, types.Number | types.Boolean):
                numbers.append((name, kind, statement.loc))
    for name, kind, place in sorted(numbers, key=lambda each: each[2].line):
        if name in references and references[name].line < place.line:
            raise refused_at(place, advice.rebound(name, display(kind)))
    return False


def _is_phi(value: Any) -> bool:
    return isinstance(value, numba_ir.Expr) and value.op == "phi"


class Constraints(ConstraintNetwork):  # type: ignore[misc]
    """numba's constraints for one function. A failed constraint reports its place and its cause.

    numba resolves all constraints again and again until no type changes. This class resolves an operator's constraint
    again only if the type of an operand has changed."""

    def __init__(self) -> None:
        super().__init__()
        self._resolved: dict[int, list[Any]] = {}
        """The types of the operands with which each operator was last resolved, by the ``id`` of the operator's
        constraint."""

    def propagate(self, typeinfer: Any) -> list[Any]:
        found: list[Any] = []
        for constraint in self.constraints:
            place = constraint.loc
            causes = len(session().failures)
            outer = session().file, session().line, session().span, session().notes
            session().notes = []
            follow(place)
            try:
                if type(constraint) is IntrinsicCallConstraint:
                    self._resolve(constraint, typeinfer)
                else:
                    constraint(typeinfer)
            except errors.ForceLiteralArg as error:
                found.append(error)
            except errors.TypingError as error:
                raised = errors.TypingError(str(error), loc=place, highlighting=False)
                raised.failure = _of_constraint(place, error, causes)
                found.append(numba_utils.chain_exception(raised, error))
            except Exception as error:
                error.failure = _of_constraint(place, error, causes)  # type: ignore[attr-defined]
                raise
            finally:
                session().file, session().line, session().span, session().notes = outer
        return found

    def _resolve(self, constraint: Any, typeinfer: Any) -> None:
        """Resolves an operator's type. Reuses the operator's last signature if the types of its operands have not
        changed."""
        operands = [typeinfer.typevars[operand.name].type for operand in constraint.args]
        if self._resolved.get(id(constraint)) == operands:
            typeinfer.add_type(constraint.target, constraint.signature.return_type, loc=constraint.loc)
            return
        constraint(typeinfer)
        signature = constraint.signature
        if (
            signature is not None
            and signature.return_type.is_precise()
            and not constraint.kws
            and not constraint.vararg
        ):
            self._resolved[id(constraint)] = operands


class PlacedCallStack(CallStack):  # type: ignore[misc]
    """The stack of functions being typed. A type inference registers itself on this stack before it has any constraint,
    so ``register`` can give it oxide's ``Constraints``."""

    def register(self, target: Any, typeinfer: Any, func_id: Any, args: Any) -> Any:
        typeinfer.constraints = Constraints()
        return super().register(target, typeinfer, func_id, args)


def follow(place: Any) -> None:
    """Sets the session's place in the source. If the place is in numba's code, does nothing, so that the session keeps
    the place of the author's call."""
    if not is_numbas(place.filename):
        session().file, session().line, session().span = place.filename, place.line, getattr(place, "span", None)


def record_failure(error: Exception, function: Any, notes: int) -> None:
    """Records why a function could not be compiled. ``notes`` is the number of notes that existed before the function's
    compilation."""
    failure = getattr(error, "failure", None)
    text = str(error)
    if failure is None or not failure.notes or any(word in text for word in _OF_TRY):
        found = unsupported(function) if _is_early(error, failure, text) else None
        if found is not None:
            span, problem = found
            failure = Failure(function.__code__.co_filename, span[0], span, problem, (problem,))
    if failure is None:
        place = getattr(error, "loc", None)
        if place is None or place.line <= 0:
            # During lowering, the session has the place of the current instruction.
            place = ColumnPlace(session().file, session().line)
            place.span = session().span
        failure = failure_at(place, text, tuple(session().notes[notes:]))
    session().failures.append(failure)


_OF_TRY = ("set_try_status", "exception_match")


def _is_early(error: Exception, failure: Failure | None, text: str) -> bool:
    """Returns whether a function was refused before type inference began, or because of a ``try`` statement, which type
    inference ignores."""
    untyped = failure is None and not isinstance(error, errors.TypingError | errors.LoweringError)
    return untyped or not session().line or any(word in text for word in _OF_TRY)


def _of_constraint(place: Any, error: Exception, causes: int) -> Failure:
    """Returns why a constraint failed. If the constraint is a call, and a failure was recorded inside the called
    function, this is the first such failure. If that failure's file ranks lower than the constraint's file (``_rank``),
    the returned failure has the constraint's place instead. If that file is numba's or the compiler's own, the returned
    failure has the constraint's text and notes as well."""
    own = failure_at(place, str(error), tuple(session().notes))
    inner = session().failures[causes] if len(session().failures) > causes else None
    if inner is None:
        return own
    if rank_of(inner.file) >= rank_of(own.file):
        return inner
    return own if rank_of(inner.file) == 0 else failure_at(place, inner.text, inner.notes)


def replace_passes(passes: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """Returns numba-cuda's passes, with oxide's passes inserted and ``TranslateBytecode`` in place of numba-cuda's
    pass."""
    result: list[tuple[Any, str]] = []
    for kind, text in passes:
        if kind is numba_compiler.CUDATranslateBytecode:
            kind = TranslateBytecode
        elif kind is typed_passes.NopythonTypeInference:
            result.append((check_names, "check the names from outside"))
            result.append((fold_integers, "compute with known integers"))
        result.append((kind, text))
        if kind is typed_passes.NopythonTypeInference:
            result.append((check_variables, "check the types of variables"))
            result.append((check_references, "check what is bound to the names of references"))
            result.append((record_conversions, "record conversions for the report of checks"))
            result.append((keep_types, "keep the types for the interpreter"))
    return result


numba_compiler.register_pass(mutates_CFG=True, analysis_only=False)(TranslateBytecode)
