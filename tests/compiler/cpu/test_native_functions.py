"""Host functions: compiled once for all processes, loaded without LLVM; else compiled in each process."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

import oxide.runtime
from oxide.compiler.cpu import native_functions
from oxide.compiler.cpu.native_functions import host_function, load_host_function
from oxide.compiler.ir.files import ir_file
from oxide.compiler.ir.llvm import header, optimise
from oxide.driver.object import Unloadable, load_object
from oxide.runtime.host_memory.copy_pool import code_for

RUNTIME = Path(oxide.runtime.__file__).parent
# The handler of crash reports has a variable, so AArch64 loads it by LLVM.
FILES = sorted(file for file in RUNTIME.rglob("*.ll") if file.stem != "crash_reports")
ADDS = "define i64 @changes(i64 %x) {{\n  %y = add i64 %x, {}\n  ret i64 %y\n}}"

can_load = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="there is no loader here"
)


def called(made: tuple[int, Any], argument: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(made[0])(argument)
    return result


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@can_load
def test_only_the_first_process_needs_llvm_to_wake_a_loop_and_to_copy(cache: Path) -> None:
    program = """
import platform, sys
from oxide.runtime.host_memory import copy_pool, moves, streaming_copy
from oxide.runtime.loop.alarm import notify_function
assert all([notify_function(), copy_pool.copy_function(), moves.move_function()])
assert streaming_copy.streaming_copy_address()
copy_pool.CopyPool(1, copy_pool._SYS_FUTEX[platform.machine()])
print("llvmlite" in sys.modules)
"""
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert said == [["True"], ["False"]]


def test_functions_of_one_name_are_told_apart_by_their_ir(cache: Path) -> None:
    made = {number: load_host_function(ADDS.format(number), "changes") for number in (1, 2, 1)}
    assert [called(made[1], 10), called(made[2], 10)] == [11, 12]
    assert len(os.listdir(cache)) == 2


def test_a_damaged_file_of_the_cache_is_made_again(cache: Path) -> None:
    load_host_function(ADDS.format(1), "changes")
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    assert called(load_host_function(ADDS.format(1), "changes"), 10) == 11
    assert file.read_bytes() == good


@can_load
def test_threads_that_load_a_function_at_once_get_the_same_code(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may hold the address that any of them got."""
    loaded = threading.Barrier(3, timeout=60)

    def load(image: bytes, entry: str) -> Any:
        found = load_object(image, entry)
        loaded.wait()
        return found

    monkeypatch.setattr(native_functions, "load_object", load)
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(host_function, ADDS.format(7), "changes") for _ in range(3)]
    assert len({id(each.result()) for each in made}) == 1
    assert [called(each.result(), 10) for each in made] == [17, 17, 17]


@pytest.mark.parametrize("problem", ["no loader", "no cache"])
def test_a_function_is_compiled_where_it_cannot_be_loaded_or_kept(
    problem: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(image: bytes, entry: str) -> Any:
        raise Unloadable("no loader for this processor")

    if problem == "no loader":
        monkeypatch.setattr(native_functions, "load_object", refuse)
    else:
        monkeypatch.setenv("OXIDE_CACHE", "0")
    made = load_host_function(ADDS.format(3), "changes")
    assert called(made, 10) == 13
    assert cache.exists() == (problem == "no loader")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_runtimes_functions_need_no_relocation(file: Path, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AArch64 loads no others, and x86-64 finds no other function's address at run time."""
    text = code_for(machine) if file.stem == "copy_pool" else ir_file(str(file), file.name)
    if "llvm.x86" in text and machine != "x86_64":
        pytest.skip("for x86-64 only")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in re.findall(r"^define (?!internal).*@(\w+)\(", text, re.MULTILINE):
        image = emitted(text, machine, name)
        sections = {section.name() or b"" for section in llvm.ObjectFileRef.from_data(image).sections()}
        assert b".text" in sections
        assert not [section for section in sections if section.startswith(b".rel")]
        memory, address = load_object(image, name)
        assert address
        del memory


def test_aarch64_refuses_relocations(monkeypatch: pytest.MonkeyPatch) -> None:
    ir = """
declare i64 @outside(i64)
define i64 @calls(i64 %x) nounwind {
  %y = call i64 @outside(i64 %x)
  %z = add i64 %y, 1
  ret i64 %z
}
"""
    image = emitted(ir, "aarch64", "calls")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(Unloadable, match="a relocation of type"):
        load_object(image, "calls")


def emitted(ir: str, machine: str, name: str) -> bytes:
    """The function's object file for a kind of machine, as ``native_functions`` compiles it."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu")
    compiler = target.create_target_machine(opt=3, reloc="pic", codemodel="jitdefault", jit=True)
    module = llvm.parse_assembly(header(compiler) + ir)
    optimise(module, compiler, exported=name, packing=False)
    image: bytes = compiler.emit_object(module)
    return image
