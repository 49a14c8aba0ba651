"""The provenance of a kernel's pointers: a parameter, a shared, a local or a constant array.

A pointer is followed back to its roots, through the instructions that build and take apart arrays. It has several roots
where paths merge: ``v = a if c else b``, or an array of a tuple that a loop counts through. Then the kernel computes
the root's number at run time, with a ``phi`` or ``select`` of its own next to the pointer's.
"""

from __future__ import annotations

import re
from typing import final

from oxide.compiler.ir.brackets import split_list
from oxide.compiler.ir.ssa import WORD

NAME = f"[%@]{WORD}"
"""A value of the kernel or a variable of the module, as a regular expression."""

_ASSIGNED = re.compile(rf"^  (?P<name>{NAME}) = (?P<what>.*)$")
_NOTHING = "null|undef|poison|zeroinitializer"
_INCOMING = re.compile(rf"\[ (?P<value>{NAME}|{_NOTHING}), (?P<block>{NAME}) \]")
_MEMORY = re.compile(r"alloca |call ptr @oxide\.(?:shared|held\.local)\b")
_CASTS = ("bitcast ptr ", "addrspacecast ptr ", "freeze ptr ")
_SLOT = re.compile(
    rf"^getelementptr (?:\w+ )*?(?P<type>[{{\[].*[}}\]]), ptr (?P<base>{NAME})(?P<indices>(?:, i\d+ \d+)+)"
)
_POINTER_STORED = re.compile(
    rf"^  store (?:volatile )?ptr (?P<value>{NAME}|null|undef|poison), ptr (?P<pointer>{NAME}),"
)

Slot = tuple[str, tuple[int, ...]]
"""A place in a variable on the stack: the variable, and the path of member indices, without trailing zeros."""


@final
class Origins:
    """The roots of a kernel's pointers, each with a number: from ``numbered`` for those in it, higher for the others.
    ``unknown`` is the number of roots that cannot be followed."""

    unknown = -1

    def __init__(self, body: list[str], numbered: dict[str, int]) -> None:
        self._definitions = {match["name"]: match["what"] for line in body if (match := _ASSIGNED.match(line))}
        self._numbers = dict(numbered)
        self._known: dict[str, tuple[str, ...]] = {}
        self._chosen: dict[str, str] = {}
        self._beside: dict[str, list[str]] = {}
        self._stored: dict[Slot, set[str]] = {}
        for line in body:
            match = _POINTER_STORED.match(line)
            if match and (slot := self._slot(match["pointer"])):
                self._stored.setdefault(slot, set()).add(match["value"])

    def definition(self, name: str) -> str:
        """Returns the instruction that defines a value; empty for a parameter or a variable of the module."""
        return self._definitions.get(name, "")

    def roots(self, pointer: str) -> tuple[str, ...]:
        """Returns the roots that a pointer is computed from, sorted so that every process has the same order."""
        if pointer not in self._known:
            self._known[pointer] = tuple(sorted(self._roots(pointer, set())))
        return self._known[pointer]

    def number(self, root: str) -> int:
        """Returns the number of a root, or ``unknown``. A new root gets the next number."""
        if root not in self._numbers and not (root.startswith("@") or _MEMORY.match(self.definition(root))):
            return self.unknown
        return self._numbers.setdefault(root, len(self._numbers))

    def chosen(self, pointer: str) -> str:
        """Returns the operand that holds, at run time, the number of the root that a pointer is computed from."""
        return self._choice(pointer, ())

    def with_choices(self, lines: list[str]) -> list[str]:
        """Returns the kernel with what ``chosen`` needs: behind each choice of a pointer, the choice of its root."""
        result = []
        for line in lines:
            result.append(line)
            if self._beside and (match := _ASSIGNED.match(line)):
                result += self._beside.get(match["name"], [])
        return result

    # Roots

    def _roots(self, pointer: str, seen: set[str]) -> set[str]:
        if pointer in seen or pointer in _NOTHING.split("|"):
            return set()
        seen.add(pointer)
        what = self.definition(pointer)
        if what.startswith("getelementptr "):
            return self._roots(_based_on(what), seen)
        if what.startswith("extractvalue "):
            whole, *place = split_list(what.removeprefix("extractvalue "))
            return self._member_roots(_value(whole), _places(place), seen)
        if what.startswith("inttoptr "):
            return set[str]().union(*(self._roots(each, seen) for each in self._addresses(pointer))) or {pointer}
        if what.startswith("load ptr, ") and (kept := self._kept(what)):
            return set[str]().union(*(self._roots(each, seen) for each in kept))
        if what.startswith("phi ptr "):
            found = [match["value"] for match in _INCOMING.finditer(what)]
        elif what.startswith("select "):
            found = [_value(part) for part in split_list(what)[1:3]]
        elif what.startswith(_CASTS):
            found = re.findall(NAME, what)[:1]
        else:
            return {pointer}
        return set[str]().union(*(self._roots(each, seen) for each in found))

    def _addresses(self, number: str) -> list[str]:
        """Returns the pointers whose addresses are operands of a sum: numba-cuda steps through strided arrays so."""
        what = self.definition(number)
        if what.startswith("ptrtoint "):
            return re.findall(rf"ptr ({NAME})", what)
        if what.startswith(("inttoptr ", "add ")):
            return [each for operand in re.findall(NAME, what) for each in self._addresses(operand)]
        return []

    def _member_roots(self, whole: str, place: tuple[int, ...], seen: set[str]) -> set[str]:
        """Returns the roots of a structure's member, through the structures that build slices, arrays and tuples."""
        if not place:
            return self._roots(whole, seen)
        key = f"{whole} {place}"
        if key in seen or whole in _NOTHING.split("|"):
            return set()
        seen.add(key)
        found = self._parts(whole, place)
        if found is None:
            return {key}
        return set[str]().union(*(self._member_roots(part, rest, seen) for part, rest in found))

    def _parts(self, whole: str, place: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]] | None:
        """Returns where a structure's member comes from, one step back: several sources where paths merge, or None."""
        what = self.definition(whole)
        if what.startswith("insertvalue "):
            base, part, *rest = split_list(what.removeprefix("insertvalue "))
            inserted = _places(rest)
            if place[: len(inserted)] == inserted:
                return [(_value(part), place[len(inserted) :])]
            if inserted[: len(place)] != place:
                return [(_value(base), place)]
        elif what.startswith("extractvalue "):
            base, *rest = split_list(what.removeprefix("extractvalue "))
            return [(_value(base), _places(rest) + place)]
        elif what.startswith("phi "):
            return [(match["value"], place) for match in _INCOMING.finditer(what)]
        elif what.startswith("select "):
            return [(_value(part), place) for part in split_list(what)[1:3]]
        return None

    def _kept(self, load: str) -> set[str]:
        """Returns all values ever stored to the stack slot that a pointer is loaded from."""
        slot = self._slot(re.findall(rf"ptr ({NAME})", load)[0])
        return self._stored.get(slot, set()) if slot else set()

    def _slot(self, pointer: str) -> Slot | None:
        places: tuple[int, ...] = ()
        while match := _SLOT.match(self.definition(pointer)):
            first, *rest = (int(index.split(" ")[-1]) for index in match["indices"].removeprefix(", ").split(", "))
            if first:
                return None
            places, pointer = (*rest, *places), match["base"]
        while places and not places[-1]:
            places = places[:-1]
        return (pointer, places) if self.definition(pointer).startswith("alloca ") else None

    # Choices

    def _choice(self, whole: str, place: tuple[int, ...]) -> str:
        """Returns the operand with the root's number, of a pointer or of the pointer at a place in a structure."""
        key = f"{whole} {place}"
        if key not in self._chosen:
            roots = self._member_roots(whole, place, set())
            what = self.definition(whole)
            if len(roots) == 1:
                self._chosen[key] = str(self.number(next(iter(roots))))
            elif roots and what.startswith(("phi ", "select ")):
                self._chosen[key] = (
                    f"%origin.{len(self._chosen)}"  # set before its operands are computed: a loop may need it
                )
                self._beside.setdefault(whole, []).append(self._among(self._chosen[key], what, place))
            else:
                step = self._step(whole, place) if roots else None
                self._chosen[key] = self._choice(*step) if step else str(self.unknown)
        return self._chosen[key]

    def _among(self, name: str, what: str, place: tuple[int, ...]) -> str:
        """Returns the instruction that chooses among root numbers as ``what`` chooses among pointers."""
        if what.startswith("phi "):
            found = _INCOMING.finditer(what)
            return f"  {name} = phi i64 " + ", ".join(
                f"[ {self._choice(each['value'], place)}, {each['block']} ]" for each in found
            )
        condition, *either = split_list(what.removeprefix("select "))
        one, other = (self._choice(_value(part), place) for part in either[:2])
        return f"  {name} = select {condition}, i64 {one}, i64 {other}"

    def _step(self, whole: str, place: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
        """Returns the single value that a value other than a choice is computed from, or None."""
        if place:
            parts = self._parts(whole, place) or []
            return parts[0] if len(parts) == 1 else None
        what = self.definition(whole)
        if what.startswith("getelementptr "):
            return _based_on(what), ()
        if what.startswith("extractvalue "):
            base, *rest = split_list(what.removeprefix("extractvalue "))
            return _value(base), _places(rest)
        if what.startswith("inttoptr "):
            found = self._addresses(whole)
        else:
            found = re.findall(NAME, what)[:1] if what.startswith(_CASTS) else []
        return (found[0], ()) if len(found) == 1 else None


def _based_on(gep: str) -> str:
    return str(re.findall(rf"ptr ({NAME}|null|undef|poison)", gep)[0])


def _value(operand: str) -> str:
    """Returns an operand without its type."""
    return operand.split(" ")[-1]


def _places(parts: list[str]) -> tuple[int, ...]:
    """Returns the indices among an instruction's operands; metadata follows them."""
    return tuple(int(part) for part in parts if part.isdecimal())
