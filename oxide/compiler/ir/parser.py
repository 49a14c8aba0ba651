"""Reads printed LLVM IR into the objects of ``module.py``: the front end's dialect of LLVM 7, and the output of LLVM
22.

Differences between the two disappear here: typed pointers become ``ptr``, and names are quoted only where necessary.
Values and blocks that LLVM only numbers get names, so that passes can add and remove values without renumbering the
rest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NoReturn, final

from .module import Function, Module
from .text import quoted, split_list, unquoted
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
)


def parse(text: str) -> Module:
    """Parses a module. Raises ``ValueError`` for text that the parser does not know."""
    return _ModuleParser(_opaque_pointers(text) if "*" in text else text).module


def constants(module: Module) -> dict[Constant, str]:
    """Returns the constants among a module's variables, as operands, each with the type of its content."""
    found: dict[Constant, str] = {}
    for line in module.globals.values():
        if match := _CONSTANT_VARIABLE.match(line):
            simple = _SIMPLE_TYPE.match(line, match.end())
            content = simple[1] if simple else bracketed(line, match.end())
            found[_constant(match["name"], " ".join(filter(None, ("ptr", match["space"]))))] = content
    return found


def parse_function(text: str) -> Function:
    """Returns the only function that a text defines. Raises ``ValueError`` if the text defines none or several."""
    (function,) = parse(text).defined
    return function


def debug_node(text: str) -> tuple[str, dict[str, str]]:
    """Returns the kind of a node of debug information, such as ``DILocation``, and its fields, as their text. Returns
    "" and no fields for any other node."""
    match = _DEBUG_NODE.fullmatch(text)
    return (match["kind"], dict(_NODE_FIELD.findall(match["fields"]))) if match is not None else ("", {})


def _opaque_pointers(text: str) -> str:
    """Replaces ``float*``, ``{i8*, i64}*``, ``[4 x float] addrspace(3)*`` … by ``ptr``, the innermost types first."""
    before = None
    while before != text:
        before = text
        text = _SCALAR_POINTER.sub("ptr", text)
        text = _AGGREGATE_POINTER.sub("ptr", text)
    return text


_SCALAR_POINTER = re.compile(r'(?<![\w"%.@])(?:i\d+|float|double|half|ptr)(?:\s+addrspace\(\d+\))?\*')
_AGGREGATE_POINTER = re.compile(r"(\{[^{}*]*\}|\[\d+ x [^\[\]{}*]*\]|<\d+ x \w+>)\*")


@functools.lru_cache(maxsize=256)
def _without_stars(text: str) -> str:
    """Replaces by ``ptr`` the typed pointers that ``_opaque_pointers`` leaves in a type: pointers to structures that
    contain structures."""
    while "*" in text:
        end = text.index("*")
        start = end
        depth = 0
        while True:
            start -= 1
            depth += (text[start] in "]}>") - (text[start] in "[{<")
            if depth == 0:
                break
        text = f"{text[:start]}ptr{text[end + 1 :]}"
    return text


_LABEL = re.compile(r'^((?:"[^"]*"|[-\w$.]+)):')
_HEADER = re.compile(r'(?P<word>define|declare) (?P<head>.*?)@(?P<name>"[^"]*"|[-\w$.]+)\(')
_GLOBAL = re.compile(r'(?P<name>@(?:"[^"]*"|[-\w$.]+)) = ')
_CONSTANT_VARIABLE = re.compile(rf"{_GLOBAL.pattern}(?:\w+ )*?(?:(?P<space>addrspace\(\d+\)) )?constant ")
_METADATA = re.compile(r"!(\d+) = (.*)")
_DEBUG_NODE = re.compile(r"(?:distinct )?!(?P<kind>DI\w+)\((?P<fields>.*)\)")
_NODE_FIELD = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*"|!?\w+)')
_ATTACHED = re.compile(r", (![\w.]+) (!\d+)(?=, !|$)")
_OF_FUNCTION = re.compile(r" ?(![\w.]+) (!\d+)(?= !|$)")
_RESULT = re.compile(r'\s*(?:(%(?:"[^"]*"|[-\w$.]+)) = )?')
_STAR = re.compile(r"((?: addrspace\(\d+\))?)\*")
_SPACE = re.compile(r"\s*")
_BRACKET = re.compile(r'(?P<opens>[(\[{<])|(?P<closes>[)\]}>])|"[^"]*"')
# These begin with the space before what they find, so that most words are read by one match.
_SIMPLE_TYPE = re.compile(
    r" *((?:i\d+|float|double|half|bfloat|ptr(?: addrspace\(\d+\))?|void|label|token|metadata|x86_fp80|fp128)(?![\w.])"
    r'|%(?:"[^"]*"|[-\w$.]+))'
)
_NAME = re.compile(r'[%@](?:"[^"]*"|[-\w$.]+)')
_OPERAND = re.compile(rf" *({_NAME.pattern})")
_EXPRESSION = re.compile(r"[a-z]+(?: (?:inbounds|nuw|nusw|nneg|nsw|inrange\([^)]*\)))* \(")
_PLAIN_VALUE = re.compile(r"[^\s,()\[\]{}]+")
_WORD = re.compile(r" *([a-z_]\w*)")
_NEXT = re.compile(r" *, *(?!align)")
_FLAG = re.compile(
    r"(?:nuw|nsw|exact|disjoint|nneg|samesign|inbounds|nusw|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)(?= )"
)
_ARGUMENT_ATTRIBUTE = re.compile(
    r"(?:noundef|nonnull|zeroext|signext|nocapture|readonly|readnone|writeonly|noalias|returned|immarg|inreg|nofree"
    r"|writable|dead_on_unwind|swiftself|noext|dead_on_return|align \d+"
    r"|(?:dereferenceable|dereferenceable_or_null|captures|byval|sret|range|nofpclass|elementtype|initializes|align)"
    r"\((?:[^()]|\([^()]*\))*\)"
    r'|"nvvm\.[a-z_]+")(?=[ ,)]|$)'
)
_CALL_WORD = re.compile(
    r"(?:[a-z]+cc|ptx_kernel|cc \d+|noundef|nonnull|zeroext|signext|noalias|inreg|align \d+"
    r"|(?:range|nofpclass|dereferenceable|dereferenceable_or_null|addrspace)\((?:[^()]|\([^()]*\))*\)"
    r"|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)(?= )"
)
_BUNDLE = re.compile(r'[, ]*"([^"]*)"\(')
_ASSEMBLY = re.compile(r'asm(?: \w+)*\s+"[^"]*",\s*"[^"]*"')
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
            elif match := _GLOBAL.match(line):
                self.module.globals[unquoted(match[1][1:])] = line
            elif match := _METADATA.match(line):
                self.module.metadata[int(match[1])] = match[2]
            elif line.startswith("!"):
                self.module.named_metadata.append(line)
            elif line.startswith("attributes "):
                self.module.attributes.append(line)
            elif line.startswith("%"):
                self.module.globals[line.partition(" = ")[0]] = line
            elif not line.startswith(("target ", "source_filename ")):  # each back end adds its own target
                raise ValueError(f"cannot read {line!r}")


@final
class _FunctionParser:
    """A parser of one function. ``_text`` is the line being read, and ``_at`` the position in it."""

    def __init__(self, header: str, lines: list[str], unnamed: str) -> None:
        self._text, self._at = header, 0
        self._unnamed = unnamed
        self._values: dict[str, Value] = {}
        self._forward: dict[str, Value] = {}
        self.function = self._header()
        self._body(lines)
        if self._forward:
            missing = next((name for name in self._forward if name not in self._values), None)
            if missing is not None:
                raise ValueError(f"{missing} is used but not defined, in {header}")
            self.function.replace({value: self._values[name] for name, value in self._forward.items()})

    # The function

    def _header(self) -> Function:
        match = _HEADER.match(self._text)
        if match is None:
            self._fail()
        self._at = match.end()
        arguments: list[Argument] = []
        variadic = False
        while not self._take(")"):
            self._take(",")
            self._space()
            if self._take("..."):
                variadic = True
                continue
            type_ = self._type()
            attributes = self._matches(_ARGUMENT_ATTRIBUTE)
            self._space()
            name = ""
            if found := _NAME.match(self._text, self._at):
                self._at = found.end()
                name = _named(found[0], self._unnamed)
            elif match["word"] == "define":
                name = f"{self._unnamed}{sum(argument.name.startswith(self._unnamed) for argument in arguments)}"
            argument = Argument(name, type_, attributes)
            arguments.append(argument)
            self._values[name] = argument
        after = self._text[self._at :].strip()
        if match["word"] == "define":
            after = after.removesuffix("{").rstrip()
        attached = _OF_FUNCTION.findall(after)
        after = _OF_FUNCTION.sub("", after)
        function = Function(unquoted(match["name"]), match["head"].strip(), arguments, after, variadic=variadic)
        function.metadata = dict(attached)
        return function

    def _body(self, lines: list[str]) -> None:
        block: Block | None = None
        numbered = iter(lines)
        for line in numbered:
            if not line or line.isspace() or line.lstrip().startswith(";"):
                continue
            if label := _LABEL.match(line):
                block = self._block(_named(f"%{label[1]}", self._unnamed))
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
        metadata: dict[str, str] = {}
        if ", !" in line:
            end = len(line)
            for match in _ATTACHED.finditer(line):
                metadata[match[1]] = match[2]
                end = min(end, match.start())
            line = line[:end]
        result = _RESULT.match(line)
        assert result is not None
        self._text, self._at = line.rstrip(), result.end()
        name = _named(result[1], self._unnamed) if result[1] else ""
        instruction = self._operation(name)
        instruction.metadata = metadata
        return instruction

    def _operation(self, name: str) -> Instruction:
        opcode = self._word()
        if opcode in BINARY:
            flags = self._matches(_FLAG)
            left = self._typed()
            self._comma()
            return Binary(name, opcode, left, self._value(left.type), flags)
        if opcode in ("tail", "musttail", "notail", "call"):
            return self._call(name, opcode)
        if opcode == "load":
            return self._load(name)
        if opcode == "store":
            before = self._access_words()
            value = self._typed()
            self._comma()
            return Store(value, self._typed(), self._rest(), before)
        if opcode == "getelementptr":
            flags = self._matches(_FLAG)
            source = self._type()
            self._comma()
            pointer, *indices = self._operands()
            return GetElementPtr(name, source, pointer, indices, flags)
        if opcode in CASTS:
            flags = self._matches(_FLAG)
            value = self._typed()
            self._space()
            if not self._take("to "):
                self._fail()
            return Cast(name, opcode, value, self._type(), flags)
        if opcode in ("icmp", "fcmp"):
            flags = self._matches(_FLAG)
            predicate = self._word()
            left = self._typed()
            self._comma()
            return Compare(name, predicate, left, self._value(left.type), opcode, flags)
        return self._other(name, opcode)

    def _other(self, name: str, opcode: str) -> Instruction:
        if opcode == "br":
            operands = self._operands()
            match operands:
                case [Block() as target]:
                    return Branch(target)
                case [condition, Block() as yes, Block() as no]:
                    return Branch(yes, no, condition)
            raise self._unread()
        if opcode == "phi":
            return self._phi(name)
        if opcode == "select":
            flags = self._matches(_FLAG)
            condition, left, right = self._operands()
            return Select(name, condition, left, right, flags)
        if opcode == "ret":
            type_ = self._type()
            return Return() if type_ == "void" else Return(self._value(type_))
        if opcode == "unreachable":
            return Unreachable()
        if opcode == "alloca":
            allocated, count = self._type(), None
            if self._text.startswith(", ", self._at) and not self._text.startswith(", align", self._at):
                self._comma()
                count = self._typed()
            return Alloca(name, allocated, count, self._rest())
        if opcode == "extractvalue":
            whole = self._typed()
            path = self._path()
            return Extract(name, member_type(whole.type, path), whole, path)
        if opcode == "insertvalue":
            whole = self._typed()
            self._comma()
            part = self._typed()
            return Insert(name, whole, part, self._path())
        if opcode in LISTS:
            flags = self._matches(_FLAG)
            operands = self._operands()
            return Operation(name, _result_of(opcode, operands), opcode, operands, flags)
        if opcode == "switch":
            return self._switch()
        if opcode in ("atomicrmw", "cmpxchg", "fence"):
            return self._atomic(name, opcode)
        raise self._unread()

    def _load(self, name: str) -> Load:
        before = self._access_words()
        type_ = self._type()
        self._comma()
        return Load(name, type_, self._typed(), self._rest(), before)

    def _phi(self, name: str) -> Phi:
        flags = self._matches(_FLAG)
        type_ = self._type()
        incoming: list[tuple[Value, Block]] = []
        while True:
            self._space()
            if not self._take("["):
                break
            value = self._value(type_)
            self._comma()
            block = self._value("label")
            assert isinstance(block, Block)
            self._space()
            self._take("]")
            self._take(",")
            incoming.append((value, block))
        return Phi(name, type_, incoming, flags)

    def _switch(self) -> Switch:
        operands = self._operands()
        self._space()
        if not self._take("["):
            self._fail()
        while True:
            self._space()
            if self._take("]"):
                return Switch(operands)
            operands += self._operands()

    def _atomic(self, name: str, opcode: str) -> Atomic:
        words: list[str] = []
        if opcode == "fence":
            return Atomic(name, "void", opcode, (), self._rest().strip())
        self._space()
        while not self._text.startswith("ptr", self._at):
            words.append(self._word())
            self._space()
        operands = self._operands()
        kind = operands[1].type
        result = kind if opcode == "atomicrmw" else f"{{ {kind}, i1 }}"
        return Atomic(name, result, opcode, operands, self._rest().strip(), " ".join(words))

    def _call(self, name: str, opcode: str) -> Call:
        tail = ""
        if opcode != "call":
            tail, _ = opcode, self._word()
        before = self._matches(_CALL_WORD)
        type_ = self._type()
        function_type = ""
        self._space()
        if self._text.startswith("(", self._at):
            function_type = f"{type_} {self._bracketed()}"
            self._space()
        if match := _ASSEMBLY.match(self._text, self._at):
            callee: Value = Constant(" ".join(match[0].split()) if "\n" in match[0] else match[0], "ptr")
            self._at = match.end()
        else:
            callee = self._value("ptr")
        if not self._take("("):
            self._fail()
        arguments: list[Value] = []
        attributes: dict[int, str] = {}
        while not self._take(")"):
            self._take(",")
            argument_type = self._type()
            if found := self._matches(_ARGUMENT_ATTRIBUTE):
                attributes[len(arguments)] = found
            arguments.append(self._value(argument_type))
        after, bundled, rest = self._rest().partition(" [ ")
        self._text, self._at = rest, 0
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
            bundles=self._bundles() if bundled else (),
        )

    def _bundles(self) -> Iterator[tuple[str, list[Value]]]:
        while match := _BUNDLE.match(self._text, self._at):
            self._at = match.end()
            yield match[1], [] if self._take(")") else self._operands()
            self._take(")")

    # Parts of an instruction

    def _fail(self) -> NoReturn:
        raise self._unread()

    def _unread(self) -> ValueError:
        return ValueError(f"cannot read {self._text[self._at :]!r} of {self._text!r}")

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _comma(self) -> None:
        if not self._take(","):
            self._space()
            if not self._take(","):
                self._fail()

    def _rest(self) -> str:
        rest, self._at = self._text[self._at :], len(self._text)
        return rest

    def _word(self) -> str:
        match = _WORD.match(self._text, self._at)
        if match is None:
            self._fail()
        self._at = match.end()
        return match[1]

    def _matches(self, pattern: re.Pattern[str]) -> str:
        """Reads the words that a pattern matches. Returns them with single spaces between them."""
        words: list[str] = []
        while True:
            self._space()
            match = pattern.match(self._text, self._at)
            if match is None:
                return " ".join(words)
            words.append(match[0])
            self._at = match.end()

    def _access_words(self) -> str:
        words = []
        while True:
            self._space()
            if self._take("atomic "):
                words.append("atomic")
            elif self._take("volatile "):
                words.append("volatile")
            else:
                return " ".join(words)

    def _path(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self._rest().removeprefix(",").split(","))

    def _operands(self) -> list[Value]:
        """Reads typed operands, separated by commas."""
        operands = [self._typed()]
        while True:
            match = _NEXT.match(self._text, self._at)
            if match is None:
                return operands
            self._at = match.end()
            operands.append(self._typed())

    def _typed(self) -> Value:
        return self._value(self._type())

    def _type(self) -> str:
        match = _SIMPLE_TYPE.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            return match[1]
        self._space()
        if self._text[self._at : self._at + 1] not in ("{", "[", "<"):
            self._fail()
        found = self._bracketed()
        if star := _STAR.match(self._text, self._at):
            self._at = star.end()
            return f"ptr{star[1]}"
        return _without_stars(found) if "*" in found else found

    def _bracketed(self) -> str:
        """Reads a text in brackets, including nested brackets."""
        found = bracketed(self._text, self._at)
        self._at += len(found)
        return found

    def _value(self, type_: str) -> Value:
        text = self._text
        match = _OPERAND.match(text, self._at)
        if match is not None:
            self._at = match.end()
            name = match[1]
            return self._local(_named(name, self._unnamed), type_) if name[0] == "%" else _constant(name, type_)
        self._space()
        start = self._at
        if match := _EXPRESSION.match(text, start):
            self._at = match.end() - 1
            self._bracketed()
        elif text[start : start + 1] in ("{", "[", "<"):
            self._bracketed()
        elif text.startswith('c"', start):
            self._at = text.index('"', start + 2) + 1
        elif match := _PLAIN_VALUE.match(text, start):
            self._at = match.end()
        else:
            self._fail()
        return _constant(text[start : self._at], type_)

    def _local(self, name: str, type_: str) -> Value:
        value = self._values.get(name)
        if value is None:
            value = self._forward.get(name)
        if value is None:
            value = self._forward[name] = Block(name) if type_ == "label" else Value(name, type_)
        return value


def bracketed(text: str, start: int) -> str:
    """Returns the text in brackets that begins at a position, including the brackets. Raises ``ValueError`` if the
    closing bracket is missing."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        if match["opens"]:
            depth += 1
        elif match["closes"]:
            depth -= 1
            if depth == 0:
                return text[start : match.end()]
    raise ValueError(f"cannot read {text[start:]!r} of {text!r}")


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
