"""numba's pipeline without the work that kernels do not need.

numba counts references. For that it computes the lifetimes of all variables after most passes, inserts a ``del`` behind
each last use, and lowers each ``del`` and each assignment to a load of the old value and a store. A kernel allocates
nothing, so none of this has a use. numba builds SSA form with a pass over the whole function for each variable, and
finds dominators in a time that grows with the square of a function's length. numba also gives colour to the text of
each internal error, of which inference catches dozens, and times each pass for its event log.

The machine code stays the same: LLVM used to remove those loads and stores as dead.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from numba.core import errors as core_errors
from numba.cuda import cgutils
from numba.cuda.compiler import CUDACompiler
from numba.cuda.core import analysis, errors, ir_utils, ssa, transforms, untyped_passes
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.compiler_machinery import PassManager, _pass_registry
from numba.cuda.core.controlflow import CFGraph
from numba.cuda.core.postproc import PostProcessor, VariableLifetime
from numba.cuda.lowering import CUDALower

from .lowering.inference import Place


@contextmanager
def without_waste() -> Iterator[None]:
    """Makes numba compute lifetimes when they are read, insert no ``del``, and leave its errors without colour.

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
    found.variable_lifetime = VariableLifetime(found.blocks)  # computes each part on demand
    found.generator_info = None


def _variables(self: Any, value: Any) -> list[Any]:
    """Returns the variables in a part of an instruction. numba's own method tests each part against all classes of its
    IR."""
    kind = type(value)
    if kind is numba_ir.Var:
        return [value]
    return [] if kind in _NO_VARIABLE else _variables_of_any(self, value)


_NO_VARIABLE = frozenset((str, int, float, bool, type(None), type(len), numba_ir.Loc, Place))


def _define_in_scopes(blocks: dict[int, Any]) -> None:
    """Declares all variables in the scope of the blocks. All blocks share one scope, but numba visits it once for each
    block."""
    scopes = {id(block.scope): block.scope for block in blocks.values()}.values()
    for block in blocks.values():
        for statement in block.body:
            for variable in statement.list_vars():
                for scope in scopes:
                    if variable.name not in scope.localvars:
                        scope.localvars.define(variable.name, variable)


def _rewrite_where_named(blocks: dict[int, Any], states: Any, handler: Any) -> dict[int, Any]:
    """Rewrites the blocks that name the variable of one step of SSA construction. numba's own function rewrites all
    blocks for each variable, so its time grows with the square of the number of branches."""
    variable, rewritten = states["varname"], {}
    for label, block in blocks.items():
        names = getattr(block, "names", None)
        if names is None:
            names = block.names = {each.name for statement in block.body for each in statement.list_vars()}
        if variable not in names:
            rewritten[label] = block
            continue
        states["label"], states["block"] = label, block
        made = rewritten[label] = numba_ir.Block(scope=block.scope, loc=block.loc)
        made.body = list(ssa._run_ssa_block_pass(states, block, handler))
        made.names = names  # still valid: a step adds only new versions of its own variable
    return rewritten


def _dominators(self: Any, post: bool = False) -> dict[Any, set[Any]]:
    """Returns the dominators, or post-dominators, of each block: numba's fixed point, computed with bit sets.

    Blocks are visited after their predecessors. In numba's order, blocks are visited again and again."""
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
    return {node: _members(found[node], order) for node in dict.fromkeys((*entries, *self._nodes))}


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


def _plain(_: Any, message: str, *__: Any, **___: Any) -> str:
    return message


_REPLACED: tuple[tuple[Any, str, Any, Any], ...] = tuple(
    (owner, name, own, getattr(owner, name))
    for owner, name, own in (
        (PostProcessor, "run", _postprocess),
        (numba_ir.Inst, "_rec_list_vars", _variables),
        (CFGraph, "_find_dominators_internal", _dominators),
        (ssa, "_run_block_rewrite", _rewrite_where_named),
        (untyped_passes, "fixup_var_define_in_scope", _define_in_scopes),
        (type(errors.termcolor()), "_markup", _plain),
        (type(core_errors.termcolor()), "_markup", _plain),
    )
    if hasattr(owner, name)  # without colorama there are no colours
)
"""The attributes of numba that are replaced: owner, name, oxide's value, and numba's value."""


class Compiler(CUDACompiler):  # type: ignore[misc]
    """numba-cuda's compiler, with a list of passes that is built once. numba builds five lists for each function, and
    searches each for dependencies, which no pass declares. That took a twentieth of the front end's time for a small
    kernel."""

    _lists: ClassVar[dict[Any, list[Passes]]] = {}

    def define_pipelines(self) -> list[Passes]:
        state = self.state
        key = type(self), state.func_ir is None, state.flags.no_rewrites, state.flags.enable_ssa
        if key not in self._lists:
            self._lists[key] = [Passes(self.replaced(manager.passes)) for manager in super().define_pipelines()]
        return self._lists[key]

    def replaced(self, passes: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
        """Returns the passes to run instead of numba-cuda's."""
        return passes


class Passes(PassManager):  # type: ignore[misc]
    """numba's pass manager without events, timers and checks of numba's own passes."""

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


class UncountedLower(CUDALower):  # type: ignore[misc]
    """Lowers variables without counting references: an assignment becomes a store, and a ``del`` becomes nothing."""

    def _find_singly_assigned_variable(self) -> None:
        """Finds the variables that need no memory: assigned once, and read in the same block after that.

        numba's own method searches a block once for each of its variables."""
        if self.func_ir.func_id.is_generator:
            super()._find_singly_assigned_variable()
            return
        assigned: dict[str, int] = {}
        others = set(analysis.must_use_alloca(self.blocks))
        for label, block in self.blocks.items():
            for statement in block.body:
                if isinstance(statement, numba_ir.Del):
                    continue
                target = statement.target.name if isinstance(statement, numba_ir.Assign) else None
                names = [variable.name for variable in ir_utils.compat_list_vars_stmt(statement)]
                others.update(name for name in names if name != target and assigned.get(name) != label)
                if target is not None:
                    if target in assigned or names.count(target) > 1:
                        others.add(target)
                    assigned[target] = label
        self._singly_assigned_vars = assigned.keys() - others
        self._blk_local_varmap: dict[str, Any] = {}

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        pass

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        return cgutils.alloca_once(self.builder, lltype, name=name)  # numba also describes it to debuggers
