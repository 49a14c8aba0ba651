"""Reads a kernel's parameters from its PTX.

The alternative, ``cuFuncGetParamInfo``, needs a loaded kernel and does not tell which parameters are floating-point
numbers. It also signals the end of the parameters with an error, which compute-sanitizer reports as an error of the
program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, final

Kind = Literal["integer", "float", "bits"]


@final
@dataclass(frozen=True, slots=True)
class KernelParameter:
    """A parameter's place in the kernel's parameter structure, in bytes. ``kind`` is ``"bits"`` if the code does not
    give the bytes a type."""

    offset: int
    nbytes: int
    kind: Kind = "bits"


_KINDS: dict[str, Kind] = {"u": "integer", "s": "integer", "f": "float", "b": "bits"}


def entries(ptx: str) -> list[str]:
    """Returns the names of the kernels that PTX defines, in order."""
    return list(dict.fromkeys(re.findall(r"\.entry\s+([\w$%]+)", ptx)))


def kernel_parameters(ptx: str, entry: str) -> tuple[KernelParameter, ...]:
    """Returns the parameters of an entry. Each is aligned as its ``.align`` says, or else naturally."""
    found = []
    end = 0
    for declaration in declarations(ptx, entry):
        size = re.search(r"\.([busf])(8|16|32|64)\b", declaration)
        if size is None:
            continue
        element = int(size[2]) // 8
        alignment = re.search(r"\.align\s+(\d+)\s+\.b8", declaration)
        count = re.search(r"\[(\d+)\]\s*$", declaration.strip())
        step = int(alignment[1]) if alignment is not None else element
        offset = -(-end // step) * step
        nbytes = element * (int(count[1]) if count is not None else 1)
        found.append(KernelParameter(offset, nbytes, _KINDS[size[1]] if count is None else "bits"))
        end = offset + nbytes
    return tuple(found)


def parameter_layout(ptx: str, entry: str) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each parameter of an entry, and the end of the last one: the structure's least size."""
    found = kernel_parameters(ptx, entry)
    end = found[-1].offset + found[-1].nbytes if found else 0
    return tuple([parameter.offset for parameter in found]), end


def declarations(ptx: str, entry: str) -> list[str]:
    """Returns the text of each parameter declaration of an entry; an empty list if the PTX has no such entry."""
    head = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", ptx)
    return [declaration for declaration in head[1].split(",") if declaration.strip()] if head is not None else []
