"""Names the instruction sets of this machine's processor as LLVM does, from Linux's description and without LLVM.

This is used if llvmlite is not installed, to select code that was built ahead of time.
"""

from __future__ import annotations

import platform

from oxide.driver.base import Target

__all__ = ["target_without_llvm"]

_NAMES = {
    "3dnowprefetch": "prfchw",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "fpu": "x87",
    "lahf_lm": "sahf",
    "lm": "64bit",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "user_shstk": "shstk",
}
"""LLVM's names by Linux's names, where the two differ by more than underscores and dashes."""

_DASHED = {"amxbf16": "amx-bf16", "amxint8": "amx-int8", "amxtile": "amx-tile", "amxfp16": "amx-fp16"}


def target_without_llvm() -> Target:
    """Returns a native target with the instruction sets that Linux reports; without any on other systems."""
    flags: list[str] = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    except OSError:
        pass
    names = {_NAMES.get(flag) or _plain(flag) for flag in flags}
    if "sse4.2" in names:
        names.add("crc32")  # LLVM counts this instruction of SSE4.2 as a set of its own
    return Target("native", platform.machine(), ",".join(f"+{name}" for name in sorted(names)))


def _plain(flag: str) -> str:
    name = flag.replace("_", "")
    return _DASHED.get(name, name)
