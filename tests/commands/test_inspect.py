"""``oxide inspect``: SASS, and source with code. The other forms are tested with the compiler's reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oxide.commands import listing, machine
from oxide.commands.listing import by_place
from oxide.commands.program import main
from tests.commands.command_line import ROOT, oxide

needs_tools = pytest.mark.skipif(
    not machine.find_tool("ptxas") or not (machine.find_tool("nvdisasm") or machine.find_tool("cuobjdump")),
    reason="no ptxas, nvdisasm or cuobjdump",
)

KERNELS = '''"""Kernels of a file, which need not be on the path."""

from helpers import twice

from oxide import DisjointSlice, Slice, f32, kernel, thread


@kernel
def doubled(x: Slice[f32], y: DisjointSlice[f32]):
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = twice(x[i.get()])
'''
HELPERS = "from oxide import device\n\n\n@device\ndef twice(value):\n    return value + value\n"


@pytest.fixture(autouse=True)
def no_line_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--source`` turns line tables on for the process, here the tests'."""
    monkeypatch.setenv("OXIDE_LINEINFO", "0")


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "helpers.py").write_text(HELPERS)
    return tmp_path


def test_the_source_of_a_kernel_in_a_file_with_its_checks(kernels: Path, tmp_path: Path) -> None:
    ran = oxide("inspect", str(kernels / "kernels.py:doubled"), "--source", cwd=ROOT)
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == str(kernels / "kernels.py")
    at = lines.index("   13          out.value = twice(x[i.get()])")
    assert lines[at + 1].startswith("         | x: ")
    assert "y: proved" in lines[lines.index("   11      out = y.get_mut(i)") + 1]


def test_the_plan_of_a_tile_kernel_stands_below_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "examples.tiles.softmax:softmax", "y=(4, 1024)", "--source"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"e = tile\.exp\(.*\n +\| max: f32\[4\]: registers, one for each row, by shuffles\n", shown)


@needs_tools
def test_sass_is_that_of_the_compute_capability(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "oxide_kernels:matvec_naive", "--sass", "--cc", "8.0"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\bsm_80\b", shown)
    assert "FFMA" in shown
    assert "EXIT" in shown


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ((), "--sass needs ptxas, the assembler, which is neither on PATH nor in CUDA_HOME"),
        (("ptxas",), "--sass needs nvdisasm or cuobjdump, a disassembler, which is neither on PATH nor in CUDA_HOME"),
    ],
)
def test_a_tool_that_is_missing_is_named(
    there: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "find_tool", lambda name: f"/bin/{name}" if name in there else None)
    assert main(["inspect", "oxide_kernels:matvec_naive", "--sass"]) == 2
    assert message in capsys.readouterr().err


def test_a_tool_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'ptxas fatal: no' >&2\nexit 255\n")
    tool.chmod(0o755)
    monkeypatch.setattr(listing, "find_tool", lambda name: str(tool))
    with pytest.raises(LookupError, match="ptxas failed: ptxas fatal: no"):
        listing.disassembly(".target sm_90\n")


def test_tools_are_found_in_the_toolkit_and_in_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(machine, "_TOOLKITS", ())
    monkeypatch.setattr(machine.sys, "path", [str(tmp_path / "packages")])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert machine.find_tool("nvdisasm") is None
    for folder in ("packages/triton/backends/nvidia/bin", "cuda/bin"):
        (tmp_path / folder).mkdir(parents=True)
        tool = tmp_path / folder / "nvdisasm"
        tool.touch(mode=0o755)
        assert machine.find_tool("nvdisasm") == str(tool)


PTX = """\
.visible .entry doubled(
)
{
\t.reg .b32 \t%r<4>;
\t.loc\t1 10 0
\tmov.u32 \t%r1, %tid.x;
$L__BB0_1:
\t.loc\t2 6 0, function_name $L__oxide_name0, inlined_at 1 13 0
\tadd.f32 \t%r2, %r1, %r1;
\tst.global.b32 \t[%rd1], %r2;
\t.loc\t1 0 0
\tret;
}
\t.file\t1 "/work/kernels.py"
\t.file\t2 "/work/helpers.py"
"""

SASS = """\
doubled:
\t//## File "/work/kernels.py", line 10
        /*0000*/                   S2R R0, SR_TID.X ;
\t//## File "/work/helpers.py", line 6 inlined at "/work/kernels.py", line 13
\t//## File "/work/kernels.py", line 13
        /*0010*/                   FADD R0, R0, R0 ;
.L_x_1:
        /*0020*/                   EXIT ;
"""

ASSEMBLY = """\
\t.file\t1 "/work" "kernels.py"
doubled:
\t.loc\t1 10 0 prologue_end
\tmovq\t%rdi, %rax
.Ltmp0:
\t.loc\t1 13 9
\tvaddss\t%xmm0, %xmm0, %xmm0   # a sum
\tretq
"""


def test_code_is_read_by_the_line_that_it_comes_from() -> None:
    assert by_place(PTX) == {
        ("/work/kernels.py", 10): ["mov.u32 %r1, %tid.x;"],
        ("/work/helpers.py", 6): ["add.f32 %r2, %r1, %r1;", "st.global.b32 [%rd1], %r2;"],
    }
    assert by_place(SASS) == {
        ("/work/kernels.py", 10): ["/*0000*/ S2R R0, SR_TID.X ;"],
        ("/work/helpers.py", 6): ["/*0010*/ FADD R0, R0, R0 ;", "/*0020*/ EXIT ;"],
    }
    assert by_place(ASSEMBLY) == {
        ("/work/kernels.py", 10): ["movq %rdi, %rax"],
        ("/work/kernels.py", 13): ["vaddss %xmm0, %xmm0, %xmm0 # a sum", "retq"],
    }
    assert by_place("\tret;\n") == {}


@pytest.mark.nightly
def test_the_ptx_of_each_line_stands_below_it_also_of_what_is_inlined(kernels: Path) -> None:
    ran = oxide("inspect", "kernels.py:doubled", "--source", "--ptx", cwd=kernels, OXIDE_LINEINFO="")
    assert ran.status == 0, ran.err
    own, _, inlined = ran.out.partition(str(kernels / "helpers.py"))
    assert re.search(r"13 +out\.value = twice.*\n( +\| .*\n)* +\| st\.global\.b32 ", own)
    assert re.search(r"6 +return value \+ value\n +\| add(\.rn)?\.f32 ", inlined)


@pytest.mark.nightly
def test_code_without_line_tables_is_refused(tmp_path: Path) -> None:
    ran = oxide("inspect", "oxide_kernels:matvec_naive", "--source", "--ptx", cwd=tmp_path, OXIDE_LINEINFO="0")
    assert (ran.status, ran.out) == (2, "")
    assert "the code of kernel matvec_naive has no line tables" in ran.err
