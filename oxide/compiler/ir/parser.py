"""Reads printed LLVM IR into the objects of ``module.py``: the front end's dialect of LLVM 7, and the output of LLVM
22.

Differences between the two disappear here: typed pointers become ``ptr``, and names are quoted only where necessary.
Values and blocks that LLVM only numbers get names, so that passes can add and remove values without renumbering the
rest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from typing import final

from .module import Function, Module
from .values import (
    BINARY,
    CASTS,
    LISTS,
    Alloca,
    Argument,
    Atomic,
    Binary,
    Block,
    Branch,
    Call,
    Cast,
    Compare,
    Constant,
    Extract,
    GetElementPtr,
    Insert,
    Instruction,
    Load,
    Operation,
    Phi,
    Return,
    Select,
    Store,
    Switch,
    Unreachable,
    Value,
    quoted,
    split_list,
    unquoted,
)


def parse(text: str) -> Module:
    """Parses a module. Raises ``ValueError`` for text that the parser does not know."""
    return _ModuleParser(_opaque_pointers(text) if "*" in text else text).module


def constants(module: Module) -> dict[Constant, str]:
    """Returns the constants among a module's variables, as operands, each with the type of its content."""
    found: dict[Constant, str] = {}
    for line in module.globals.values():
        name, _, declared = line.partition(" = ")
        words, _, content = declared.partition(" constant ")
        if content and "global" not in words.split():
            space = words.rpartition(" ")[2]
            type_ = f"ptr {space}" if space.startswith("addrspace(") else "ptr"
            found[_constant(name, type_)] = _Reader(content).read_type()
    return found


def parse_function(text: str) -> Function:
    """Returns the only function that a text defines. Raises ``ValueError`` if the text defines none or several."""
    (function,) = parse(text).defined
    return function


def debug_node(text: str) -> tuple[str, dict[str, str]]:
    """Returns the kind of a node of debug information, such as ``DILocation``, and its fields, as their text. Returns
    "" and no fields for any other node."""
    kind, *tokens = _TOKEN.findall(text.removeprefix("distinct "))
    if not kind.startswith("!DI"):
        return "", {}
    return kind[1:], {tokens[place - 1]: tokens[place + 1] for place, token in enumerate(tokens) if token == ":"}


def _opaque_pointers(text: str) -> str:
    """Replaces ``float*``, ``{i8*, i64}*``, ``[4 x float] addrspace(3)*`` … by ``ptr``, the innermost types first."""
    before = None
    while before != text:
        before = text
        text = _SCALAR_POINTER.sub("ptr", text)
        text = _AGGREGATE_POINTER.sub(r"ptr\1", text)
    return text


def _in_brackets(plain: str, depth: int) -> str:
    """Returns a pattern for text in brackets, in which brackets are nested ``depth`` times at most. ``plain`` is the
    pattern for text without brackets."""
    inside = plain
    for _ in range(depth):
        inside = rf"{plain}(?:[<{{\[]{inside}[>}}\]]{plain})*+"
    return rf"[<{{\[]{inside}[>}}\]]"


_SCALAR_POINTER = re.compile(r'(?<![\w"%.@])(?:i\d+|float|double|half|ptr)(?:\s+addrspace\(\d+\))?\*')
_AGGREGATE_POINTER = re.compile(_in_brackets(r"[^<>{}*\n\[\]]*+", 12) + r"((?: addrspace\(\d+\))?)\*")
_PLAIN = r"""[^<>{}()\[\]"%@]*+"""
_TOKEN = re.compile(
    r'[%@](?:"[^"]*"|[-\w$.]+)'  # a name
    r'|c?"[^"]*"'  # a string
    r"|ptr addrspace\(\d+\)"
    rf"|{_in_brackets(_PLAIN, 3)}"  # a type or a constant in brackets, without names in it
    r'|!(?:"[^"]*"|[\w.]*)'  # metadata
    r"|[-+\w.$#]+"  # a word or a number
    r"|\S"
)
_OPENING, _CLOSING = frozenset("([{<"), frozenset(")]}>")
_TYPES = frozenset(("i1", "i8", "i16", "i32", "i64", "float", "double", "half", "bfloat", "ptr")) | {
    "void", "label", "token", "metadata", "x86_fp80", "fp128",
}  # fmt: skip
_FAST_MATH = frozenset(("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"))
_FLAGS = _FAST_MATH | {"nuw", "nsw", "exact", "disjoint", "nneg", "samesign", "inbounds", "nusw", "inrange"}
_ATTRIBUTES = frozenset(("noundef", "nonnull", "zeroext", "signext", "noalias", "inreg", "align", "range")) | {
    "nofpclass", "dereferenceable", "dereferenceable_or_null", "nocapture", "captures", "readonly", "readnone",
    "writeonly", "returned", "immarg", "nofree", "writable", "dead_on_unwind", "dead_on_return", "swiftself", "noext",
    "byval", "sret", "elementtype", "initializes", '"nvvm.grid_constant"',
}  # fmt: skip
_BEFORE_RESULT = _FAST_MATH | _ATTRIBUTES | {"ccc", "fastcc", "coldcc", "tailcc", "cc", "ptx_kernel", "addrspace"}
_ACCESS = frozenset(("atomic", "volatile"))
_UNNAMED = "%oxide.value."  # cannot clash: the names of parameters and variables have no dot
_AGAIN = "again."  # added as often as needed for text that was printed with such names before


@functools.lru_cache(maxsize=4096)
def _named(name: str, unnamed: str) -> str:
    """Returns a local name as this IR spells it: quoted only where necessary, and never only a number, which
    ``unnamed`` precedes."""
    plain = unquoted(name[1:])
    return f"{unnamed}{plain}" if plain.isdigit() else f"%{quoted(plain)}"


@functools.lru_cache(maxsize=4096)
def _constant(text: str, type_: str) -> Constant:
    if text.startswith("@"):
        text = f"@{quoted(unquoted(text[1:]))}"
    return Constant(text, type_)


@final
class _ModuleParser:
    def __init__(self, text: str) -> None:
        self.module = Module()
        unnamed = _UNNAMED
        while unnamed in text:
            unnamed += _AGAIN
        lines = iter(text.split("\n"))
        for line in lines:
            if not line or line.startswith(";"):
                continue
            if line.startswith(("define ", "declare ")):
                body: list[str] = []
                while line.startswith("define ") and "{" not in line[line.rindex(")") if ")" in line else 0 :]:
                    line += " " + next(lines).strip()
                if line.startswith("define "):
                    for inner in lines:
                        if inner == "}":
                            break
                        body.append(inner)
                function = _FunctionParser(line, body, unnamed).function
                self.module.functions[function.symbol] = function
                continue
            name, _, content = line.partition(" = ")
            if line.startswith("@") and content:
                self.module.globals[unquoted(name[1:])] = line
            elif line.startswith("%"):
                self.module.globals[name] = line
            elif line.startswith("!") and name[1:].isdecimal():
                self.module.metadata[int(name[1:])] = content
            elif line.startswith("!"):
                self.module.named_metadata.append(line)
            elif line.startswith("attributes "):
                self.module.attributes.append(line)
            elif not line.startswith(("target ", "source_filename ")):  # each back end adds its own target
                raise ValueError(f"cannot read {line!r}")


class _Reader:
    """Reads a line of IR by its tokens. ``_at`` is the index of the next token. The last token is empty."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        # Most lines have spaces between their tokens, and commas. Splitting these takes a third of the time.
        spaced = not ("(" in text or "[" in text or '"' in text or "{" in text or "<" in text)
        self._tokens = text.replace(",", " ,").split() if spaced else _TOKEN.findall(text)
        self._tokens.append("")

    def read_type(self) -> str:
        start = self._at
        token = self._tokens[start]
        if token in _TYPES or token[:1] == "%" or token[1:].isdecimal() or token.startswith("ptr addrspace"):
            self._at += 1
            return token
        if token[:1] not in _OPENING or token == "(":
            raise self._unread()
        return self._group()

    def _unread(self) -> ValueError:
        return ValueError(f"cannot read {' '.join(self._tokens[self._at :])!r} of {self._text!r}")

    def _between(self, start: int, end: int) -> str:
        """Returns the text of the tokens from one index to another, and of the space before the first token."""
        ends = [0, *(match.end() for match in _TOKEN.finditer(self._text))]
        return self._text[ends[start] : ends[end]]

    def _rest(self) -> str:
        """Returns the text of the tokens that are left, except for operand bundles."""
        tokens = self._tokens[self._at : -1]
        if not tokens:
            return ""
        if len(tokens) == 3 and tokens[1] == "align":
            return f", align {tokens[2]}"
        if len(tokens) == 1 and tokens[0][0] == "#":
            return f" {tokens[0]}"
        start = self._at
        self._at = self._tokens.index("[" if "[" in tokens else "", start)
        return self._between(start, self._at)

    def _take(self, token: str) -> bool:
        if self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _comma(self) -> None:
        if self._tokens[self._at] != ",":
            raise self._unread()
        self._at += 1

    def _word(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _words(self, known: Collection[str]) -> str:
        """Reads words, each of which may have a number or a list in parentheses. Returns them with single spaces."""
        start = self._at
        while self._tokens[self._at] in known:
            numbered = self._word() in ("align", "cc")
            if self._tokens[self._at] == "(":
                self._group()
            elif numbered:
                self._at += 1
        if self._at <= start + 1:
            return self._tokens[start] if self._at > start else ""
        return " ".join(self._between(start, self._at).split())

    def _group(self) -> str:
        """Reads what is in brackets, including nested brackets."""
        start, depth = self._at, 0
        if len(self._tokens[start]) > 1:
            return self._word()
        for place in range(start, len(self._tokens) - 1):
            token = self._tokens[place]
            depth += (token in _OPENING) - (token in _CLOSING)
            if depth == 0:
                self._at = place + 1
                return self._between(start, place + 1).lstrip()
        raise self._unread()


def _label(line: str) -> str:
    """Returns the label at the beginning of a line, or "" for a line without one."""
    if line[0] == '"':
        return line[: line.index('"', 1) + 1]
    label, colon, _ = line.partition(":")
    return label if colon and " " not in label else ""


@final
class _FunctionParser(_Reader):
    """A parser of one function, and the reader of its header and then of each of its lines."""

    def __init__(self, header: str, lines: list[str], unnamed: str) -> None:
        self._unnamed = unnamed
        self._values: dict[str, Value] = {}
        self._forward: dict[str, Value] = {}
        self.function = self._header(header)
        self._body(lines)
        if self._forward:
            missing = next((name for name in self._forward if name not in self._values), None)
            if missing is not None:
                raise ValueError(f"{missing} is used but not defined, in {header}")
            self.function.replace({value: self._values[name] for name, value in self._forward.items()})

    # The function

    def _header(self, header: str) -> Function:
        word, _, rest = header.partition(" ")
        head, _, rest = rest.partition("@")
        super().__init__(f"@{rest}")
        symbol = unquoted(self._word()[1:])
        if not self._take("("):
            raise self._unread()
        arguments: list[Argument] = []
        variadic = False
        while not self._take(")"):
            self._take(",")
            if self._take("..."):
                variadic = True
                continue
            type_, attributes, name = self.read_type(), self._words(_ATTRIBUTES), ""
            if self._tokens[self._at][:1] == "%":
                name = _named(self._word(), self._unnamed)
            elif word == "define":
                name = f"{self._unnamed}{sum(argument.name.startswith(self._unnamed) for argument in arguments)}"
            argument = Argument(name, type_, attributes)
            arguments.append(argument)
            self._values[name] = argument
        after = self._rest().strip()
        if word == "define":
            after = after.removesuffix("{").rstrip()
        words = after.split(" ")
        attached: list[tuple[str, str]] = []
        while len(words) > 1 and words[-1].startswith("!") and words[-2].startswith("!"):
            node, kind = words.pop(), words.pop()
            attached.insert(0, (kind, node))
        function = Function(symbol, head.strip(), arguments, " ".join(words), variadic=variadic)
        function.metadata = dict(attached)
        return function

    def _body(self, lines: list[str]) -> None:
        block: Block | None = None
        numbered = iter(lines)
        for line in numbered:
            if line.lstrip()[:1] in ("", ";"):
                continue
            if line[0] != " " and (label := _label(line)):
                block = self._block(_named(f"%{label}", self._unnamed))
                continue
            if block is None:
                count = sum(argument.name.startswith(self._unnamed) for argument in self.function.arguments)
                block = self._block(f"{self._unnamed}{count}")
            if "switch " in line and "[" in line and "]" not in line:
                for more in numbered:
                    line += " " + more.strip()
                    if "]" in more:
                        break
            instruction = self._instruction(line)
            if instruction.name:
                self._values[instruction.name] = instruction
            instruction.block = block
            block.instructions.append(instruction)

    def _block(self, name: str) -> Block:
        forward = self._forward.pop(name, None)
        # If an earlier branch refers to this block, the block has an object already.
        block = forward if isinstance(forward, Block) else Block(name)
        self._values[name] = block
        return self.function.add(block)

    # Instructions

    def _instruction(self, line: str) -> Instruction:
        super().__init__(line)
        tokens = self._tokens
        metadata: list[tuple[str, str]] = []
        while tokens[-2][:1] == "!" and tokens[-3][:1] == "!" and tokens[-4] == ",":
            metadata.insert(0, (tokens[-3], tokens[-2]))
            del tokens[-4:-1]
        name = ""
        if tokens[1] == "=":
            name, self._at = _named(tokens[0], self._unnamed), 2
        instruction = self._operation(name)
        if metadata:
            instruction.metadata = dict(metadata)
        return instruction

    def _operation(self, name: str) -> Instruction:
        opcode = self._word()
        if opcode in BINARY:
            flags, left = self._words(_FLAGS), self._typed()
            self._comma()
            return Binary(name, opcode, left, self._value(left.type), flags)
        if opcode in ("tail", "musttail", "notail", "call"):
            return self._call(name, opcode)
        if opcode == "load":
            before, type_ = self._words(_ACCESS), self.read_type()
            self._comma()
            return Load(name, type_, self._typed(), self._rest(), before)
        if opcode == "store":
            before, value = self._words(_ACCESS), self._typed()
            self._comma()
            return Store(value, self._typed(), self._rest(), before)
        if opcode == "getelementptr":
            flags, source = self._words(_FLAGS), self.read_type()
            self._comma()
            pointer, *indices = self._operands()
            return GetElementPtr(name, source, pointer, indices, flags)
        if opcode in CASTS:
            flags, value = self._words(_FLAGS), self._typed()
            if not self._take("to"):
                raise self._unread()
            return Cast(name, opcode, value, self.read_type(), flags)
        if opcode in ("icmp", "fcmp"):
            flags, predicate, left = self._words(_FLAGS), self._word(), self._typed()
            self._comma()
            return Compare(name, predicate, left, self._value(left.type), opcode, flags)
        return self._other(name, opcode)

    def _other(self, name: str, opcode: str) -> Instruction:
        if opcode == "br":
            match self._operands():
                case [Block() as target]:
                    return Branch(target)
                case [condition, Block() as yes, Block() as no]:
                    return Branch(yes, no, condition)
        elif opcode == "phi":
            return self._phi(name)
        elif opcode == "select":
            flags, (condition, left, right) = self._words(_FLAGS), self._operands()
            return Select(name, condition, left, right, flags)
        elif opcode == "ret":
            type_ = self.read_type()
            return Return() if type_ == "void" else Return(self._value(type_))
        elif opcode == "unreachable":
            return Unreachable()
        elif opcode == "alloca":
            allocated, count = self.read_type(), None
            if self._tokens[self._at] == "," and self._tokens[self._at + 1] != "align":
                self._comma()
                count = self._typed()
            return Alloca(name, allocated, count, self._rest())
        elif opcode == "extractvalue":
            whole, path = self._typed(), self._path()
            return Extract(name, member_type(whole.type, path), whole, path)
        elif opcode == "insertvalue":
            whole = self._typed()
            self._comma()
            return Insert(name, whole, self._typed(), self._path())
        elif opcode in LISTS:
            flags, operands = self._words(_FLAGS), self._operands()
            return Operation(name, _result_of(opcode, operands), opcode, operands, flags)
        elif opcode == "switch":
            return self._switch()
        elif opcode in ("atomicrmw", "cmpxchg", "fence"):
            return self._atomic(name, opcode)
        raise self._unread()

    def _phi(self, name: str) -> Phi:
        flags, type_ = self._words(_FLAGS), self.read_type()
        incoming: list[tuple[Value, Block]] = []
        while self._take("["):
            value = self._value(type_)
            self._comma()
            block = self._value("label")
            assert isinstance(block, Block)
            self._take("]")
            self._take(",")
            incoming.append((value, block))
        return Phi(name, type_, incoming, flags)

    def _switch(self) -> Switch:
        operands = self._operands()
        if self._take("["):
            while not self._take("]"):
                operands += self._operands()
        elif self._tokens[self._at][:1] != "[":  # no cases: the brackets are one token
            raise self._unread()
        return Switch(operands)

    def _atomic(self, name: str, opcode: str) -> Atomic:
        words: list[str] = []
        if opcode == "fence":
            return Atomic(name, "void", opcode, (), self._rest().strip())
        while not self._tokens[self._at].startswith("ptr"):
            words.append(self._word())
        operands = self._operands()
        kind = operands[1].type
        result = kind if opcode == "atomicrmw" else f"{{ {kind}, i1 }}"
        return Atomic(name, result, opcode, operands, self._rest().strip(), " ".join(words))

    def _call(self, name: str, opcode: str) -> Call:
        tail = ""
        if opcode != "call":
            tail, _ = opcode, self._word()
        before, type_, function_type = self._words(_BEFORE_RESULT), self.read_type(), ""
        if self._tokens[self._at] == "(":
            function_type = f"{type_} {self._group()}"
        start = self._at
        if self._take("asm"):
            while self._tokens[self._at][:1] != '"':
                self._at += 1
            self._at += 3  # the assembly, a comma and the constraints
            callee: Value = Constant(self._between(start, self._at).lstrip(), "ptr")
        else:
            callee = self._value("ptr")
        if not self._take("("):
            raise self._unread()
        arguments: list[Value] = []
        attributes: dict[int, str] = {}
        while not self._take(")"):
            self._take(",")
            argument_type = self.read_type()
            if found := self._words(_ATTRIBUTES):
                attributes[len(arguments)] = found
            arguments.append(self._value(argument_type))
        after = self._rest()
        return Call(
            name,
            type_,
            callee,
            arguments,
            tail=tail,
            before=before,
            after=after,
            function_type=function_type,
            attributes=attributes,
            bundles=self._bundles() if self._take("[") else (),
        )

    def _bundles(self) -> Iterator[tuple[str, list[Value]]]:
        while self._tokens[self._at][:1] == '"':
            tag = unquoted(self._word())
            self._take("(")
            yield tag, [] if self._tokens[self._at] == ")" else self._operands()
            self._take(")")
            self._take(",")

    # Operands

    def _path(self) -> tuple[int, ...]:
        return tuple(map(int, self._tokens[self._at + 1 : -1 : 2]))

    def _operands(self) -> list[Value]:
        """Reads typed operands, separated by commas."""
        operands = [self._typed()]
        while self._tokens[self._at] == "," and self._tokens[self._at + 1] != "align":
            self._at += 1
            operands.append(self._typed())
        return operands

    def _typed(self) -> Value:
        return self._value(self.read_type())

    def _value(self, type_: str) -> Value:
        start = self._at
        token = self._tokens[start]
        first = token[:1]
        if first == "%":
            self._at += 1
            return self._local(_named(token, self._unnamed), type_)
        if first in _OPENING and token != "(":
            return _constant(self._group(), type_)
        if not first or first in ",()]}":
            raise self._unread()
        self._at += 1
        if first.isalpha():  # may begin an expression, such as `getelementptr inbounds (i8, ptr @x, i64 4)`
            self._words(_FLAGS)
            if self._tokens[self._at] == "(":
                self._group()
        return _constant(token if self._at == start + 1 else self._between(start, self._at).lstrip(), type_)

    def _local(self, name: str, type_: str) -> Value:
        value = self._values.get(name)
        if value is None:
            value = self._forward.get(name)
        if value is None:
            value = self._forward[name] = Block(name) if type_ == "label" else Value(name, type_)
        return value


@functools.lru_cache(maxsize=1024)
def member_type(whole: str, path: tuple[int, ...]) -> str:
    """Returns the type of a member of a structure or array type."""
    for place in path:
        inside = whole[1:-1].strip()
        if inside.startswith("{") and whole.startswith("<{"):
            inside = inside[1:-1].strip()
        whole = inside.partition(" x ")[2] if whole.startswith("[") else split_list(inside)[place]
    return whole


def _result_of(opcode: str, operands: list[Value]) -> str:
    kind = operands[0].type
    if opcode == "extractelement":
        return kind[1:-1].partition(" x ")[2]
    if opcode == "shufflevector":
        count = operands[2].type[1:].partition(" x ")[0]
        return f"<{count} x {kind[1:-1].partition(' x ')[2]}>"
    return kind
