"""The parameters that ``tensor.load_tile`` copies from, found in the portable IR.

A GPU's copy engine reads a description of each matrix that the launch makes, so the matrix is a parameter of the kernel
and its rows begin at multiples of 16 bytes. A launch checks that on both devices.
"""

from __future__ import annotations

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.parameters import word_types
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.values import Call
from oxide.compiler.signature.signature import Closed, Parameter
from oxide.compiler.source.source import located_in

from .verifier import LOAD_TILE


def copied_parameters(kernel: PortableKernel, module: Module, signature: tuple[Closed, ...]) -> list[tuple[Call, int]]:
    """Returns the copies of tiles in ``module``, a form of the kernel's, each with the number of its parameter.

    Raises ``CompileError`` for a copy from a slice that is no parameter of the kernel.
    """
    if not any(symbol.startswith(LOAD_TILE) for symbol in module.functions):
        return []
    slices: dict[int, int] = {}
    count = 1  # the first argument is the context
    for number, parameter in enumerate(signature):
        if isinstance(parameter, Parameter) and parameter.kind == "slice" and parameter.ndim > 1:
            slices[count] = number
        count += len(word_types((parameter,)))
    function = module.functions[kernel.symbol]
    found = []
    for call in [call for each in module.defined for call in each.calls if call.called.startswith(LOAD_TILE)]:
        data, site = call.arguments[2], call.arguments[-1]
        place = function.arguments.index(data) if data in function.arguments else -1
        if place not in slices:
            where = kernel.sites[site.integer or 0]
            raise located_in(
                where.file,
                where.line,
                f"kernel {kernel.name}: tensor.load_tile copies from a slice that is a parameter of the kernel itself; "
                "this one is chosen while the kernel runs",
            )
        found.append((call, slices[place]))
    return found


def tiled_parameters(kernel: PortableKernel, signature: tuple[Closed, ...]) -> tuple[int, ...]:
    """Returns the numbers of the parameters that a kernel copies tiles from."""
    return tuple(sorted({number for _, number in copied_parameters(kernel, kernel.module, signature)}))
