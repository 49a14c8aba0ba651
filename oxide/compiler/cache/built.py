"""Kernels that were built ahead of time: the directory that holds them, the processors that run its code, and the
specializations that are found in it.

``oxide build`` writes kernels to a *directory*: files of code, and ``manifest.json``, which has a record of each
specialization. A ``BuiltEntry`` reads one record, and takes the place of the disk cache's ``Entry``. Both encode the
front end's results in the same way. A directory holds no IR, so its kernels are neither fused with others nor compiled
for further devices.

The manifest has a checksum of its own content, and the name and checksum of each file. Nothing is unpickled. The
checksums detect damage, but not manipulation. The files are machine code, so a user must trust a directory like a
program.

Every directory also has oxide's own kernels, such as the kernel of strided copies. Loading a directory makes them known
to the whole process (``provide``), which uses them if the compiler is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, final

from oxide.compiler.cache.entries import Facts, decoded, decoded_needs, encoded
from oxide.compiler.declaration.description import KernelDescription
from oxide.compiler.signature.signature import Closed
from oxide.driver.base import Code, Target, capability_of
from oxide.errors import ArgumentError, CompileError
from oxide.host import disk


def key_of(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> str:
    """Returns the key of a specialization: a digest of the kernel's place in the source, its options and its parameter
    types. A kernel that is compiled and the same kernel built ahead of time have the same key."""
    function = kernel.function
    parts = [str(function.__module__), function.__qualname__, str(function.__code__.co_firstlineno)]
    parts += [
        f"{option.name}={getattr(kernel, option.name)!r}"
        for option in dataclasses.fields(kernel)
        if not option.metadata
    ]
    parts += [contract.text for contract in kernel.contracts]
    parts += [f"{parameter.name}: {parameter.identity}" for parameter in parameters]
    return disk.digest(parts)


def described_entry(
    kernel: KernelDescription, parameters: tuple[Closed, ...], facts: Facts, codes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the manifest's record of a specialization. ``codes`` are results of ``described_code``."""
    return {
        "key": key_of(kernel, parameters),
        "types": {parameter.name: parameter.annotation for parameter in parameters},
        "tile": _tile_text(kernel.tile_key),
        "records": {p.name: layout for p in parameters if (layout := _record_layout(p)) is not None},
        "needs": dataclasses.asdict(facts.needs),
        "sites": encoded(facts.sites, {}),
        "conversions": encoded(facts.conversions, {}),
        "codes": list(codes),
    }


def described_code(code: Code, file: str) -> dict[str, Any]:
    """Returns the manifest's record of the code for a target. ``file`` is the name of the file with the image."""
    arch = code.target.arch
    if code.target.kind == "ptx":
        _, _, after = code.image.partition(b"\n.target ")
        arch = after.partition(b"\n")[0].decode() or arch
    elif code.target.kind == "native":
        arch = named_arch(code.target)
    return {
        "kind": code.target.kind,
        "arch": arch,
        "features": needed_features(code.target) if code.target.kind == "native" else [],
        "entry": code.entry,
        "array_bytes": code.array_bytes,
        "persistent": code.persistent,
        "file": file,
        "digest": file_digest(code.image),
    }


def _record_layout(parameter: Closed) -> dict[str, Any] | None:
    """Returns the layout of the records that an untyped parameter takes. None for a parameter that takes no records."""
    dtype = getattr(getattr(parameter, "type", None), "dtype", None)
    if dtype is None or not dtype.names:
        return None
    fields = {name: {"type": str(dtype.fields[name][0]), "offset": dtype.fields[name][1]} for name in dtype.names}
    return {"bytes": dtype.itemsize, "fields": fields}


@final
class BuiltEntry:
    """A specialization in a directory."""

    def __init__(self, name: str, directory: Path, record: Mapping[str, Any]) -> None:
        self._name = name
        self._directory = directory
        self._record = record
        self._codes: dict[Target, Code] = {}

    def facts(self) -> Facts:
        """Returns the specialization's ``Facts``. Their ``portable`` and ``placements`` raise ``CompileError``, because
        there is no IR."""
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        record = self._record
        return Facts(
            needs=decoded_needs(record["needs"]),
            sites=decoded(record["sites"], {}),
            conversions=decoded(record["conversions"], {}),
            elementwise=lambda: "it was built ahead of time, without its IR",
            portable=self._no_ir,
            placements=self._no_ir,
        )

    def _no_ir(self) -> NoReturn:
        raise CompileError(
            f"kernel {self._name} was built ahead of time, without its IR: ask the kernel that it was built from"
        )

    def code(self, target: Target) -> Code:
        """Returns the code for a device. Raises ``CompileError`` if the directory has no code that runs on the device,
        and ``ArgumentError`` if the file is damaged."""
        found = self._codes.get(target)
        if found is None:
            code = self._chosen(target)
            image = read_file(self._directory, code["file"], code["digest"])
            built = Target(code["kind"], code["arch"])
            found = self._codes[target] = Code(
                built, code["entry"], image, code["array_bytes"], persistent=code["persistent"]
            )
        return found

    def _chosen(self, target: Target) -> Mapping[str, Any]:
        codes: list[dict[str, Any]] = [code for code in self._record["codes"] if code["kind"] == target.kind]
        if target.kind == "native" and target.seeded:
            raise self._not_built("the CPU device with a seed, whose threads run in a chosen order")
        if target.kind == "native":
            lacking: set[str] = set()
            for code in codes:
                missing = without_features(target, code["arch"], code["features"])
                if not missing:
                    return code
                lacking |= missing
            because = f", which has no {' '.join(sorted(lacking))}" if lacking else ""
            raise self._not_built(f"this processor{because}")
        fitting = [code for code in codes if _runs_on(code["arch"], target.arch)]
        if not fitting:
            raise self._not_built(f"{target.arch} (compute capability {_shown(target.arch)})")
        return max(fitting, key=lambda code: capability_of(code["arch"]))

    def _not_built(self, device: str) -> CompileError:
        built = ", ".join(_shown_code(code) for code in self._record["codes"])
        return CompileError(
            f"kernel {self._name} of {self._directory} was built for {built}, not for {device}: build it for that too, "
            "with --cc or --cpu of `oxide build`"
        )


def _runs_on(arch: str, device: str) -> bool:
    """Returns whether PTX for an architecture runs on a device: on its own or a newer one. With a suffix, as in
    ``sm_90a``, it runs on its own alone."""
    if not arch[-1].isdigit():
        return capability_of(arch) == capability_of(device)
    return capability_of(arch) <= capability_of(device)


def _shown(arch: str) -> str:
    number = capability_of(arch)
    return f"{number // 10}.{number % 10}"


def _shown_code(code: Mapping[str, Any]) -> str:
    if code["kind"] == "ptx":
        return f"compute capability {_shown(code['arch'])}{'' if code['arch'][-1].isdigit() else ' alone'}"
    return f"the CPU ({code['arch']})"


@final
class BuiltKernel:
    """A kernel in a directory, with all its specializations there."""

    def __init__(self, name: str, directory: Path, records: Sequence[Mapping[str, Any]]) -> None:
        self._name = name
        self._directory = directory
        self._records = records
        self._entries = {record["key"]: BuiltEntry(name, directory, record) for record in records}

    def entry(self, kernel: KernelDescription, parameters: tuple[Closed, ...]) -> BuiltEntry:
        """Returns the specialization for some parameter types. Raises ``CompileError`` if it was not built."""
        found = self._entries.get(key_of(kernel, parameters))
        if found is not None:
            return found
        wanted = _signature({p.name: p.annotation for p in parameters}, _tile_text(kernel.tile_key))
        built = ", ".join(_signature(record["types"], record["tile"]) for record in self._records)
        raise CompileError(
            f"kernel {self._name} of {self._directory} was built for {built}, not for {wanted} with the "
            "options that it has: build it for these too, with `oxide build`"
        )


def _signature(types: Mapping[str, str], tile: str) -> str:
    inside = ", ".join(f"{name}: {kind}" for name, kind in types.items())
    return f"({inside}){' with ' if tile else ''}{tile}"


def _tile_text(key: tuple[Any, ...]) -> str:
    """Returns the constants and options of a tile kernel, written as arguments of ``specialize``; else ""."""
    if not key:
        return ""
    *named, threads, stages, _ = key
    found = [f"{name}={value}" for name, value in named]
    return ", ".join([*found, f"warps={threads // 32}", *([f"stages={stages}"] if stages else [])])


_provided: dict[str, BuiltEntry] = {}


def provide(name: str, directory: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Makes the specializations of one of oxide's own kernels known to the process, for ``provided_entry``."""
    for record in records:
        _provided[record["key"]] = BuiltEntry(name, directory, record)


def provided_entry(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> BuiltEntry | None:
    """Returns the specialization of one of oxide's own kernels from a loaded directory, or None."""
    module = str(kernel.function.__module__).partition(".")[0]
    if not _provided or module not in ("oxide", "oxide_kernels"):
        return None
    return _provided.get(key_of(kernel, parameters))


# The directory

FORMAT = 1
"""The version of the manifest's format. Several versions of oxide may share one."""

NAME = "manifest.json"


def write_directory(directory: Path, content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Removes an old manifest, writes the files, and writes the new manifest last. A directory whose writing was
    interrupted therefore has no manifest, or an incomplete one, which is refused. Raises ``ArgumentError`` if the
    directory cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (directory / NAME).unlink()
        for name, image in files.items():
            (directory / name).write_bytes(image)
        whole = {"format": FORMAT, "checksum": _checksum(content), **content}
        (directory / NAME).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{directory} cannot be written: {error.strerror or error}; name another folder") from None


def read_manifest(directory: Path, version: str) -> dict[str, Any]:
    """Returns the manifest of a directory that was built by the version ``version`` of oxide. Raises ``ArgumentError``
    if the manifest is missing, damaged, or from another version."""
    path = directory / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"{directory} has no {NAME} that can be read ({error.strerror or error}); `oxide build … -o {directory}` "
            "makes one"
        ) from None
    except UnicodeDecodeError:
        raise _damaged(path) from None
    try:
        found = json.loads(text)
        form, checksum, by = found.pop("format"), found.pop("checksum"), found["oxide"]
        is_intact = checksum == _checksum(found)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(path) from None
    if form != FORMAT or by != version:
        raise ArgumentError(
            f"{directory} was built by oxide {by} (format {form}), and this is oxide {version} (format {FORMAT}): "
            "build it again with this version"
        )
    if not is_intact:
        raise _damaged(path)
    manifest: dict[str, Any] = found
    return manifest


def read_file(directory: Path, name: str, digest: str) -> bytes:
    """Returns the content of a file of the directory. Raises ``ArgumentError`` if it is missing or damaged."""
    path = directory / os.path.basename(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror or error}; build the directory again") from None
    if file_digest(content) != digest:
        raise _damaged(path)
    return content


def file_digest(content: bytes) -> str:
    """Returns the checksum of a file's content."""
    return disk.digest((content,))


def _checksum(content: Mapping[str, Any]) -> str:
    return disk.digest((json.dumps(content, sort_keys=True),))


def _damaged(path: Path) -> ArgumentError:
    return ArgumentError(f"{path} is damaged: it is not what was written; build the directory again")


# Processors
#
# LLVM may emit instructions of any set that the target has. So code runs on any processor that has all these sets,
# whatever the processor's name. Instruction sets that only operating systems or intrinsics use are left out.

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
    """Returns the name of a native target: a level of x86-64, or machine and processor, ``x86_64:znver4``."""
    return target.arch if target.arch in BASELINES else f"{platform.machine()}:{target.arch}"


def _features(target: Target) -> set[str]:
    return {name[1:] for name in target.features.split(",") if name.startswith("+")}
