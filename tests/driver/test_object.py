"""The loader of object files: what LLVM emits runs, and what it cannot load it refuses."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.compiler.ir.llvm import header, optimise
from oxide.driver.object import EXTERNAL_FUNCTIONS, Unloadable, load_object
from tests.choosing import examples

EVERYTHING = """
@counter = global i64 40
@zeros = global [1000 x i64] zeroinitializer
@functions = global [2 x ptr] [ptr @twice, ptr @labs]
@weights = constant [4 x double] [double 0.5, double 0.25, double 2.0, double 8.0]
declare i64 @labs(i64)
declare double @cos(double)
define i64 @twice(i64 %x) noinline {
  %y = mul i64 %x, 2
  ret i64 %y
}
define i64 @choose(i64 %x) noinline {
entry:
  switch i64 %x, label %other [i64 0, label %a  i64 1, label %b  i64 2, label %c  i64 3, label %d  i64 4, label %e]
a:
  ret i64 11
b:
  %n = call i64 @twice(i64 50)
  ret i64 %n
c:
  %m = call i64 @labs(i64 -7)
  ret i64 %m
d:
  ret i64 5
e:
  %old = load i64, ptr @counter
  %new = add i64 %old, 1
  store i64 %new, ptr @counter
  ret i64 %new
other:
  ret i64 -1
}
define i64 @run(i64 %x) {
  %chosen = call i64 @choose(i64 %x)
  %place = and i64 %x, 1
  %at = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %place
  %function = load ptr, ptr %at
  %called = call i64 %function(i64 %x)
  %weight.at = getelementptr [4 x double], ptr @weights, i64 0, i64 %place
  %weight = load double, ptr %weight.at
  %angle = sitofp i64 0 to double
  %one = call double @cos(double %angle)
  %product = fmul double %weight, %one
  %scaled = fmul double %product, 400.0
  %whole = fptosi double %scaled to i64
  %zero.at = getelementptr [1000 x i64], ptr @zeros, i64 0, i64 999
  %zero = load i64, ptr %zero.at
  %a = add i64 %chosen, %called
  %b = add i64 %a, %whole
  %c = add i64 %b, %zero
  ret i64 %c
}
"""
MODELS = [("pic", "jitdefault"), ("pic", "small"), ("static", "large")]


def emitted(ir: str, reloc: str = "pic", model: str = "jitdefault") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=2, reloc=reloc, codemodel=model, jit=model == "jitdefault"
    )
    image: bytes = machine.emit_object(llvm.parse_assembly(ir))
    return image


def loaded(image: bytes, entry: str) -> tuple[Any, Callable[[int], int]]:
    memory, address = load_object(image, entry)
    return memory, ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


@pytest.mark.parametrize(("reloc", "model"), MODELS)
def test_code_with_data_tables_and_calls_of_the_c_library_runs(reloc: str, model: str) -> None:
    memory, run = loaded(emitted(EVERYTHING, reloc, model), "run")
    assert [run(x) for x in range(4)] == [11 + 0 + 200, 100 + 1 + 100, 7 + 4 + 200, 5 + 3 + 100]
    assert [run(4), run(4)] == [41 + 8 + 200, 42 + 8 + 200]
    assert run(6) == -1 + 12 + 200
    del memory


def test_two_copies_of_an_object_have_data_of_their_own() -> None:
    image = emitted(EVERYTHING)
    (one, first), (two, second) = loaded(image, "run"), loaded(image, "run")
    assert first(4) == first(4) - 1 == second(4)
    del one, two


def test_a_function_that_the_program_names_comes_before_that_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: x + 1000)
    address = ctypes.cast(ours, ctypes.c_void_p).value
    assert address is not None
    monkeypatch.setitem(EXTERNAL_FUNCTIONS, "labs", address)
    memory, run = loaded(emitted(EVERYTHING), "choose")
    assert run(2) == 993
    del memory


def test_code_is_not_writable_and_data_is_not_executable() -> None:
    memory, address = load_object(emitted(EVERYTHING), "run")
    with open("/proc/self/maps") as lines:
        found = {
            line.split()[1][:3]
            for line in lines
            if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        }
    assert found == {"r-x"}
    del memory


@pytest.mark.parametrize(
    ("ir", "why"),
    [
        ("declare i64 @nowhere(i64)\ndefine i64 @run(i64 %x) {\n %y = call i64 @nowhere(i64 %x)\n ret i64 %y\n}",
         "nowhere is in no library"),
        ("@t = thread_local global i64 1\ndefine i64 @run(i64 %x) {\n %y = load i64, ptr @t\n ret i64 %y\n}", "flags"),
        ("@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } "
         "{ i32 1, ptr @start, ptr null }]\ndefine void @start() {\n ret void\n}\n"
         "define i64 @run(i64 %x) {\n ret i64 %x\n}", "before all others"),
        ("@common = common global i64 0\ndefine i64 @run(i64 %x) {\n %y = load i64, ptr @common\n ret i64 %y\n}",
         "in no section"),
    ],
)  # fmt: skip
def test_what_needs_more_than_this_loader_does_is_refused(ir: str, why: str) -> None:
    with pytest.raises(Unloadable, match=why):
        load_object(emitted(ir), "run")


def test_an_entry_that_is_not_there_has_no_address() -> None:
    image = emitted(EVERYTHING)
    assert load_object(image, "elsewhere")[1] == 0
    assert load_object(image, "labs")[1] == 0  # a name that the object uses and does not have


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_damaged_object_is_loaded_or_refused_and_never_more(data: st.DataObject) -> None:
    image = bytearray(emitted(EVERYTHING))
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(image)))
    for damaged in (bytes(image), bytes(image[:end])):
        with contextlib.suppress(Unloadable):
            load_object(damaged, "run")


def test_aarch64_refuses_relocations(monkeypatch: pytest.MonkeyPatch) -> None:
    ir = """
declare i64 @outside(i64)
define i64 @calls(i64 %x) nounwind {
  %y = call i64 @outside(i64 %x)
  %z = add i64 %y, 1
  ret i64 %z
}
"""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(opt=3, reloc="pic", codemodel="jitdefault", jit=True)
    module = llvm.parse_assembly(header(machine) + ir)
    optimise(module, machine, exported="calls", packing=False)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(Unloadable, match="a relocation of type"):
        load_object(machine.emit_object(module), "calls")
