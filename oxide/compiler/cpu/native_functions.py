"""Host functions: functions in IR that a stream, a thread or another library calls by address, without the GIL.

Host functions are compiled once and kept in the disk cache, as kernels are, so that later processes load them without
LLVM. A process loads each function once and keeps its code for good: a stream may hold the address at any time. The
code runs on every processor of the machine's architecture. A function that takes its data and the addresses of its
callees as arguments needs no relocation, so it is loaded without LLVM on AArch64 too.
``docs/notes/host-path.md`` compares host functions with the alternatives.
"""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path
from typing import Any

from oxide import disk
from oxide.driver.base import Target
from oxide.driver.object import Unloadable, load_object
from oxide.environment import is_installed
from oxide.errors import CompileError
from oxide.uninterrupted import uninterrupted


def host_function(ir: str, name: str) -> tuple[int, object]:
    """Returns the address of a function of the IR, and the object that keeps it alive. Several threads that load the
    function at once get the same address.

    ``ir`` must contain no address, so that it is the same in every process: its object file is cached on disk.
    """
    found = _loaded.get((ir, name))
    if found is None:
        found = _loaded.setdefault((ir, name), uninterrupted(partial(load_host_function, ir, name)))
    return found


_loaded: dict[tuple[str, str], tuple[int, object]] = {}


def load_host_function(ir: str, name: str) -> tuple[int, object]:
    """Does the same as ``host_function``, but loads the function again at each call."""
    try:
        memory, address = load_object(host_object(ir, name), name)
    except Unloadable:  # on another system or kind of processor
        return compile_host_function(ir, name)
    return address, memory


def compile_host_function(ir: str, name: str) -> tuple[int, object]:
    """Compiles a function of the IR in this process. Returns its address, and the object that keeps it alive."""
    return uninterrupted(partial(_compile, ir, name))


def _compile(ir: str, name: str) -> tuple[int, object]:
    _require_llvm(name)
    import llvmlite.binding as llvm

    module, machine = _compiled(ir, name)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine.get_function_address(name), engine


def provide(key: str, image: bytes) -> None:
    """Makes an object file that was built ahead of time known to the process. ``key`` is the ``provided_key`` of its
    function."""
    _provided[key] = image


def provided_key(ir: str, name: str) -> str:
    """Returns the key of a function's object file. The key depends on the function's IR and name and on the kind of
    machine."""
    return disk.digest((ir, name, platform.machine()))


_provided: dict[str, bytes] = {}


def _require_llvm(name: str) -> None:
    if not is_installed("llvmlite"):
        raise CompileError(
            f"{name}, a host function of the runtime, must be compiled, and llvmlite is not installed: python -m pip "
            "install llvmlite, or call oxide.load first: a directory that `oxide build` has made on this kind of "
            "machine has the function"
        )


def host_object(ir: str, name: str) -> bytes:
    """Returns the function's object file: the file given to ``provide``, else the file in the cache, else a new file.
    Raises ``CompileError`` if the function must be compiled and LLVM is not installed."""
    if _provided and (known := _provided.get(provided_key(ir, name))) is not None:
        return known
    _require_llvm(name)
    # The key covers all that the code depends on: how it is compiled, its IR, the machine and the version of LLVM.
    recipe = [path.read_bytes() for path in (Path(__file__), Path(__file__).parents[1] / "ir" / "llvm.py")]
    key = "host-" + disk.digest((*recipe, ir, name, platform.machine(), disk.version_text("llvmlite")))
    image = disk.read(key)
    if image is None:
        module, machine = _compiled(ir, name)
        image = bytes(machine.emit_object(module))
        disk.write(key, image)
    return image


def _compiled(ir: str, name: str) -> tuple[Any, Any]:
    """Returns the optimised module, and LLVM's target machine."""
    import llvmlite.binding as llvm

    from oxide.compiler.ir.llvm import header, host_machine, optimise

    machine = host_machine(Target("native", "", ""))
    module = llvm.parse_assembly(header(machine) + ir)
    module.verify()
    optimise(module, machine, exported=name, packing=False)
    return module, machine
