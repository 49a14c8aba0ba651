"""Chains elementwise kernels into one kernel.

``fused`` takes *stages*: specializations in the order of their launches, each with the number of the *value* that is
bound to each of its parameters. A value is a number or an array. Two parameters with one value number get the same
memory. The result is an ordinary ``Kernel``, launched with the values in the order of ``FusedKernel.arguments``.

The fused kernel computes what the launches of the stages compute, if the caller guarantees these conditions:

- Call an array *own* if each thread of a stage accesses only the array's element at its own index. All own arrays, of
  all stages, are contiguous and have the same number of elements. The own arrays of stages with ``thread.index_2d``
  have the same shape. The fused kernel's contracts check these sizes at its launch, except for values in ``dead``.
- Two values with different numbers do not overlap in memory, if a stage writes one of them.
- The launch of each stage has at least as many threads as the own arrays have elements, along each axis.
- The launches of the stages were checked: their contracts hold. The fused kernel has the stages' contracts too.
- The content of a value in ``dead`` is not needed after the fused kernel. Such a value need not have memory.

A fault in a stage names the stage's kernel (``FaultSite.kernel``). The block and the thread of a fault are those of the
fused launch. Each of its threads computes four elements. An element that a stage does not write because of a fault is 0
afterwards, or has its old value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, final

from oxide.compiler.declaration.description import LaunchNeeds
from oxide.compiler.elementwise import ITEMS, Elementwise, OwnAccess
from oxide.compiler.ir.parameters import argument_types, element_type
from oxide.compiler.ir.values import identifier
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.signature import Closed, NumbaParameter, Parameter
from oxide.driver import sanitizing
from oxide.errors import LaunchError

if TYPE_CHECKING:
    from oxide.compiler.bounds.hoist import Placement
    from oxide.compiler.ir.portable import PortableKernel
    from oxide.compiler.kernel.specialization import Specialization, SpecializedKernel

    from .composition import Part, Words
    from .prologue import Reads

T = TypeVar("T")

BLOCK = 256
"""The number of threads in a block of a fused kernel's launch."""


_MOST_CHAINS = 1000
_REMEMBERED = 32
"""The most fused kernels that are kept for each first stage. The least recently used is dropped: otherwise a library's
kernel would keep alive all kernels that were ever fused with it."""


class NotFused(LaunchError):
    """Raised for stages that cannot be one kernel. ``reason`` says why, in words."""

    def __init__(self, stages: str, reason: str) -> None:
        super().__init__(f"{stages} cannot be one kernel: {reason}")
        self.reason = reason


NotFused.__name__ = NotFused.__qualname__ = LaunchError.__name__
NotFused.__module__ = LaunchError.__module__


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """A launch to be fused. ``values`` has, for each parameter, the number of its value."""

    special: Specialization
    values: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A fused kernel, and the numbers of the values that it is launched with, in the order of the kernel's
    parameters."""

    kernel: Kernel
    arguments: tuple[int, ...]


def reason_against(special: Specialization) -> str | None:
    """Returns the reason why a kernel cannot be fused with any other, such as "it uses shared memory". None if it
    can."""
    if special.description.sanitize | sanitizing.requested():
        return "it is sanitized"
    if _has_vectors(special):
        return "it has slices of vectors or structures"
    found = element_form_of(special).elementwise
    return found if isinstance(found, str) else None


def _has_vectors(special: Specialization) -> bool:
    return any(
        isinstance(each, Parameter) and (each.components > 1 or each.structure is not None)
        for each in special.parameters
    )


def element_form_of(special: Specialization) -> Specialization:
    """Returns the specialization that is fused in place of ``special``: that of the kernel's ``each`` if it has one,
    else ``special`` itself."""
    each = special.kernel.each
    if each is None:
        return special
    known: Specialization | None = special.chains.get(each)
    if known is None:
        parameters = tuple(_named(p, each.name, p.name) for p in special.parameters)
        known = special.chains.setdefault(each, each.specialization(parameters))
    return known


def reason_apart(stages: tuple[Stage, ...]) -> str | None:
    """Returns the reason why stages cannot be one kernel, or None if they can. Assumes that some of their outputs are
    needed afterwards."""
    known = stages[0].special.chains
    if stages not in known:
        if len(known) > _MOST_CHAINS:
            known.clear()
        try:
            _ = Fusion(stages, frozenset()).values
        except NotFused as error:
            known[stages] = error.reason
        else:
            known[stages] = None
    reason: str | None = known[stages]
    return reason


def fused(stages: Sequence[Stage], dead: Collection[int] = ()) -> FusedKernel:
    """Returns one kernel for some stages. ``dead`` has the numbers of the values that nothing reads afterwards.

    Raises ``NotFused``, before anything is compiled, for a stage that is not elementwise, for a stage that reads other
    threads' elements of an array that another stage writes, and if nothing needs any of the outputs.
    """
    specials, bound = zip(*((stage.special, stage.values) for stage in stages), strict=True)
    key = specials, bound, frozenset(dead)

    def made() -> FusedKernel:
        fusion = Fusion(tuple(stages), frozenset(dead))
        kernel = _kernel_of(specials[0].kernel, fusion, block=BLOCK, items_per_thread=ITEMS, requires=fusion.contracts)
        return FusedKernel(kernel, tuple(value.number for value in fusion.passed))

    return _remembered(specials[0].fusions, key, made)


def _remembered(fusions: dict[Any, Any], key: Any, make: Callable[[], T]) -> T:
    """Returns what ``fusions`` has for a key, or else what ``make`` returns."""
    found: T | None = fusions.pop(key, None)
    if found is None:
        found = make()
    fusions[key] = found
    while len(fusions) > _REMEMBERED:
        fusions.pop(next(iter(fusions)), None)
    return found


def _kernel_of(first: SpecializedKernel, fusion: Fusion | Prologue, **options: Any) -> Kernel:
    """Returns the kernel that is compiled from ``fusion``. Its function has the file and the line of the kernel
    ``first``."""
    code = first.function
    assert isinstance(code, FunctionType)
    name = fusion.name
    function = FunctionType(code.__code__, code.__globals__, name, code.__defaults__, code.__closure__)
    function.__module__ = code.__module__
    function.__qualname__ = name
    return Kernel(
        function,
        launches=None if first.launches is None else first.launches.again(),
        compiling=first.compiling,
        compiled=first.compiled,
        sanitizable=False,
        fusion=fusion,
        **options,
    )


@final
@dataclass(slots=True)
class _Value:
    """A value of the fused kernel. ``own`` says whether threads access only their own elements of it in some stage,
    ``read`` whether these elements are read before a stage has written them, ``written`` whether a stage writes them,
    and ``table`` whether a stage reads the value at any index."""

    number: int
    parameter: Closed
    own: bool = False
    read: bool = False
    written: bool = False
    table: bool = False
    stored: bool = False
    """True if the elements are written to memory."""
    shapes: bool = False
    """True if the value is passed because its shape is needed."""

    @property
    def ndim(self) -> int:
        return self.parameter.ndim if isinstance(self.parameter, Parameter) else 0

    @property
    def is_passed(self) -> bool:
        return not self.own or self.read or self.stored or self.table or self.shapes

    @property
    def as_passed(self) -> Closed:
        """Returns the fused kernel's parameter for this value."""
        if not self.own or not isinstance(self.parameter, Parameter):
            return self.parameter
        return replace(self.parameter, kind="disjoint" if self.stored else "slice")


@final
@dataclass(frozen=True)
class Fusion:
    """The source of a fused kernel. A ``Kernel`` compiles it instead of a thread kernel's function."""

    stages: tuple[Stage, ...]
    dead: frozenset[int]

    @cached_property
    def name(self) -> str:
        """Returns the name of the fused kernel: the names of the stages."""
        return "+".join(stage.special.kernel.name for stage in self.stages)

    @cached_property
    def values(self) -> tuple[_Value, ...]:
        """Returns the values of all stages. Raises ``NotFused``."""
        found: dict[int, _Value] = {}
        for stage in self.stages:
            self._add(stage, found)
        for value in found.values():
            value.stored = value.written and value.number not in self.dead
            if value.written and value.table:
                reason = f"one writes {value.parameter.name}, and another reads it at other indices than its thread's"
                raise NotFused(self.name, reason)
        matrices = [value for value in found.values() if value.own and value.ndim == 2]
        if matrices and not any(value.is_passed for value in matrices):
            matrices[0].shapes = True
        return tuple(found.values())

    def _add(self, stage: Stage, found: dict[int, _Value]) -> None:
        """Adds the accesses of a stage to the values in ``found``. Raises ``NotFused``."""
        name = stage.special.kernel.name
        why = reason_against(stage.special)
        if why is not None:
            raise NotFused(self.name, f"kernel {name}: {why}")
        own = own_accesses(stage.special)
        for parameter, number in zip(stage.special.parameters, stage.values, strict=True):
            value = found.get(number)
            if value is None:
                named = _named(parameter, self.name, _unique(name, parameter, found))
                value = found[number] = _Value(number, named)
            elif _content(value.parameter) != _content(parameter) or (
                value.ndim != _ndim(parameter) and (value.table or parameter.name not in own)
            ):
                reason = f"{name} takes a value as {parameter.annotation}, another as {value.parameter.annotation}"
                raise NotFused(self.name, reason)
            access = own.get(parameter.name)
            if access is None:
                value.table |= parameter.kind == "slice"
                continue
            value.own = True
            if isinstance(value.parameter, Parameter):  # a matrix in one stage may be a row in another
                value.parameter = replace(value.parameter, ndim=max(value.ndim, _ndim(parameter)))
            value.read |= not value.written and (access.reads or (access.writes and not access.always))
        # Set only after the first loop, because a stage may have one value for several parameters.
        for parameter, number in zip(stage.special.parameters, stage.values, strict=True):
            access = own.get(parameter.name)
            if access is not None and access.writes:
                found[number].written = True

    @cached_property
    def passed(self) -> tuple[_Value, ...]:
        """Returns the values that a launch passes, in the order of the parameters."""
        return tuple(value for value in self.values if value.is_passed)

    @cached_property
    def parameters(self) -> tuple[Closed, ...]:
        """Returns the parameters of the fused kernel."""
        return tuple(value.as_passed for value in self.passed)

    @cached_property
    def contracts(self) -> tuple[str, ...]:
        """Returns the contracts of the fused kernel: equal sizes of its own arrays, and the contracts of the stages.
        Raises ``NotFused``, also if nothing needs any output."""
        if not any(value.stored for value in self.values):
            raise NotFused(self.name, "nothing needs any of its outputs")
        by_number = {value.number: value for value in self.values}
        first, *others = (value for value in self.passed if value.own)
        texts = dict.fromkeys(f"{_size(first)} == {_size(other)}" for other in others)
        matrix, *matrices = [value for value in (first, *others) if value.ndim == 2] or [first]
        texts |= dict.fromkeys(
            f"{matrix.parameter.name}.shape[1] == {other.parameter.name}.shape[1]" for other in matrices
        )
        for stage, special in zip(self.stages, self.sources, strict=True):
            names: dict[str, str] = {}
            lengths: dict[str, str] = {}
            for parameter, number in zip(special.parameters, stage.values, strict=True):
                value = by_number[number]
                names[parameter.name] = matrix.parameter.name if value.own else value.parameter.name
                lengths[parameter.name] = _size(first) if value.own else f"len({value.parameter.name})"
            for contract in special.description.contracts:
                renamed = _Renamed(names, lengths).visit(ast.parse(contract.text, mode="eval").body)
                if ast.unparse(renamed.left) != ast.unparse(renamed.comparators[0]):
                    texts[ast.unparse(renamed)] = None
        return tuple(texts)

    @cached_property
    def sources(self) -> tuple[Specialization, ...]:
        """Returns the specialization that each stage is compiled from."""
        return tuple(element_form_of(stage.special) for stage in self.stages)

    @property
    def needs(self) -> LaunchNeeds:
        """Returns the requirements on the launches of the fused kernel."""
        return LaunchNeeds(index_1d=True, unchecked=any(special.needs.unchecked for special in self.sources))

    @property
    def bindings(self) -> tuple[str, ...]:
        """Returns texts that are equal for two fusions if both bind the stages' parameters in the same way."""
        places = {value.number: place for place, value in enumerate(self.values)}
        bound = (str([places[number] for number in stage.values]) for stage in self.stages)
        return *bound, str([place for place, value in enumerate(self.values) if value.written and not value.stored])

    def portable(self) -> tuple[PortableKernel, tuple[Placement, ...]]:
        """Returns the IR of the fused kernel, and where each check is done."""
        from .composition import compose  # here, as it loads LLVM, which a cached kernel does not need

        parts, words, placements = self.composed()
        symbol = "oxide.fused." + identifier(self.name)
        return compose(self.name, symbol, parts, words), placements

    @cached_property
    def places(self) -> dict[int, int]:
        """Returns the index of each value among the ``Words``, by its number. Those that a launch passes come first."""
        ordered = sorted(self.values, key=lambda value: not value.is_passed)
        return {value.number: place for place, value in enumerate(ordered)}

    def composed(self) -> tuple[list[Part], list[Words], tuple[Placement, ...]]:
        """Returns the stages as IR, a ``Words`` for each value, and where each check is done."""
        from .composition import Part, Words

        places = self.places
        types: dict[int, tuple[str, ...]] = {}
        parts: list[Part] = []
        placements: list[Placement] = []
        for stage, special in zip(self.stages, self.sources, strict=True):
            count = sum(len(part.sites) for part in (each.portable for each in parts))
            placements += (replace(each, site=each.site + count) for each in special.placements if each.site >= 0)
            own = frozenset(own_accesses(stage.special))
            sites = tuple(replace(site, kernel=stage.special.kernel.name) for site in special.sites)
            portable = replace(special.portable, sites=sites)
            axes = accesses_of(stage.special).axes
            bound = tuple(places[number] for number in stage.values)
            parts.append(Part(portable, special.parameters, bound, own, axes))
            types |= zip(stage.values, argument_types(special.parameters, portable.function), strict=True)
        words = [
            Words(
                () if not value.is_passed else ("ptr", *["i64"] * value.ndim) if value.own else types[value.number],
                (element_type(value.parameter) or "") if value.own and isinstance(value.parameter, Parameter) else "",
                value.read,
                value.stored,
            )
            for value in sorted(self.values, key=lambda value: places[value.number])
        ]
        return parts, words, tuple(placements)


@final
@dataclass(frozen=True)
class Prologue:
    """The source of a kernel that computes the elements of some of its slices where it reads them. It is made from the
    kernel ``consumer``, which reads the elements, and the ``stages``, which compute them. Nothing but the consumer
    needs the elements. ``aligned`` has the numbers of the values that begin at a multiple of 16 bytes.

    The kernel's parameters are those of the consumer, followed by the inputs of the stages. For a slice whose elements
    are computed, a launch passes the lengths and an address of which only the low bits count, because the consumer may
    test the alignment.
    """

    stages: tuple[Stage, ...]
    consumer: Stage
    aligned: frozenset[int]

    @cached_property
    def chain(self) -> Fusion:
        """Returns the stages as a ``Fusion`` whose values are all dead: none of the outputs is needed in memory."""
        return Fusion(self.stages, frozenset(number for stage in self.stages for number in stage.values))

    @cached_property
    def name(self) -> str:
        """Returns the name of the kernel: the names of the stages and of the consumer."""
        return f"{self.chain.name}+{self.consumer.special.kernel.name}"

    @cached_property
    def computed(self) -> dict[str, int]:
        """Returns the numbers of the computed values, by the consumer's parameters."""
        written = {value.number for value in self.chain.values if value.written}
        pairs = zip(self.consumer.special.parameters, self.consumer.values, strict=True)
        return {parameter.name: number for parameter, number in pairs if number in written}

    @cached_property
    def parameters(self) -> tuple[Closed, ...]:
        """Returns the parameters of the kernel."""
        taken = {parameter.name for parameter in self.consumer.special.parameters}
        found = [_named(each, self.name, each.name) for each in self.consumer.special.parameters]
        for value in self.chain.passed:
            each = value.as_passed
            names = (f"{each.name}{'_' * n}" for n in range(len(taken) + 1))
            each = _named(each, self.name, next(name for name in names if name not in taken))
            taken.add(each.name)
            found.append(each)
        return tuple(found)

    @property
    def sources(self) -> tuple[Specialization, ...]:
        """Returns the specializations that the kernel is compiled from."""
        return *self.chain.sources, self.consumer.special

    @property
    def needs(self) -> LaunchNeeds:
        """Returns the requirements on the launches of the kernel."""
        return self.consumer.special.needs

    @property
    def bindings(self) -> tuple[str, ...]:
        """Returns texts that are equal for two prologues if both bind the parameters in the same way."""
        places = {value.number: place for place, value in enumerate(self.chain.values)}
        aligned = sorted(place for number, place in places.items() if number in self.aligned)
        computed = {name: places[number] for name, number in self.computed.items()}
        return "prologue", *self.chain.bindings, str(computed), str(aligned)

    def portable(self) -> tuple[PortableKernel, tuple[Placement, ...]]:
        """Returns the IR of the kernel, and where each check is done. Raises ``NotFused``."""
        from .prologue import Refused, compute_at_reads

        parts, words, _ = self.chain.composed()
        places = self.chain.places
        computed = {name: places[number] for name, number in self.computed.items()}
        aligned = frozenset(place for number, place in places.items() if number in self.aligned)
        special = self.consumer.special
        try:
            made = compute_at_reads(
                self.name, special.portable, special.parameters, special.kernel.name, parts, words, computed, aligned
            )
        except Refused as error:
            raise NotFused(self.name, str(error)) from None
        return made, special.placements


def reads_of(special: Specialization, parameter: str) -> Reads | str:
    """Returns how a kernel reads a slice, or why the elements of the slice cannot be computed where it reads them."""
    from .prologue import reads_of as found  # here, as it loads LLVM

    key = "reads", parameter
    if key not in special.chains:
        described = special.description
        reasons = {
            "it is a tile kernel": described.tile is not None,
            "it is a fused kernel": described.fusion is not None,
            "it has numba-cuda's semantics": described.adopted
            or any(isinstance(each, NumbaParameter) for each in special.parameters),
            "it has clusters of blocks": described.cluster is not None,
            "it has slices of vectors or structures": _has_vectors(special),
            "it copies tiles": bool(special.needs.tiled),
            "it has line tables": described.lineinfo,
            "it is interpreted": described.interpreted,
            "it is sanitized": bool(described.sanitize | sanitizing.requested()),
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        special.chains[key] = reason or found(special.portable, special.parameters, parameter)
    result: Reads | str = special.chains[key]
    return result


def with_prologue(stages: Sequence[Stage], consumer: Stage, aligned: Collection[int]) -> FusedKernel | str:
    """Returns the kernel that computes the stages where ``consumer`` reads their results, or the reason why there is no
    such kernel. The kernel's arguments are those of the consumer, followed by the inputs of the stages.

    The caller guarantees that the conditions of ``fused`` hold for the stages, that only the consumer needs their
    results, that it reads the results in slices that ``reads_of`` allows, and that it writes none of the stages'
    inputs.
    """
    key = "prologue", tuple(stages), consumer, frozenset(aligned)

    def made() -> FusedKernel | str:
        source = Prologue(tuple(stages), consumer, frozenset(aligned))
        described = consumer.special.description
        try:
            kernel = _kernel_of(
                consumer.special.kernel,
                source,
                block=described.default_block,
                unchecked=described.unchecked,
                max_registers=described.max_registers,
                requires=[contract.text for contract in described.contracts],
            )
            kernel.specialize()
        except NotFused as error:
            return error.reason
        return FusedKernel(kernel, (*consumer.values, *(value.number for value in source.chain.passed)))

    return _remembered(stages[0].special.fusions, key, made)


def accesses_of(special: Specialization) -> Elementwise:
    """Returns the accesses of an elementwise kernel."""
    found = element_form_of(special).elementwise
    assert isinstance(found, Elementwise), found
    return found


def own_accesses(special: Specialization) -> Mapping[str, OwnAccess]:
    """Returns the accesses of an elementwise kernel to its own slices, by parameter. In an own slice, each thread
    accesses only its own element."""
    return {each.name: each for each in accesses_of(special).own}


def _unique(kernel: str, parameter: Closed, found: Mapping[int, _Value]) -> str:
    """Returns an unused name in the fused kernel for a stage's parameter."""
    taken = {value.parameter.name for value in found.values()}
    base = f"{kernel}_{parameter.name}"
    return next(name for name in (base, *(f"{base}_{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _named(parameter: Closed, kernel: str, name: str) -> Closed:
    """Returns a parameter as another kernel's, under a new name. Parameters with numba-cuda's semantics stay."""
    return replace(parameter, kernel=kernel, name=name) if isinstance(parameter, Parameter) else parameter


def _content(parameter: Closed) -> tuple[object, ...]:
    """Returns a key that must be equal for two parameters that are bound to one value."""
    if isinstance(parameter, Parameter) and parameter.kind in ("slice", "disjoint"):
        return (parameter.scalar.name,)
    return (parameter.identity,)


def _ndim(parameter: Closed) -> int:
    return parameter.ndim if isinstance(parameter, Parameter) else 0


def _size(value: _Value) -> str:
    """Returns the number of elements of an array, as contracts write it."""
    name = value.parameter.name
    return f"len({name})" if value.ndim == 1 else f"{name}.shape[0] * {name}.shape[1]"


@final
class _Renamed(ast.NodeTransformer):
    """Renames the parameters in a contract. ``lengths`` has the expression that replaces ``len(a)``, for each parameter
    ``a``."""

    def __init__(self, names: Mapping[str, str], lengths: Mapping[str, str]) -> None:
        self.names = names
        self.lengths = lengths

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(args=[ast.Name(id=name)]):
                return ast.parse(self.lengths[name], mode="eval").body
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.names[node.id], ast.Load())
