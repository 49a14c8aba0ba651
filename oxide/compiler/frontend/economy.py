"""Runs numba's pipeline without the work that kernels do not need. This module leaves out or shortens this work:

- Reference counting: numba computes the lifetimes of all variables after most passes, and inserts a ``del`` after each
  last use. A kernel allocates nothing, so this work has no use.
- Control flow: numba builds SSA form with one pass over the whole function for each variable. It finds dominators and
  back edges in a time that grows with the square of a function's length. It looks for loops after every pass.
- Error texts: numba gives colour to the text of each internal error, and type inference catches dozens of them.
- Lowering: numba reads the signature of each lowering function at each use, and searches all implementations of a
  conversion for each new literal.
- Passes: numba times each pass for its event log.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

from numba.core import errors as core_errors
from numba.core import types as core_types
from numba.cuda.compiler import CUDACompiler
from numba.cuda.core import base, errors, ssa, transforms, untyped_passes
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import PassManager, _pass_registry
from numba.cuda.core.controlflow import CFGraph
from numba.cuda.core.postproc import PostProcessor, VariableLifetime

from .lowering.inference import ColumnPlace


@contextmanager
def without_waste() -> Iterator[None]:
    """Makes numba use the functions of this module within the ``with`` block.

    The caller must hold numba's compiler lock, so that no other thread compiles meanwhile.
    """
    try:
        for owner, name, own, _ in _REPLACED:
            setattr(owner, name, own)
        yield
    finally:
        for owner, name, _, numbas in _REPLACED:
            setattr(owner, name, numbas)


_postprocess_with_lifetimes = PostProcessor.run
_variables_of_any = numba_ir.Inst._rec_list_vars


def _postprocess(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    found = self.func_ir
    if found.is_generator:
        _postprocess_with_lifetimes(self, emit_dels, extend_lifetimes)
        return
    found.blocks = transforms.canonicalize_cfg(found.blocks)
    found.variable_lifetime = VariableLifetime(found.blocks)  # computes each lifetime on demand
    found.generator_info = None


def _variables(self: Any, value: Any) -> list[Any]:
    """Returns the variables in a part of an instruction. numba's own method tests each part against all classes of its
    IR, and makes a list for each part."""
    found: list[Any] = []
    _collect_variables(self, value, found)
    return found


def _collect_variables(instruction: Any, value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is numba_ir.Var:
        found.append(value)
    elif kind is numba_ir.Expr:
        _collect_variables(instruction, value._kws, found)
    elif kind is dict:
        for part in value.values():
            _collect_variables(instruction, part, found)
    elif kind is tuple or kind is list:
        for part in value:
            _collect_variables(instruction, part, found)
    elif kind not in _NO_VARIABLE:
        found += _variables_of_any(instruction, value)


_NO_VARIABLE = frozenset(
    (
        *(str, int, float, bool, type(None), type(len)),
        *(numba_ir.Const, numba_ir.Global, numba_ir.FreeVar, numba_ir.Arg, numba_ir.Loc, ColumnPlace),
    )
)


def _define_in_scopes(blocks: dict[int, Any]) -> None:
    """Declares all variables in the scope of the blocks. All blocks share one scope. numba's own function goes through
    all variables once for each block."""
    scopes = {id(block.scope): block.scope for block in blocks.values()}.values()
    for block in blocks.values():
        for statement in block.body:
            for variable in statement.list_vars():
                for scope in scopes:
                    if variable.name not in scope.localvars:
                        scope.localvars.define(variable.name, variable)


class _Indexed(dict[int, Any]):
    """The blocks of a function during SSA construction, with an index: for each variable, the labels of the blocks that
    name it."""

    def __init__(self, blocks: dict[int, Any]) -> None:
        super().__init__(blocks)
        self.naming: dict[str, list[int]] = {}
        for label, block in blocks.items():
            for name in {each.name: None for statement in block.body for each in statement.list_vars()}:
                self.naming.setdefault(name, []).append(label)


def _rewrite_where_named(blocks: dict[int, Any], states: Any, handler: Any) -> dict[int, Any]:
    """Does one step of SSA construction: rewrites the blocks that name the step's variable. numba's own function
    rewrites all blocks for each variable, so its time grows with the square of the number of branches.

    One index serves all steps: a step adds only new versions of its own variable, and no other step looks for these
    versions."""
    rewritten = blocks if isinstance(blocks, _Indexed) else _Indexed(blocks)
    for label in rewritten.naming.get(states["varname"], ()):
        block = rewritten[label]
        states["label"], states["block"] = label, block
        made = numba_ir.Block(scope=block.scope, loc=block.loc)
        made.body = list(ssa._run_ssa_block_pass(states, block, handler))
        rewritten[label] = made
    return rewritten


def _position(self: Any, statement: Any, block: Any, stop: int = -1) -> int:
    """Returns a statement's position in a block, or the block's length if the statement is not before ``stop``.

    numba's own function searches the block for each pair of a read and an assignment."""
    body = block.body
    known = getattr(block, "places", None)
    if known is None or known[0] is not body:
        known = block.places = body, {id(each): place for place, each in enumerate(body)}
    place: int = known[1].get(id(statement), len(body))
    return place if place < (len(body) + stop if stop < 0 else stop) else len(body)


_with_single_back_edges = transforms.canonicalize_cfg_single_backedge


def _canonical(blocks: dict[int, Any]) -> dict[int, Any]:
    """Joins the back edges of each loop, as numba's function does. Few functions have a loop with two back edges, so
    this function first looks for such a loop. It visits each block once, and calls numba's function only if it finds
    one."""
    open_, closed = 1, 2
    states: dict[int, int] = {}
    headers: set[int] = set()
    pending = [min(blocks)]
    while pending:
        label = pending[-1]
        if label in states:
            states[label] = closed
            pending.pop()
            continue
        states[label] = open_
        for target in blocks[label].terminator.get_targets():
            state = states.get(target)
            if state is None:
                pending.append(target)
            elif state == open_:
                if target in headers:
                    joined: dict[int, Any] = _with_single_back_edges(blocks)
                    return joined
                headers.add(target)
    return blocks.copy()


def _dominators(self: Any, post: bool = False) -> dict[Any, set[Any]]:
    """Returns the dominators, or post-dominators, of each block. Computes numba's fixed point with bit sets.

    Each block is visited after its predecessors, except along back edges, so few rounds are needed. numba's order
    visits the blocks many more times."""
    entries = set(self._exit_points) if post else {self._entry_point}
    before, after = (self._succs, self._preds) if post else (self._preds, self._succs)
    order = _reverse_postorder(entries, after)
    order += set(self._nodes).difference(order)
    bits = {node: 1 << number for number, node in enumerate(order)}
    found = dict.fromkeys(order, (1 << len(order)) - 1) | {entry: bits[entry] for entry in entries}
    changed = True
    while changed:
        changed = False
        for node in order:
            if node in entries:
                continue
            common = functools.reduce(operator.and_, map(found.__getitem__, before[node])) if before[node] else 0
            if common | bits[node] != found[node]:
                found[node], changed = common | bits[node], True
    members: dict[Any, set[Any]] = {}
    for node in order:
        others = found[node] ^ bits[node]
        # A node's dominators form a chain: the last of the others in this order is dominated by all others.
        nearest = order[others.bit_length() - 1] if others else None
        known = members.get(nearest) if nearest is not None and found[nearest] == others else None
        members[node] = _members(found[node], order) if known is None else known | {node}
    return {node: members[node] for node in dict.fromkeys((*entries, *self._nodes))}


def _reverse_postorder(entries: set[Any], after: Any) -> list[Any]:
    finished: list[Any] = []
    seen = set(entries)
    stack = [(entry, iter(list(after[entry]))) for entry in entries]
    while stack:
        node, following = stack[-1]
        for each in following:
            if each not in seen:
                seen.add(each)
                stack.append((each, iter(list(after[each]))))
                break
        else:
            finished.append(node)
            stack.pop()
    return finished[::-1]


def _members(mask: int, order: list[Any]) -> set[Any]:
    return {node for node, bit in zip(order, reversed(f"{mask:b}"), strict=False) if bit == "1"}


def _back_edges(self: Any, stats: Any = None) -> set[tuple[Any, Any]]:
    """Returns the back edges: the edges from a block to a block on the current path of a depth-first search. Gives the
    same result as numba's method, which searches the whole path for each edge."""
    found: set[tuple[Any, Any]] = set()
    entry = self.entry_point()
    seen = {entry}
    path = {entry: list(self._succs[entry])}  # the blocks in order, each with the successors to visit
    while path:
        node = next(reversed(path))
        if not path[node]:
            del path[node]
            continue
        target = path[node].pop()
        if target in path:
            found.add((node, target))
        elif target not in seen:
            seen.add(target)
            path[target] = list(self._succs[target])
    return found


_takes_place_by_signature = base._has_loc


def _takes_place(function: Any) -> bool:
    """Returns whether a lowering function takes a source location, a parameter named ``loc``. numba builds the
    function's whole signature each time."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return bool(_takes_place_by_signature(function))
    code = function.__code__
    return "loc" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _overload(self: Any, signature: tuple[Any, ...]) -> Any:
    """Returns the implementation for a signature, and caches it for all signatures that differ from this one only in
    literal integers. numba compares all implementations with each new literal of a kernel."""
    found = self._cache.get(signature)
    if found is None:
        general = tuple(
            (type(part), part.literal_type) if type(part) is core_types.IntegerLiteral else part for part in signature
        )
        found = self._cache.get(general)
        if found is None:
            found = self._cache[general] = self._find(signature)
        self._cache[signature] = found
    return found


def _plain(_: Any, message: str, *__: Any, **___: Any) -> str:
    return message


_REPLACED: tuple[tuple[Any, str, Any, Any], ...] = tuple(
    (owner, name, own, getattr(owner, name))
    for owner, name, own in (
        (PostProcessor, "run", _postprocess),
        (numba_ir.Inst, "_rec_list_vars", _variables),
        (CFGraph, "_find_dominators_internal", _dominators),
        (CFGraph, "_find_back_edges", _back_edges),
        (base, "_has_loc", _takes_place),
        (base.OverloadSelector, "find", _overload),
        (ssa, "_run_block_rewrite", _rewrite_where_named),
        (ssa._FixSSAVars, "_stmt_index", _position),
        (transforms, "canonicalize_cfg_single_backedge", _canonical),
        (untyped_passes, "fixup_var_define_in_scope", _define_in_scopes),
        (type(errors.termcolor()), "_markup", _plain),
        (type(core_errors.termcolor()), "_markup", _plain),
    )
    if hasattr(owner, name)  # without colorama, numba has no class with the method ``_markup``
)
"""The attributes of numba that are replaced. Each entry has the owner, the attribute's name, oxide's value and numba's
value."""


class Compiler(CUDACompiler):  # type: ignore[misc]
    """numba-cuda's compiler, with pass lists that are built once. numba builds five lists of passes for each function,
    and searches each list for dependencies, although no pass declares any. That took a twentieth of the front end's
    time for a small kernel."""

    _lists: ClassVar[dict[Any, list[Passes]]] = {}

    def define_pipelines(self) -> list[Passes]:
        state = self.state
        key = type(self), state.func_ir is None, state.flags.no_rewrites, state.flags.enable_ssa
        if key not in self._lists:
            self._lists[key] = [Passes(self.replaced(manager.passes)) for manager in super().define_pipelines()]
        return self._lists[key]

    def replaced(self, passes: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
        """Returns the passes to run instead of ``passes``, which are numba-cuda's. Subclasses override this method."""
        return passes


class Passes(PassManager):  # type: ignore[misc]
    """Runs passes as numba's pass manager does, but without its events, its timers and its checks of what a pass
    returns."""

    def __init__(self, passes: list[tuple[Any, str]]) -> None:
        super().__init__("cuda")
        self.passes = passes
        self.finalize()

    def _runPass(self, index: int, each: Any, state: Any) -> None:
        each.analysis = self._analysis
        with errors.new_error_context(f"Pass {each.name()}"):
            mutated = [run(state) for run in (each.run_initialization, each.run_pass, each.run_finalizer)]
        if _pass_registry.get(type(each)).mutates_CFG:
            if any(mutated):
                PostProcessor(state.func_ir).run()
            else:
                state.func_ir.blocks = transforms.canonicalize_cfg(state.func_ir.blocks)
