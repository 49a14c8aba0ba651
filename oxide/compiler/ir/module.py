"""The compiler's IR as objects: functions and modules. ``values.py`` has their blocks and instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, final

from .values import Argument, Block, Call, Constant, Instruction, Value, quoted, spaced, suffixed, unquoted

_T = TypeVar("_T")


def reached(start: _T, following: Callable[[_T], Iterable[_T]]) -> list[_T]:
    """Returns a start and all that is reached from it, directly or indirectly, in the order in which it is found."""
    found = {start: None}
    pending = [start]
    for each in pending:  # which grows
        new = [target for target in dict.fromkeys(following(each)) if target not in found]
        found.update(dict.fromkeys(new))
        pending += new
    return pending


@final
class Function:
    """A function, or a declaration, which has no blocks. ``head`` is the text before the name, such as the result's
    type, and ``after`` the text after the parameters."""

    def __init__(self, symbol: str, head: str, arguments: Iterable[Argument], after: str, *, variadic: bool) -> None:
        self.symbol = symbol
        self.head = head
        self.arguments = list(arguments)
        self.after = after
        self.variadic = variadic
        self.blocks: dict[str, Block] = {}
        self.metadata: dict[str, str] = {}
        """The function's metadata nodes, by kind."""
        self._fresh: dict[str, int] = {}

    @property
    def is_declaration(self) -> bool:
        return not self.blocks

    def copy(self) -> Function:
        """Returns a deep copy, with arguments, blocks and instructions of the same names."""
        arguments = [Argument(each.name, each.type, each.attributes) for each in self.arguments]
        result = Function(self.symbol, self.head, arguments, self.after, variadic=self.variadic)
        result.metadata = dict(self.metadata)
        copies: dict[Value, Value] = dict(zip(self.arguments, arguments, strict=True))
        for block in copy_blocks(self.blocks.values(), copies).values():
            result.add(block)
        return result

    def add_attributes(self, *words: str) -> None:
        present = self.after.split()
        self.after = " ".join([*present, *(word for word in words if word not in present)])

    @property
    def entry(self) -> Block:
        return next(iter(self.blocks.values()))

    @property
    def instructions(self) -> Iterator[Instruction]:
        for block in list(self.blocks.values()):
            yield from list(block.instructions)

    @property
    def calls(self) -> Iterator[Call]:
        return (instruction for instruction in self.instructions if isinstance(instruction, Call))

    def users(self) -> dict[Value, list[Instruction]]:
        """Returns the instructions that use each value. A value that nothing uses is not among them."""
        found: dict[Value, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    @property
    def values(self) -> dict[str, Value]:
        """Returns the arguments, instructions and blocks by name."""
        found = (*self.arguments, *self.instructions, *self.blocks.values())
        return {value.name: value for value in found if value.name}

    def add(self, block: Block) -> Block:
        """Adds a block at the end. Its name must be new."""
        assert block.name not in self.blocks, block.name
        self.blocks[block.name] = block
        return block

    def replace(self, replaced: Mapping[Value, Value]) -> None:
        """Replaces operands in all instructions: each key of ``replaced`` by the key's value."""
        old = replaced.keys()
        for instruction in self.instructions:
            if not old.isdisjoint(instruction.operands):
                instruction.replace_operands(replaced)

    def supersede(self, replaced: Mapping[Value, Value]) -> None:
        """Removes the instructions that are keys of ``replaced``, and replaces their uses by the keys' values."""
        for block in self.blocks.values():
            block.instructions = [each for each in block.instructions if each not in replaced]
        self.replace(replaced)

    def substitute(self, old: Instruction, *new: Instruction) -> None:
        """Replaces an instruction by new instructions, and its uses by uses of the last of them. The old instruction
        may be one of the new ones, and the others may then use it."""
        self.replace({old: new[-1]})
        old.block.replace(old, new)

    def split(self, parts: Mapping[Instruction, str]) -> list[Block]:
        """Splits blocks. ``parts`` maps instructions to the names of new blocks. Each of these instructions, with all
        that follow it in its block, moves to its new block, which is placed after the old block. The phis of the
        successors are updated. The old blocks then have no terminator. Returns the new blocks in the order of
        ``parts``, which must list the instructions of one block in their order."""
        following: dict[Block, Block] = {}
        for before, name in parts.items():
            old = before.block
            place = old.instructions.index(before)
            rest = Block(name, old.instructions[place:])
            del old.instructions[place:]
            for after in rest.successors:
                for phi in after.phis:
                    phi.replace_operands({old: rest})
            following[old] = rest
        blocks: dict[str, Block] = {}
        for first in self.blocks.values():
            block: Block | None = first
            while block is not None:
                blocks[block.name] = block
                block = following.get(block)
        self.blocks = blocks
        return list(following.values())

    def __str__(self) -> str:
        listed = [f"{each.type} {spaced(each.attributes)}{each.name}".rstrip() for each in self.arguments]
        if self.variadic:
            listed.append("...")
        word = "declare" if self.is_declaration else "define"
        head = f"{word} {self.head} @{quoted(self.symbol)}({', '.join(listed)}){' ' * bool(self.after)}{self.after}"
        if self.is_declaration:
            return head
        head += "".join(f" {kind} {node}" for kind, node in self.metadata.items())
        lines = [head + " {"]
        for block in self.blocks.values():
            lines.append(f"{block.name[1:]}:")
            lines += map(str, block.instructions)
        return "\n".join([*lines, "}"])


def copy_blocks(blocks: Iterable[Block], copies: dict[Value, Value], suffix: str = "") -> dict[Block, Block]:
    """Returns a copy of each block. The names in the copies end in the suffix. ``copies`` has what replaces their
    operands. The copies of the blocks and of their instructions are added to it."""
    found = {block: Block(suffixed(block.name, suffix)) for block in blocks}
    for block, copied in found.items():
        copies[block] = copied
        for instruction in block.instructions:
            name = suffixed(instruction.name, suffix) if instruction.name else ""
            copy = copies[instruction] = instruction.copy({}, name)
            copied.append(copy)
    for copied in found.values():
        for copy in copied.instructions:
            copy.replace_operands(copies)
    return found


_SYMBOL = re.compile(r'@((?:"[^"]*"|[-\w$.]+))')

_REFERENCE = re.compile(r'"[^"]*"|!(\d+)')
"""Matches a reference to a metadata node, or a whole string, so that text in a string is not taken for a reference."""


@final
class Module:
    """A module of IR. ``globals`` maps the name of each variable and named type to its line of text. ``metadata`` maps
    the number of each node to its text."""

    def __init__(self) -> None:
        self.globals: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.attributes: list[str] = []
        self.named_metadata: list[str] = []
        self.metadata: dict[int, str] = {}

    def declare(self, result: str, symbol: str, parameters: Iterable[str], after: str = "") -> Constant:
        """Declares a function, if the module does not have it yet. Returns the function as an operand."""
        if symbol not in self.functions:
            arguments = [Argument("", type_) for type_ in parameters]
            self.functions[symbol] = Function(symbol, result, arguments, after, variadic=False)
        return Constant(f"@{quoted(symbol)}", "ptr")

    def rename(self, symbol: str, name: str) -> None:
        """Renames a function, also where it is called. No function of the module may have the new name yet."""
        function = self.functions.pop(symbol)
        function.symbol = name
        self.functions[name] = function
        callee = Constant(f"@{quoted(name)}", "ptr")
        for defined in self.defined:
            for call in defined.calls:
                if call.called == symbol:
                    call.operands[0] = callee

    def copy(self) -> Module:
        """Returns a deep copy for a pass to edit."""
        result = Module()
        result.globals, result.metadata = dict(self.globals), dict(self.metadata)
        result.attributes, result.named_metadata = list(self.attributes), list(self.named_metadata)
        result.functions = {symbol: function.copy() for symbol, function in self.functions.items()}
        return result

    @property
    def defined(self) -> list[Function]:
        return [function for function in self.functions.values() if not function.is_declaration]

    def adopt(self, other: Module) -> None:
        """Adds another module's functions and variables, and the metadata that they refer to. A definition replaces a
        declaration. If both modules define a function, this module's definition is kept. A variable whose content
        differs from this module's variable of the same name gets a new name."""
        nodes: dict[str, str] = {}
        renamed: dict[str, str] = {}
        for name, line in other.globals.items():
            new, content = name, line.partition(" = ")[2]
            while name[0] != "%" and self.globals.get(new, line).partition(" = ")[2] != content:
                new = renamed[name] = f"{name}.{len(self.globals)}.{len(renamed)}"
            self.globals.setdefault(new, line if new == name else f"@{quoted(new)} = {content}")
        for symbol, function in other.functions.items():
            known = self.functions.get(symbol)
            if known is not None and (function.is_declaration or not known.is_declaration):
                continue
            self.functions[symbol] = function
            for instruction in function.instructions:
                if renamed:
                    instruction.operands = [_with_names(operand, renamed) for operand in instruction.operands]
                for kind, node in instruction.metadata.items():
                    instruction.metadata[kind] = self._adopt_metadata(other, node, nodes)

    def _adopt_metadata(self, other: Module, node: str, nodes: dict[str, str]) -> str:
        """Adds another module's metadata node and the nodes that it refers to. ``nodes`` has the nodes added so far:
        the old reference of each, mapped to its new reference. Returns the new reference to the node."""
        if node not in nodes:
            nodes[node] = self.add_metadata("")  # added before its content, which may refer to the node itself
            text = _REFERENCE.sub(
                lambda match: self._adopt_metadata(other, match[0], nodes) if match[1] else match[0],
                other.metadata[int(node[1:])],
            )
            self.metadata[int(nodes[node][1:])] = text
        return nodes[node]

    def reached(self, symbol: str) -> list[Function]:
        """Returns the functions that a function refers to, directly or indirectly, and the function itself."""
        found = set(reached(symbol, self._referred))
        return [function for function in self.functions.values() if function.symbol in found]

    def _referred(self, symbol: str) -> Iterator[str]:
        """Yields the symbols that a function's instructions refer to."""
        for instruction in self.functions[symbol].instructions if symbol in self.functions else ():
            for operand in instruction.operands:
                if "@" in operand.name:
                    yield from map(unquoted, _SYMBOL.findall(operand.name))

    def callers(self, symbol: str) -> list[str]:
        """Returns the functions that call a function."""
        return [each.symbol for each in self.defined if any(call.called == symbol for call in each.calls)]

    def keep_reachable(self, symbol: str) -> None:
        """Removes the functions that the function ``symbol`` does not reach."""
        self.functions = {function.symbol: function for function in self.reached(symbol)}

    @property
    def instructions(self) -> Iterator[Instruction]:
        return (instruction for function in self.defined for instruction in function.instructions)

    @property
    def calls(self) -> Iterator[Call]:
        return (call for function in self.defined for call in function.calls)

    def add_metadata(self, node: Callable[[int], str] | str) -> str:
        """Adds a node, given as its text. A node that refers to itself is given as a function from its number to its
        text. Returns the reference to the node, such as ``!7``."""
        place = 1 + max(self.metadata, default=-1)
        self.metadata[place] = node if isinstance(node, str) else node(place)
        return f"!{place}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Module) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        parts = [*self.globals.values(), *map(str, self.functions.values()), *self.attributes]
        parts += [*self.named_metadata, *(f"!{place} = {node}" for place, node in self.metadata.items())]
        return "\n".join([*parts, ""])


def _with_names(operand: Value, renamed: Mapping[str, str]) -> Value:
    """Returns an operand with its variables renamed."""
    if "@" not in operand.name:
        return operand
    text = _SYMBOL.sub(lambda match: f"@{quoted(renamed.get(unquoted(match[1]), unquoted(match[1])))}", operand.name)
    return Constant(text, operand.type)
