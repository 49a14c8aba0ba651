"""What the PTX of a kernel looks like: no GPU is needed to compile it, or to see that it is good."""

from __future__ import annotations

import re

import pytest

from oxide import CompileError, DisjointSlice, Slice, f32, f64, i32, kernel, thread, u32
from oxide.compiler.kernel.kernel import Kernel
from oxide.driver.base import Target
from oxide_kernels import matvec_naive, sgemm_naive
from tests.compiler.assembler import assembled, needs_ptxas


@kernel(block=256)
def relu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = output.get_mut(index)
    if element is not None:
        x = input[index.get()]
        element.value = f32(0.0) if x < f32(0.0) else x


CAPABILITIES = [(7, 5), (8, 0), (9, 0), (10, 0)]
KERNELS = [sgemm_naive, matvec_naive, relu]


def entry_text(ptx: str) -> str:
    return ptx[ptx.index(".entry") :]


def hot_loop(ptx: str) -> str:
    """The instructions from the label of the innermost loop's block to the branch back to it."""
    lines = entry_text(ptx).splitlines()
    loads = [number for number, line in enumerate(lines) if "fma.rn.f32" in line]
    first = loads[0]
    start = max(number for number, line in enumerate(lines[:first]) if re.match(r"\$L__BB\w+:", line))
    end = next(number for number, line in enumerate(lines) if number > first and "bra" in line)
    return "\n".join(lines[start : end + 1])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("cc", CAPABILITIES)
def test_every_kernel_compiles_for_every_architecture(kernel: Kernel, cc: tuple[int, int]) -> None:
    ptx = kernel.ptx(cc)
    assert f".target sm_{cc[0]}{cc[1]}" in ptx
    assert re.search(r"^\.version 8\.6$", ptx, re.MULTILINE)
    assert f".visible .entry {kernel.name}(" in ptx
    assert ".extern" not in ptx
    assert ".local" not in ptx
    body = entry_text(ptx)
    assert "ld.global" in body
    assert "st.global" in body
    assert not re.search(r"\b(ld|st)\.[bfsu]\d", body), "a generic access: the address space was not inferred"


def test_the_last_parameter_is_the_fault_record() -> None:
    # input: address and length; output: address and length; the record's address.
    assert len(re.findall(r"\.param \.\w+ .*relu_param_\d+[,\n]", relu.ptx())) == 5
    assert relu.specialize().pack([(1, 2), (3, 4)], 5) == b"".join(n.to_bytes(8, "little") for n in range(1, 6))


def test_an_unchecked_loop_is_loads_and_fused_multiply_adds() -> None:
    unchecked = kernel(unchecked=True)(sgemm_naive.function)
    ptx = unchecked.ptx()
    assert "atom." not in ptx
    loop = hot_loop(ptx)
    fused = len(re.findall(r"fma\.rn\.f32", loop))
    assert fused >= 4
    assert len(re.findall(r"ld\.global", loop)) == fused + fused // 4  # one of the rows is read four at a time
    assert "setp" in loop
    assert len(re.findall(r"setp", loop)) == 1
    assert not re.search(r"mul\.f32|add\.rn\.f32|call|cvt\.", loop)


def test_a_tested_reference_is_not_checked_again() -> None:
    @kernel
    def tested(c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = element.value + 1

    @kernel
    def careless(c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        element.value = 1  # type: ignore[union-attr]

    assert "atom." not in tested.ptx()
    assert "atom." in careless.ptx()


def test_the_fault_is_off_the_hot_path_and_claimed_once() -> None:
    ptx = sgemm_naive.ptx()
    assert ptx.count("atom.relaxed.gpu.global.cas.b32") == 2  # one for each access that may fail
    assert "trap" not in ptx
    assert "atom" not in hot_loop(ptx)


def test_max_registers_reaches_the_assembler() -> None:
    limited = kernel(max_registers=32)(relu.function)
    assert re.search(r"\.maxnreg 32", limited.ptx())
    assert "maxnreg" not in relu.ptx()


def test_fastmath_divides_approximately() -> None:
    def divide(a: Slice[f32], c: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = c.get_mut(index)
        if element is not None:
            element.value = element.value / a[index.get()]

    assert "div.rn.f32" in kernel(divide).ptx()
    assert "div.rn.f32" not in kernel(fastmath=True)(divide).ptx()


def test_float32_arithmetic_stays_in_float32() -> None:
    @kernel
    def scale(n: u32, a: Slice[f32], c: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = c.get_mut(index)
        if element is not None:
            acc = f32(0.0)
            for i in range(n):
                acc += a[i] * f32(2.0)
            element.value = acc

    assert "f64" not in scale.ptx()


def test_the_same_kernel_has_the_same_text_in_two_compilations() -> None:
    assert kernel(relu.function).ptx() == kernel(relu.function).ptx()


def test_no_architecture_of_that_name_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="no CUDA architecture"):
        relu.specialize().code(Target("ptx", "hopper"))


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_ptxas_accepts_every_kernel_and_spills_nothing(cc: tuple[int, int]) -> None:
    @kernel
    def mixed(n: u32, a: Slice[f64], b: Slice[i32], c: DisjointSlice[f64]) -> None:
        index = thread.index_2d(n)
        if index is not None:
            element = c.get_mut(index)
            if element is not None:
                element.value = a[b[index.get()]] / 3.0 + b[0] // n % 7 + (b[1] << b[2])

    for each in (*KERNELS, mixed):
        assert " 0 bytes spill stores" in assembled(each.ptx(cc), cc)
