"""Decides which CPUs can run a native object file, by the instruction sets that its code may use. The sets have LLVM's
names.

LLVM may emit instructions of any set that the target has. So code runs on any processor that has all these sets,
whatever the processor's name. Instruction sets that only operating systems or intrinsics use are left out.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from oxide.driver.base import Target

__all__ = ["BASELINES", "named_arch", "needed_features", "without_features"]

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
BASELINES = {
    "x86-64": (),
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}
"""The levels of the x86-64 ABI, and the instruction sets that each level has beyond plain x86-64."""

_SYSTEM = frozenset((
    "cldemote", "clflushopt", "clwb", "clzero", "enqcmd", "fsgsbase", "hreset", "ibt", "invpcid", "kl", "lwp",
    "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rdrnd", "rdseed", "rtm",
    "serialize", "sgx", "shstk", "tsxldtrk", "uintr", "usermsr", "vmx", "waitpkg", "wbnoinvd", "widekl", "xsave",
    "xsavec", "xsaveopt", "xsaves",
))  # fmt: skip


def needed_features(target: Target) -> list[str]:
    """Returns the instruction sets that code for a native target may use."""
    if target.arch in BASELINES:
        return sorted(BASELINES[target.arch])
    return sorted(_features(target) - _SYSTEM - {name for name in _features(target) if name.startswith("amx")})


def without_features(target: Target, arch: str, needed: Sequence[str]) -> set[str]:
    """Returns the instruction sets that code needs and the processor ``target`` lacks. If this machine has another
    architecture than the code, returns the code's architecture instead."""
    machine = "x86_64" if arch in BASELINES else arch.partition(":")[0]
    if machine != platform.machine():
        return {machine}
    return set(needed) - _features(target)


def named_arch(target: Target) -> str:
    """Returns the name of a native target in a manifest: a level of x86-64, or this machine with its processor,
    ``x86_64:znver4``."""
    return target.arch if target.arch in BASELINES else f"{platform.machine()}:{target.arch}"


def _features(target: Target) -> set[str]:
    return {name[1:] for name in target.features.split(",") if name.startswith("+")}
