"""The CPU's fast path for a launch: one loop over the threads' positions, without checks, which LLVM vectorises.

Most kernels use a thread's coordinates only for its position in the launch, ``blockIdx.x * blockDim.x + threadIdx.x``.
A range of blocks is then one loop over positions. Such a kernel makes three kinds of tests: checks, the test whether
the thread has an element (``if elem is not None``, ``if i < n``), and numba-cuda's test for negative indices. These
tests compare numbers that are *linear* in the position, so each test holds in one interval of positions.

``positions`` writes a function that computes the intersection of these intervals once in each call. ``affine`` explains
why wrap-around cannot make the intersection wrong. The function runs the whole blocks within the intersection in the
loop, without these tests. The blocks before and after run with every check. So a faulty block never takes the fast
path, and its faults are those of the checked code.

LLVM turns the remaining tests in the loop, such as tests of data, into masks. LLVM need not compare addresses: threads
that no barrier separates may run in any order, also in lockstep, so the loop's accesses are marked as independent
across iterations.

The fast path excludes kernels that loop, have local or shared memory, use a thread's coordinates in any other way, or
have a check that is not linear in the position. One kind of loop is allowed: a thread of four elements may loop where
its vectors are incomplete. The fast path then also requires that the thread bypasses this loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, final

from oxide.compiler.bounds.affine import Coefficient, Range, Undecidable
from oxide.compiler.ir import parameters
from oxide.compiler.ir.control_flow import ControlFlow, postorder
from oxide.compiler.ir.llvm import ir_file
from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import (
    INVERSE,
    conditions_of,
    fails_an_assert,
    is_alignment_check,
    is_bounds_check,
    leave_out_unused,
    register_of,
    replace_positions,
)
from oxide.compiler.ir.values import (
    FALSE,
    TRUE,
    Alloca,
    Atomic,
    Binary,
    Block,
    Branch,
    Call,
    Cast,
    Compare,
    Constant,
    GetElementPtr,
    Instruction,
    Load,
    Operation,
    Phi,
    Return,
    Store,
    Switch,
    Unreachable,
    Value,
    number,
)
from oxide.compiler.primitives.effects import CONVERGENT, Effect, having
from oxide.compiler.signature.signature import Closed

CHECKED_BLOCKS = "oxide.checked_blocks"
"""The function that runs a range of blocks with every check. It has the parameters of the entry."""

Line: TypeAlias = tuple[int, Coefficient]
"""A number that is linear in the position, as its factor and its start."""

_PURE = (*having(Effect.PURE), "oxide.maxnum.", "oxide.minnum.", "oxide.round_to_odd")
_IMPURE = (*CONVERGENT, "llvm.mem", "llvm.stack", "llvm.lifetime")


def positions(kernel: PortableKernel, entry: str, signature: tuple[Closed, ...]) -> Module | None:
    """Returns a module with the function ``entry``, which runs a range of a launch's blocks, or None for a kernel that
    needs more than its threads' positions. The caller defines ``CHECKED_BLOCKS``."""
    if kernel.suspends or kernel.cooperative or kernel.shared.used:
        return None
    module, around = kernel.module.copy(), parse(ir_file(__file__, "positions.ll"))
    body, looped = module.functions.pop(kernel.symbol), around.functions.pop("oxide.analysed")
    around.rename("oxide.entry", entry)
    module.adopt(around)
    module.functions[entry].metadata = body.metadata  # its line tables
    try:
        _Positions(body, looped).put_into(module.functions[entry], module, signature)
    except Undecidable:
        return None
    return module


@final
class _Positions:
    """The loop over positions for one kernel. The kernel's basic blocks are the loop's body, in which a return
    continues with the next position."""

    def __init__(self, kernel: Function, looped: Function) -> None:
        self.kernel = kernel
        self.entry = kernel.entry
        self.outside = looped.values
        _, test, self.following, _ = looped.blocks.values()
        replace_positions(kernel, self.outside["%oxide.position"])
        leave_out_unused(kernel)
        _replace_registers(kernel, self.outside)
        for block in kernel.blocks.values():
            if isinstance(block.terminator, Return):
                block.jump_to(self.following)
        test.terminator.replace_operands({self.following: self.entry})
        looped.blocks.update(kernel.blocks)
        flow = ControlFlow(looped)
        self.ranges = Range(flow, next(loop for loop in flow.loops if loop.header is test), "oxide.range")
        self.required: dict[Line, None] = {}
        self.held: list[tuple[Value, Value]] = []
        self.known: dict[Value, bool] = {}

    def put_into(self, function: Function, module: Module, signature: tuple[Closed, ...]) -> None:
        """Completes the function that runs a range of blocks. Raises ``Undecidable``."""
        self._go_round_loops()
        self._require_checks()
        self._require_ways_on()
        self._learn_what_follows()
        self._replace_known()
        self._refuse_other_calls()
        scalarise(self.kernel)
        inside = function.values
        replaced = {value: inside[name] for name, value in self.outside.items() if name in inside}
        replaced |= self._arguments(function, signature)
        add_requirements(function, self.ranges, self.held, self.required)
        *before, turn, following, after = function.blocks.values()
        self._mark(following.terminator, module)
        turn.jump_to(self.entry)
        blocks = (*before, turn, *self.kernel.blocks.values(), following, after)
        function.blocks = {block.name: block for block in blocks}
        function.replace(replaced)

    # The loop's requirements on a position

    def _go_round_loops(self) -> None:
        """Requires that threads bypass a kernel's loops, if only threads with incomplete vectors run these loops.
        Raises ``Undecidable`` for other loops."""
        if not self._cyclic(self.entry):
            return
        if not any(map(_accesses_vector, self.kernel.instructions)):
            raise Undecidable("it loops")
        while self._cyclic(self.entry):
            decided = len(self.known)
            for block in self._reached():
                match block.terminator:
                    case Branch(condition=Value() as condition, yes=yes, no=no) if condition not in self.known:
                        if self._cyclic(yes) != (loops := self._cyclic(no)):
                            self._try(condition, loops)
            if len(self.known) == decided:
                raise Undecidable("it loops")
        if not any(map(_accesses_vector, self._instructions())):
            raise Undecidable("it loops")

    def _require_checks(self) -> None:
        """Requires every check to pass. Raises ``Undecidable`` for a check that is not linear."""
        for instruction in self._instructions():
            if is_alignment_check(instruction):
                self._hold(instruction.operands[2], number(0))
                self.known[instruction] = True
            if is_bounds_check(instruction):
                _, index, length = instruction.operands[1:4]
                self._require(self._ordered("ult", index, length))
                self.known[instruction] = True

    def _hold(self, left: Value, right: Value) -> None:
        """Requires two numbers to be equal. Raises ``Undecidable`` unless each number has one value for all threads."""
        first, second = self.ranges.before(left), self.ranges.before(right)
        if first is None or second is None:
            raise Undecidable("a test that differs from thread to thread")
        self.held.append((first, second))

    def _require_ways_on(self) -> None:
        """If one result of a linear test ends the thread at once, requires the other result. Also requires that indices
        are not negative."""
        ends = {
            block
            for block in self.kernel.blocks.values()
            if block.instructions[0].targets == [self.following] or any(map(fails_an_assert, block.instructions))
        }
        for block in self._reached():
            match block.terminator:
                case Branch(condition=Value() as condition, yes=yes, no=no) if (yes in ends) != (no in ends):
                    self._try(condition, no in ends)
            for instruction in block.instructions:
                match instruction:
                    case Compare(predicate="slt", right=Value(integer=0)):
                        self._try(instruction, False)

    def _try(self, condition: Value, truth: bool) -> None:
        """Requires a condition to have the value ``truth``, as far as the condition consists of linear comparisons.
        Other comparisons stay in the loop."""
        if condition in self.known:
            return
        for part, is_so in conditions_of(condition, truth):
            self._try(part, is_so)
        if isinstance(condition, Compare):
            try:
                if condition.predicate == ("eq" if truth else "ne") and condition.left.type == "i64":
                    self._hold(condition.left, condition.right)
                else:
                    self._require(self._compared(condition, truth))
            except Undecidable:
                return
            self.known[condition] = truth

    def _learn_what_follows(self) -> None:
        """Marks a test as known if the requirements already decide it, such as a test in the kernel's source before an
        access."""
        for instruction in self._instructions():
            match instruction:
                case Binary(opcode="and", operands=both) if all(self.known.get(each) for each in both):
                    self.known[instruction] = True
                case Compare() if instruction not in self.known:
                    for truth in (True, False):
                        try:
                            if self.required.keys() >= set(self._compared(instruction, truth)):
                                self.known[instruction] = truth
                        except Undecidable:
                            pass

    def _require(self, lines: list[Line]) -> None:
        self.required.update(dict.fromkeys(lines))

    def _compared(self, test: Compare, truth: bool) -> list[Line]:
        """Returns the lines that must not be negative, so that the comparison has the value ``truth``. Raises
        ``Undecidable``."""
        if test.opcode != "icmp" or test.predicate not in INVERSE or not test.left.type.startswith("i"):
            raise Undecidable("a test for one position, or of no integers")
        return self._ordered(test.predicate if truth else INVERSE[test.predicate], test.left, test.right)

    def _ordered(self, predicate: str, left: Value, right: Value) -> list[Line]:
        if predicate[1] == "g":
            left, right = right, left
        smaller, larger = self.ranges.line(left), self.ranges.line(right)
        start = self.ranges.word_difference(larger[1], smaller[1], 0 if predicate.endswith("e") else 1)
        order = larger[0] - smaller[0], start
        # Numbers that are not negative compare alike signed and unsigned. If the smaller is not negative, the larger is
        # not either.
        return [order] if predicate[0] == "s" else [smaller, order]

    # The loop's body

    def _replace_known(self) -> None:
        """Replaces known conditions by constants and removes unreachable blocks."""
        reached = dict.fromkeys(self._reached())
        for block in reached:
            targets = self._targets(block)
            if len(targets) == 1:
                block.jump_to(targets[0])
        for block in reached:
            for phi in block.phis:
                ways = {before: value for value, before in phi.incoming if before in reached}
                phi.incoming = [
                    (value, before) for before, value in ways.items() for _ in range(before.successors.count(block))
                ]
            block.instructions = [instruction for instruction in block.instructions if instruction not in self.known]
        self.kernel.blocks = {block.name: block for block in reached}
        self.kernel.replace({test: TRUE if truth else FALSE for test, truth in self.known.items()})

    def _refuse_other_calls(self) -> None:
        for instruction in self.kernel.instructions:
            match instruction:
                case Alloca() | Atomic() | Switch() | Unreachable():
                    raise Undecidable("it has memory of its own, or is not simple")
                case Load(before=words) | Store(before=words) if "volatile" in words:
                    raise Undecidable("it has an access that must happen as it is written")
                case Call(called=name) if not name.startswith(_PURE) or name.startswith(_IMPURE):
                    raise Undecidable("it makes a call that threads cannot make in step")

    def _targets(self, block: Block) -> list[Block]:
        """Returns a block's successors in the body, given the known conditions."""
        match block.terminator:
            case Branch(condition=Value() as condition, yes=yes, no=no) if condition in self.known:
                return [yes if self.known[condition] else no]
        return block.successors if block is not self.following else []

    def _reached(self) -> list[Block]:
        """Returns the body's reachable blocks, each after its dominators."""
        ordered = list(postorder(self.entry, self._targets))
        return [block for block in reversed(ordered) if block is not self.following]

    def _cyclic(self, start: Block) -> bool:
        """Returns whether a loop is reachable from a block."""
        places = {block: place for place, block in enumerate(postorder(start, self._targets))}
        return any(places[target] >= place for block, place in places.items() for target in self._targets(block))

    def _instructions(self) -> Iterator[Instruction]:
        return (instruction for block in self._reached() for instruction in block.instructions)

    # The function

    def _arguments(self, function: Function, signature: tuple[Closed, ...]) -> dict[Value, Value]:
        """Adds loads of the kernel's arguments. Returns the loaded values by parameter; the context parameter has
        none."""
        _, *arguments = self.kernel.arguments
        types = parameters.word_types(signature)
        if len(types) != len(arguments):
            raise Undecidable("a parameter is no machine word")
        structure = "{ " + ", ".join(types) + " }"
        params = function.values["%oxide.params"]
        loaded: dict[Value, Value] = {}
        for place, (argument, type_) in enumerate(zip(arguments, types, strict=True)):
            path = (number(0, "i32"), number(place, "i32"))
            at = GetElementPtr(f"%oxide.at.{place}", structure, params, path)
            word = Load(f"%oxide.word.{place}", type_, at, "")
            code = [at, word]
            if argument.type != type_:
                code.append(Cast(f"%oxide.narrow.{place}", "trunc", word, argument.type))
            function.blocks["%oxide.prepare"].insert(-1, code)
            loaded[argument] = code[-1]
        return loaded

    def _mark(self, latch: Instruction, module: Module) -> None:
        """Marks the loop's accesses as independent across iterations."""
        group = module.add_metadata("distinct !{}")
        for access in self.kernel.instructions:
            # Atomic accesses are left out: LLVM would vectorise them, or abort.
            if isinstance(access, Load | Store) and not access.before:
                access.metadata["!llvm.access.group"] = group
        parallel = module.add_metadata(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
        interleave = module.add_metadata('!{!"llvm.loop.interleave.count", i32 1}')
        loop = module.add_metadata(lambda place: f"distinct !{{!{place}, {parallel}, {interleave}}}")
        latch.metadata["!llvm.loop"] = loop


# The launch's registers


def _replace_registers(kernel: Function, outside: Mapping[str, Value]) -> None:
    """Replaces registers by their values in a one-dimensional launch. Raises ``Undecidable`` if the kernel reads the
    thread's or the block's coordinate along x."""
    replaced: dict[Value, Value] = {}
    for call in kernel.calls:
        match register_of(call).split("."):
            case [""]:
                continue
            case [name, "y" | "z"]:
                replaced[call] = number(int(name.startswith("n")), "i32")
            case ["ntid", "x"]:
                replaced[call] = outside["%oxide.block.x"]
            case ["nctaid", "x"]:
                replaced[call] = outside["%oxide.grid.x"]
            case _:
                raise Undecidable("it uses the thread's coordinates by themselves")
        call.block.replace(call, ())
    kernel.replace(replaced)


def _accesses_vector(instruction: Instruction) -> bool:
    match instruction:
        case Load(type=type_) | Store(value=Value(type=type_)):
            return type_.startswith("<")
    return False


# The blocks that need no checks


def add_requirements(
    function: Function, ranges: Range, held: Iterable[tuple[Value, Value]], required: Iterable[Line]
) -> None:
    """Adds to the function of ``positions.ll`` the instructions that compute the range of blocks. In these blocks, the
    pairs in ``held`` are equal and the lines in ``required`` are not negative.

    A rising line gives a first position, and a falling line gives an end. The range lies between the greatest first
    position and the least end. No computation here can wrap: positions are under 2**42, starts under 2**62, factors
    under 2**19.
    """
    code = list(ranges.code)

    def add(instruction: Instruction) -> Instruction:
        instruction.name = f"%oxide.whole.{len(code)}"
        code.append(instruction)
        return instruction

    def extreme(name: str, left: Value, right: Value) -> Value:
        return add(Call("", "i64", Constant(f"@llvm.{name}.i64", "ptr"), (left, right)))

    def divided(opcode: str, left: Value, right: Value, by: int) -> Value:
        """Adds the division of a sum or a difference by ``by``. For a negative dividend, any quotient that is not
        positive is correct here."""
        value = add(Binary("", opcode, left, right))
        return add(Binary("", "sdiv", value, number(by))) if by > 1 else value

    results = function.blocks["%oxide.choose"].phis
    least, most, holds, least_block = (phi.operands[0] for phi in results)
    conditions = [*ranges.conditions, *(add(Compare("", "eq", left, right)) for left, right in held)]
    for factor, start in required:
        word = number(start) if isinstance(start, int) else start
        if factor == 0:
            conditions.append(add(Compare("", "sge", word, number(0))))
        elif factor > 0 and not (isinstance(start, int) and start >= 0):
            # The line is not negative from ceil(-start / factor) on.
            least = extreme("smax", least, divided("sub", number(factor - 1), word, factor))
        elif factor < 0:
            # The line is not negative before floor(start / -factor) + 1.
            most = extreme("smin", most, divided("add", word, number(-factor), -factor))
    for condition in conditions:
        holds = add(Binary("", "and", holds, condition))
    if least is not results[0].operands[0]:
        ntid = function.values["%oxide.ntid"]
        up = add(Binary("", "sub", add(Binary("", "add", least, ntid)), number(1)))
        least_block = add(Binary("", "udiv", up, ntid))
    for phi, value in zip(results, (least, most, holds, least_block), strict=True):
        phi.operands[0] = value
    function.blocks["%oxide.prepare"].insert(-1, code)


# Vectors

_BYTES = {"float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2}


def scalarise(function: Function) -> None:
    """Splits a function's vector loads and stores into those of elements, since LLVM's loop vectoriser accepts no
    vectors. LLVM then combines the loads of contiguous elements. Leaves the function unchanged if it uses a vector in
    any other way. The order of its blocks must define each value before its use."""
    elements: dict[Value, list[Value]] = {}
    taken: dict[Value, Value] = {}
    split: dict[Instruction, list[Instruction]] = {}
    for place, instruction in enumerate(function.instructions):
        types = (each.type for each in (instruction, *instruction.operands))
        vector = next((type_ for type_ in types if type_.startswith("<")), None)
        if vector is None:
            continue
        count, _, kind = vector[1:-1].partition(" x ")
        parts = split[instruction] = []
        match instruction:
            case Load(pointer=pointer, before="") if kind in _BYTES:
                parts += _accesses(instruction, kind, pointer, [None] * int(count), f"%oxide.part.{place}")
                elements[instruction] = [*parts[1::2]]
            case Store(value=value, pointer=pointer, before="") if kind in _BYTES and value in elements:
                parts += _accesses(instruction, kind, pointer, elements[value], f"%oxide.part.{place}")
            case Operation(opcode="extractelement", operands=[whole, Value(integer=int(index))]) if whole in elements:
                taken[instruction] = elements[whole][index]
            case Operation(opcode="insertelement", operands=[whole, element, Value(integer=int(index))]) if (
                whole in elements or whole.name == "poison"
            ):
                elements[instruction] = list(elements.get(whole, [Constant("poison", kind)] * int(count)))
                elements[instruction][index] = taken.get(element, element)
            case Phi(operands=[whole, _]) if whole in elements:
                elements[instruction] = elements[whole]
            case _:
                return
    for instruction, parts in split.items():
        instruction.block.replace(instruction, parts)
    function.replace(taken)


def _accesses(
    whole: Instruction, kind: str, pointer: Value, stored: list[Value] | list[None], name: str
) -> list[Instruction]:
    """Returns the accesses to a vector's elements, each after its address. ``stored`` has, for each element, the value
    to store, or None for a load."""
    after = f", align {_BYTES[kind]}"
    code: list[Instruction] = []
    for place, value in enumerate(stored):
        at = GetElementPtr(f"{name}.{place}.at", kind, pointer, [number(place)])
        access = Load(f"{name}.{place}", kind, at, after) if value is None else Store(value, at, after)
        access.metadata = dict(whole.metadata)
        code += [at, access]
    return code
