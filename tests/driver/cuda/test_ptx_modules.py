"""Reading a kernel's parameters off its PTX."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("cuda.bindings.driver")
from oxide.driver.cuda.modules import parameter_layout
from oxide_kernels import matvec_naive, sgemm_naive


def test_the_parameters_take_what_the_compiler_packs() -> None:
    for kernel in (matvec_naive, sgemm_naive):
        packed = struct.calcsize("@" + "".join(p.struct_format for p in kernel.parameters) + "Q")
        assert parameter_layout(kernel.ptx(), kernel.name)[1] == packed


@pytest.mark.parametrize(
    ("parameters", "places", "size"),
    [
        ("", (), 0),
        (".param .u8 a", (0,), 1),
        (".param .u8 a, .param .f64 b, .param .b16 c", (0, 8, 16), 18),
        (".param .u32 a, .param .align 8 .b8 b[24]", (0, 8), 32),
        (".param .u64 .ptr .align 1 a, .param .u32 b", (0, 8), 12),
    ],
)
def test_alignment_and_arrays_are_counted(parameters: str, places: tuple[int, ...], size: int) -> None:
    ptx = f".visible .entry other(.param .u64 x) {{}} .entry k({parameters}) {{}}"
    assert parameter_layout(ptx, "k") == (places, size)
