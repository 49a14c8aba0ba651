"""What the lowering modules share: registries, the run of the front end to which a callback of numba belongs, passes,
the numbers of fault sites, and whose code a file is.

numba calls back without an argument of oxide's, so that the run is in a context variable. ``running`` sets it for a
``with`` block, and a function that is compiled with other options has a run of its own, made of the outer one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numba
import numba.cuda
from llvmlite import ir
from numba.cuda import compiler as numba_compiler
from numba.cuda.core import errors
from numba.cuda.core.compiler_machinery import FunctionPass
from numba.cuda.core.imputils import Registry as LoweringRegistry
from numba.cuda.typing.templates import Registry as TypingRegistry

from oxide.compiler.check import advice
from oxide.compiler.check.numba_errors import Failure
from oxide.compiler.signature.untyped_arguments import Captured
from oxide.compiler.source.faults import Conversion, FaultSite
from oxide.compiler.source.source import SourcePlace, Span

typing_registry = TypingRegistry()
lowering_registry = LoweringRegistry("oxide")


@dataclass(slots=True)
class Session:
    """One run of the front end: its options, the place in the source being lowered, and the notes and failures of type
    inference. With ``located``, each instruction carries its place in the source, for the sanitizer and for line
    tables."""

    file: str = ""
    line: int = 0
    span: Span | None = None
    fastmath: bool = False
    fma: bool = True
    """True if products are fused into sums by the rules of ``contraction``."""
    numba_style: bool = False
    """True for numba-cuda's semantics, False for the semantics of oxide's typed vocabulary."""
    located: bool = False
    notes: list[str] = field(default_factory=list)
    constants: Mapping[int, str] = field(default_factory=dict)
    """The kernel's name for each array outside the kernel, by the array's ``id``."""
    typings: Any = None
    """The ``Typings`` that records types for the interpreter, or None."""
    dispatchers: dict[int, Any] = field(default_factory=dict)
    """The dispatchers of device functions while types are recorded, by the ``id`` of the function. Each kernel then has
    its own dispatchers."""
    failures: list[Failure] = field(default_factory=list)
    """The failures to compile functions, in the order in which they occur: the failure of an inner function comes
    first."""
    conversions: list[Conversion] = field(default_factory=list)
    """The recorded conversions of the function that is being compiled."""
    captured: dict[int, Captured] = field(default_factory=dict)
    """The device arrays from outside that the function being compiled names, by the ``id`` of the object."""
    remembered: dict[Any, Any] = field(default_factory=dict)
    """The signatures of operators' calls, and the types of builtins, that were resolved with these options."""


_session: ContextVar[Session] = ContextVar("session")


def session() -> Session:
    """Returns the run of the front end that is under way."""
    return _session.get()


@contextmanager
def running(run: Session) -> Iterator[Session]:
    """Makes a run the one under way within the ``with`` block."""
    token = _session.set(run)
    try:
        yield run
    finally:
        _session.reset(token)


def compiler_pass(run: Callable[[Any], bool]) -> Any:
    """Makes a function a pass of numba's pipeline. It takes the pipeline's state, and returns whether it has changed
    the code. It adds and removes no blocks."""

    class Pass(FunctionPass):  # type: ignore[misc]
        _name = f"oxide_{run.__name__}"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Any) -> bool:
            return run(state)

    return numba_compiler.register_pass(mutates_CFG=False, analysis_only=False)(Pass)


sites: list[FaultSite] = []
"""The fault sites of all accesses and asserts that were ever lowered. The position of a site in the list is its number,
until ``compiler.ir`` renumbers the sites of a kernel."""

array_places: dict[int, SourcePlace] = {}
"""The place in the source of each static shared array and each local array that was ever lowered. The key is the number
in the array's name."""

_numbers: dict[FaultSite, int] = {}


def site_number(parameter: str, assertion: str | None = None, axis: int | None = None, axes: int = 1) -> int:
    """Returns the number of the fault site that is being lowered: an access to the array ``parameter``, a call of the
    function ``parameter``, or an ``assert``. For an access with several ``axes``, ``axis`` is the axis that is
    checked."""
    run = session()
    site = FaultSite(parameter, run.file, run.line, assertion, axis, axes)
    if site not in _numbers:
        _numbers[site] = len(sites)
        sites.append(site)
    return _numbers[site]


def refused_at(place: Any, problem: str, said: str | None = None) -> Exception:
    """Returns the error for a refusal by oxide's own passes. ``said`` is numba's text for the problem, which the user
    sees only with the full traceback."""
    error: Exception = errors.TypingError(said or problem)
    error.failure = failure_at(place, problem, (problem,))  # type: ignore[attr-defined]
    return error


def failure_at(place: Any, text: str, notes: tuple[str, ...]) -> Failure:
    """Returns why inference failed at a place in the source."""
    return Failure(place.filename, place.line, getattr(place, "span", None), text, notes)


def note(message: str) -> None:
    """Records why typing is about to fail. If typing fails, the last note becomes the text of the ``CompileError``."""
    session().notes.append(message)


def note_first(message: str) -> None:
    """Records why typing is about to fail, unless a note already exists."""
    if not session().notes:
        note(message)


def bound(names: Sequence[str], args: tuple[Any, ...], kws: Any, optional: int = 0) -> dict[str, Any] | None:
    """Returns the types of a call's arguments by the names of the parameters. The arguments of the last ``optional``
    parameters may be left out. Returns None if the arguments do not fit the parameters."""
    named = dict(kws or {})
    given = dict(zip(names, args, strict=False)) | named
    fits = set(names[: len(names) - optional]) <= set(given) <= set(names)
    return given if fits and len(given) == len(args) + len(named) else None


def parameters(*names: str, **defaults: Any) -> inspect.Signature:
    """Returns the signature of a function whose parameters can all be given by position or by name."""
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    plain = [inspect.Parameter(name, either) for name in names]
    return inspect.Signature(
        [*plain, *(inspect.Parameter(name, either, default=value) for name, value in defaults.items())]
    )


def first_parameters(function: Any, count: int) -> inspect.Signature:
    """Returns a signature of the first ``count`` parameters of a function of the language, without defaults and
    annotations."""
    parameters = list(inspect.signature(function).parameters.values())[:count]
    return inspect.Signature([each.replace(default=each.empty, annotation=each.empty) for each in parameters])


class Members:
    """Gives access by name to the members of a structure. Reading and assigning a member emits instructions on values.
    numba's own proxies keep each structure in memory instead, and LLVM must promote it to registers."""

    __slots__ = ("_builder", "_model", "_value")

    def __init__(self, builder: Any, model: Any, value: Any) -> None:
        for name, each in zip(self.__slots__, (builder, model, value), strict=True):
            object.__setattr__(self, name, each)

    def __getattr__(self, name: str) -> Any:
        return self._model.get(self._builder, self._value, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "_value", self._model.set(self._builder, self._value, value, name))

    def _getvalue(self) -> Any:
        """Returns the structure. The method has the name of numba's method."""
        return self._value


def proxy(context: Any, builder: Any, kind: Any, value: Any = None) -> Members:
    """Returns a ``Members`` for a structure of the type ``kind``: for ``value``, or for a new structure of zeros."""
    model = context.data_model_manager[kind]
    return Members(builder, model, ir.Constant(model.get_value_type(), None) if value is None else value)


def value_if(builder: Any, holds: Any, likely: Callable[[], Any], otherwise: Any) -> Any:
    """Emits a branch on ``holds``. Returns the value that the code emitted by ``likely`` computes if ``holds`` is true,
    and ``otherwise`` if it is false. The code of ``likely`` runs only if ``holds`` is true."""
    return values_if(builder, holds, lambda: [likely()], [otherwise])[0]


def values_if(builder: Any, holds: Any, likely: Callable[[], list[Any]], otherwise: list[Any]) -> list[Any]:
    """Does what ``value_if`` does for several values."""
    before = builder.basic_block
    with builder.if_then(holds, likely=True):
        values = likely()
        end = builder.basic_block
    results = []
    for value, other in zip(values, otherwise, strict=True):
        result = builder.phi(other.type)
        result.add_incoming(value, end)
        result.add_incoming(other, before)
        results.append(result)
    return results


# Whose code


def is_numbas(file: str) -> bool:
    """Returns whether a file belongs to numba or to oxide's compiler, and so not to a kernel's author."""
    return rank_of(file) == 0


def rank_of(file: str) -> int:
    """Ranks how near a file is to a kernel's author: 0 for numba and oxide's compiler, 1 for the rest of oxide and for
    ``oxide_kernels``, 2 for any other file."""
    if file.startswith(_COMPILERS):
        return 0
    return 1 if file.startswith(_LIBRARIES) else 2


def _folder(file: str) -> str:
    return str(Path(file).parent) + os.sep


_OXIDE = Path(advice.__file__).parents[2]
_COMPILERS = (_folder(numba.__file__), _folder(numba.cuda.__file__), f"{_OXIDE / 'compiler'}{os.sep}")
_LIBRARIES = (f"{_OXIDE}{os.sep}", f"{_OXIDE}_kernels{os.sep}")
