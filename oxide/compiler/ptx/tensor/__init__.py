"""The primitives of ``oxide.tensor`` on a GPU: their definitions, and the compute capabilities that they need."""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.primitives import MULTICAST
from oxide.compiler.source.fragment_layouts import F8
from oxide.compiler.source.source import located_in
from oxide.driver.base import Dim3
from oxide.errors import CompileError

from . import barriers, fragments, shared_tiles, wgmma
from .shared_tiles import TensorMap, copies_tiles, entry_parameter, take_maps
from .wgmma import moves_registers

__all__ = [
    "TensorMap",
    "architecture",
    "check_capability",
    "copies_tiles",
    "definitions",
    "entry_parameter",
    "moves_registers",
    "take_maps",
]


def definitions(symbols: Collection[str], cluster: Dim3 | None) -> str:
    """Returns the definitions of the primitives among ``symbols``, for a kernel with clusters of this shape."""
    texts = [text for topic in (fragments, shared_tiles, wgmma) for text in topic.definitions(symbols)]
    texts += barriers.definitions(symbols, cluster)
    if any("@oxide.tensor.shared_address" in text for text in texts):
        texts.insert(0, _SHARED_ADDRESS)
    return "\n".join(texts)


# Shared addresses are 32-bit numbers in PTX's instructions.
_SHARED_ADDRESS = """
define internal i32 @oxide.tensor.shared_address(ptr %address) alwaysinline {
  %shared = addrspacecast ptr %address to ptr addrspace(3)
  %number = ptrtoint ptr addrspace(3) %shared to i32
  ret i32 %number
}
"""


_NEEDS = {
    **{
        f"oxide.tensor.mma.m16n8k32.f32.{each}.": ("tensor.mma of 8-bit floats", (8, 9), "convert the operands to f16")
        for each in F8
    },
    "oxide.tensor.mma.": ("tensor.mma", (8, 0), "multiply elements in a loop, on ordinary cores"),
    "oxide.tensor.ldmatrix.": ("tensor.ldmatrix", (7, 5), "tensor.load reads the same elements"),
    "oxide.tensor.stmatrix.": ("tensor.stmatrix", (9, 0), "tensor.store writes the same elements"),
    "oxide.tensor.copy_async.": ("tensor.copy_async", (8, 0), "assign the elements, array[i] = source[j]"),
    "oxide.tensor.commit": ("tensor.commit", (8, 0), "copies by assignment need no group"),
    "oxide.tensor.wait.": ("tensor.wait", (8, 0), "copies by assignment need no wait"),
    "oxide.tensor.barrier.": ("tensor.Barrier", (9, 0), "thread.sync_threads() lets a block's threads meet"),
    "oxide.tensor.load_tile.": ("tensor.load_tile", (9, 0), "tensor.copy_async copies neighbours"),
    "oxide.tensor.store_tile.": ("tensor.store_tile", (9, 0), "c.scatter[row, col] = x writes elements"),
    "oxide.tensor.fence_stores": ("tensor.fence_stores", (9, 0), "stores by assignment need no fence"),
    "oxide.tensor.commit_stores": ("tensor.commit_stores", (9, 0), "stores by assignment need no group"),
    "oxide.tensor.wait_stores.": ("tensor.wait_stores", (9, 0), "stores by assignment need no wait"),
    "oxide.tensor.wgmma": ("tensor.wgmma", (9, 0), "tensor.mma multiplies fragments of a warp"),
    "oxide.cluster.": ("tensor.cluster", (9, 0), "let blocks meet in global memory, or at the end of the kernel"),
    "oxide.tensor.registers.": ("tensor.increase_registers", (9, 0), "leave it out"),
}
"""Maps the prefixes of primitives to the function, the least compute capability, and what a kernel for older GPUs can
use instead."""

_HOPPER = ("oxide.tensor.wgmma", "oxide.tensor.registers.")
"""The prefixes of the primitives that only compute capability 9.0 has."""


def architecture(arch: str, symbols: Collection[str]) -> str:
    """Returns the name of an architecture as LLVM and ptxas take it for a kernel with these symbols: ``sm_90a`` for a
    kernel with instructions that only Hopper has, or with copies to several blocks, which are slow under ``sm_90``."""
    own = any(symbol.startswith(_HOPPER) or symbol.endswith(MULTICAST) for symbol in symbols)
    return "sm_90a" if arch == "sm_90" and own else arch


def _has(capability: int, prefix: str) -> bool:
    major, minor = _NEEDS[prefix][1]
    return capability == 10 * major + minor if prefix in _HOPPER else capability >= 10 * major + minor


def check_capability(kernel: PortableKernel, capability: int) -> None:
    """Raises ``CompileError`` if a compute capability, such as 75, lacks the instruction for a call. The error is at
    the first such call in the source."""
    lacking: list[tuple[int, str]] = []
    for call in kernel.module.calls:
        prefix = next((each for each in _NEEDS if call.called.startswith(each)), None)
        if prefix is not None and not _has(capability, prefix):
            lacking.append((call.arguments[-1].integer or 0, prefix))
    if not lacking:
        if kernel.cluster and capability < 90:
            raise CompileError(
                f"kernel {kernel.name}: cluster={kernel.cluster} needs compute capability 9.0, and this code is for "
                f"{capability // 10}.{capability % 10}; leave it out"
            )
        return
    number, prefix = min(lacking, key=lambda each: kernel.sites[each[0]].line)
    place, (function, needed, instead) = kernel.sites[number], _NEEDS[prefix]
    itself = " itself" if prefix in _HOPPER else ""
    raise located_in(
        place.file,
        place.line,
        f"kernel {kernel.name}: {function} needs compute capability {needed[0]}.{needed[1]}{itself}, and this code "
        f"is for {capability // 10}.{capability % 10}; {instead}",
    )
