"""This machine's processor: its name, and the target of the code that it runs.

LLVM detects the target once; later processes read it from the cache on disk. If llvmlite is not installed, the target
is made from Linux's description of the processor, and serves to select code that was built ahead of time.
"""

from __future__ import annotations

import functools
import platform

from oxide.driver.base import Target
from oxide.host import disk
from oxide.host.environment import is_installed
from oxide.host.locks import new_lock, unheld
from oxide.host.uninterrupted import uninterrupted

LLVM_LOCK = new_lock()
"""Guards LLVM, which is not thread-safe."""


@functools.cache
def host_target() -> Target:
    """Returns the target of this machine."""
    if not is_installed("llvmlite"):
        return target_without_llvm()
    described = _described()
    name = None
    if described:
        # With llvmlite's version, because a newer LLVM may know more names.
        lines = [f"{key}: {described[key]}" for key in _IDENTIFYING if key in described]
        text = "\n".join([disk.version_text("llvmlite"), platform.machine(), *lines])
        name = "processor-" + disk.digest((__name__, text))
        known = disk.read(name)
        if known is not None:
            arch, _, features = known.decode().partition("\n")
            return Target("native", arch, features)
    target = uninterrupted(_ask_llvm)
    if name is not None:
        disk.write(name, f"{target.arch}\n{target.features}".encode())
    return target


@functools.cache
def host_name() -> str:
    """Returns the processor's name as its maker writes it, or a general name if the system does not provide it."""
    return _described().get("model name") or platform.processor() or platform.machine() or "CPU"


def target_without_llvm() -> Target:
    """Returns a native target with the instruction sets that Linux reports; without any on other systems."""
    names = {_NAMES.get(flag) or _plain(flag) for flag in _described().get("flags", "").split()}
    if "sse4.2" in names:
        names.add("crc32")  # LLVM counts this instruction of SSE4.2 as a set of its own
    return Target("native", platform.machine(), ",".join(f"+{name}" for name in sorted(names)))


def _ask_llvm() -> Target:
    import llvmlite.binding as llvm

    with unheld(LLVM_LOCK):
        try:
            features = llvm.get_host_cpu_features().flatten()
        except RuntimeError:
            # LLVM does not know the features on every system. The CPU's name alone is then used.
            features = ""
        return Target("native", llvm.get_host_cpu_name(), features)


@functools.cache
def _described() -> dict[str, str]:
    """Returns Linux's description of the first processor; an empty one on other systems."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, text = line.partition(":")
                if not key.strip():
                    break
                found[key.strip()] = text.strip()
    except OSError:
        pass
    return found


_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""The parts of the description that tell processors apart."""

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


def _plain(flag: str) -> str:
    name = flag.replace("_", "")
    return _DASHED.get(name, name)
