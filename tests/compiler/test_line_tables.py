"""Line tables: the lines of the source that profilers and debuggers find in a kernel's code, and that nothing else in
the code differs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.tiles import attention, gemm, kmeans, layer_norm, softmax, topk
from oxide import (
    BoundsError,
    CompileError,
    DeviceError,
    DisjointSlice,
    SharedArray,
    Slice,
    device,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    tile,
    zeros,
)
from oxide.compiler.cache.fingerprint import fingerprint
from oxide.compiler.ir.llvm import host_target
from oxide.compiler.ir.parser import parse
from oxide.compiler.kernel.kernel import Kernel
from oxide_kernels import matvec_naive, sgemm_2d, sgemm_naive
from tests.compiler.assembler import PTXAS, needs_ptxas
from tests.source_lines import line_of


@device
def scaled(x: f32) -> f32:
    y = x * f32(3)  # product
    return y + f32(1)  # sum


@device
def squared(x: f32) -> f32:
    a = scaled(x)  # inner call
    return a / f32(7)  # quotient


def total(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    s = f32(0)
    for j in range(len(x)):
        s += squared(x[j])  # outer call
    element = out.get_mut(i)
    if element is not None:
        element.value = s  # store


def reversed_blocks(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    shared = SharedArray(64, f32)
    index = thread.index_1d()
    t = thread.thread_idx.x
    shared[t] = scaled(x[index.get()])
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = shared[63 - t]


def many_shifts(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[0] << x[index.get()]  # shift


@tile.kernel
def plain_add(z: tile.Partition[f32, 2], x: tile.Tensor[f32, 2], y: tile.Tensor[f32, 2]) -> None:
    total = (
        tile.load_like(x, z)  # first load
        + tile.load_like(y, z)  # second load
    )
    z.store(total)  # store


def without_lines(ptx: str) -> str:
    """PTX without the lines and the section that line tables add."""
    ptx = re.sub(r"\t\.section\t\.debug_str\n\t\{\n[^}]*\t\}\n", "", ptx)
    kept = [line for line in ptx.splitlines() if line.strip() and not line.startswith(("\t.loc\t", "\t.file\t"))]
    return "\n".join(kept)


def places(ptx: str) -> list[tuple[str, tuple[int, ...]]]:
    """Each instruction of PTX with its lines: of itself, then of the calls that it came through."""
    found: list[tuple[str, tuple[int, ...]]] = []
    known: dict[int, tuple[int, ...]] = {}
    now: tuple[int, ...] = ()
    for line in ptx[ptx.index(".entry") :].splitlines():
        if match := re.fullmatch(r"\t\.loc\t1 (\d+) 0(?:, function_name (\S+), inlined_at 1 (\d+) 0)?", line):
            at, call = int(match[1]), match[3]
            now = (at, *known[int(call)]) if call else (at,)
            known[at] = now
        elif line.startswith("\t") and line.endswith(";") and not line.startswith("\t."):
            found.append((line.strip(), now))
    return found


def forms(function: Any, **options: Any) -> tuple[Kernel, Kernel]:
    """The kernel without line tables, and with them."""
    return kernel(lineinfo=False, **options)(function), kernel(lineinfo=True, **options)(function)


@pytest.mark.usefixtures("_verified")
def test_each_instruction_of_an_inlined_helper_has_its_own_line_and_those_of_the_calls() -> None:
    found = places(kernel(lineinfo=True)(total).ptx())
    inner, outer = line_of(squared.__wrapped__, "inner call"), line_of(total, "outer call")
    expected = {
        "mul.rn.f32": (line_of(scaled.__wrapped__, "product"), inner, outer),
        "div.rn.f32": (line_of(squared.__wrapped__, "quotient"), outer),
        "st.global.b32": (line_of(total, "store"),),
    }
    for instruction, lines in expected.items():
        at = {where for text, where in found if text.startswith(f"{instruction} ")}
        assert at == {lines}, instruction
    sums = {where for text, where in found if text.startswith("add.rn.f32 ")}
    assert sums == {(line_of(scaled.__wrapped__, "sum"), inner, outer), (outer,)}
    assert {where for text, where in found if text.startswith("ld.global")} == {(outer,)}


def test_the_file_and_the_names_of_the_functions_are_in_the_ptx() -> None:
    ptx = kernel(lineinfo=True)(total).ptx()
    assert f'\t.file\t1 "{__file__}"\n' in ptx
    names = [bytes(map(int, text.split(", "))) for text in re.findall(r"^\.b8 ([\d, ]+)$", ptx, re.MULTILINE)]
    assert sorted(names) == [b"scaled\0", b"squared\0"]
    assert ", debug" not in ptx
    assert "$L__tmp" not in ptx


THREADS = [
    *(
        (function, options)
        for function in (total, reversed_blocks, many_shifts)
        for options in ({}, {"unchecked": True})
    ),
    (total, {"fastmath": True}),
    (sgemm_naive.function, {}),
    (sgemm_2d.function, {}),
    (matvec_naive.function, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "options"), THREADS, ids=[f"{f.__name__} {o}" for f, o in THREADS])
def test_the_rest_of_the_ptx_is_the_same_as_without(function: Any, options: Any) -> None:
    plain, lined = forms(function, **options)
    assert ".loc" not in plain.ptx()
    assert lined.ptx().count("\t.loc\t") > 3
    assert without_lines(lined.ptx()) == without_lines(plain.ptx())


TILES: list[tuple[Any, dict[str, Any]]] = [
    (plain_add, {"z": (4, 64)}),
    (softmax.softmax, {"y": (4, 1024)}),
    (layer_norm.layer_norm, {"y": (2, 2048)}),
    (kmeans.assign, {"nearest": 64, "k": 16, "width": 8}),
    (topk.topk, {"values": (4, 5), "columns": (4, 5), "width": 512}),
    (gemm.matmul, {"c": gemm.TILE}),
    (attention.attention, {"out": (128, 128)}),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("plain", "given"), TILES, ids=[plain.name for plain, _ in TILES])
def test_the_rest_of_a_tile_kernels_ptx_is_the_same_as_without(plain: Any, given: Any) -> None:
    lined = tile.kernel(lineinfo=True)(plain.function).ptx(**given)
    unlined = tile.kernel(lineinfo=False)(plain.function).ptx(**given)
    assert lined.count("\t.loc\t") > 3
    assert without_lines(lined) == without_lines(unlined)


def test_a_tile_kernels_loads_and_stores_have_their_lines() -> None:
    found = places(tile.kernel(lineinfo=True)(plain_add.function).ptx(z=(4, 64)))
    loads = {where for text, where in found if text.lstrip("@%p0123456789 ").startswith("ld.global")}
    stores = {where for text, where in found if text.lstrip("@%p0123456789 ").startswith("st.global")}
    function = plain_add.function
    assert loads == {(line_of(function, "first load"),), (line_of(function, "second load"),)}
    assert stores == {(line_of(function, "store"),)}


@needs_ptxas
def test_the_assembler_keeps_the_lines_and_makes_the_same_instructions(tmp_path: Path) -> None:
    assert PTXAS is not None
    sections = []
    for name, form in zip(("plain", "lined"), forms(total), strict=True):
        source, cubin = tmp_path / f"{name}.ptx", tmp_path / f"{name}.cubin"
        source.write_text(form.ptx(), encoding="utf-8")
        command = [PTXAS, "-arch=sm_90", "-lineinfo", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        sections.append(sections_of(cubin.read_bytes()))
    plain, lined = sections
    assert plain[".text.total"] == lined[".text.total"]
    assert Path(__file__).name.encode() in lined[".debug_line"]
    assert b"scaled" in lined[".debug_line"] + lined[".debug_str"] + lined.get(".nv_debug_info_reg_sass", b"")


def sections_of(image: bytes) -> dict[str, bytes]:
    """The sections of an ELF file of 64 bits, by name."""
    start, size, count, names = (
        int.from_bytes(image[at : at + length], "little") for at, length in ((40, 8), (58, 2), (60, 2), (62, 2))
    )
    headers = []
    for number in range(count):
        header = image[start + size * number :][:size]
        headers.append(
            (
                *(
                    int.from_bytes(header[at : at + length], "little")
                    for at, length in ((0, 4), (4, 4), (24, 8), (32, 8))
                ),
            )
        )
    text = headers[names][2]
    found = {}
    for name, kind, offset, length in headers:
        label = image[text + name :].split(b"\0", 1)[0].decode()
        found[label] = b"" if kind == 8 else image[offset : offset + length]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("function", [total, reversed_blocks, many_shifts])
def test_the_machine_code_of_the_cpu_is_the_same_as_without(function: Any) -> None:
    plain, lined = (sections_of(form.specialize().code(host_target()).image) for form in forms(function))
    code = [name for name in plain if "text" in name and ".rela" not in name]
    assert code
    assert any(plain[name] for name in code)
    assert [plain[name] for name in code] == [lined[name] for name in code]
    assert ".debug_line" not in plain
    assert Path(__file__).name.encode() in lined[".debug_line"]


def test_launches_compute_and_fault_as_without() -> None:
    x = np.random.default_rng(3).standard_normal(33).astype(np.float32)
    plain, lined = forms(many_shifts)
    amounts = np.arange(31, dtype=np.int64)
    results = [form[1, 32](h2d(amounts), zeros(31, i64)).last().to_host().sync() for form in (plain, lined)]
    assert np.array_equal(*results)
    plain, lined = forms(total)
    sums = [form[1, 32](h2d(x), zeros(5)).last().to_host().sync() for form in (plain, lined)]
    assert np.array_equal(*sums)
    assert plain.checks() == lined.checks()
    faults = []
    for form in forms(reversed_blocks, block=64, partial=True):
        with pytest.raises(BoundsError) as caught:
            form[1, 64](h2d(x), zeros(64)).sync()
        faults.append(str(caught.value))
    assert faults[0] == faults[1]


def test_lines_survive_reading_and_printing() -> None:
    text = kernel(lineinfo=True)(total).specialize().llvm_ir()
    assert "!dbg" in text
    read = str(parse(text))
    assert str(parse(read)) == read
    assert read.count("!dbg") == text.count("!dbg")


def test_the_cache_tells_the_forms_apart() -> None:
    plain, lined = forms(total)
    parameters = plain.specialize().parameters
    assert fingerprint(plain.description, parameters) != fingerprint(lined.description, parameters)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OXIDE_LINEINFO": "1"}, True),
        ({"OXIDE_GDB": "1"}, True),
        ({"OXIDE_PERF": "map"}, False),
        ({"CUDA_INJECTION64_PATH": "/opt/libinject.so"}, True),
        ({"NSYS_PROFILING_SESSION_ID": "7"}, True),
        ({"NV_NSIGHT_INJECTION_PORT_BASE": "49152"}, True),
        ({"NV_COMPUTE_PROFILER_PERFWORKS_DIR": "/opt/ncu"}, True),
        ({"CUDA_INJECTION64_PATH": ""}, False),
        ({"CUDA_INJECTION64_PATH": "/opt/libinject.so", "OXIDE_LINEINFO": "0"}, False),
    ],
)
def test_the_environment_decides_for_kernels_that_do_not_say(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert kernel(total).description.lineinfo is wanted
    assert kernel(lineinfo=False)(total).description.lineinfo is False
    assert kernel(lineinfo=True)(total).description.lineinfo is True


def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = "yes"
    with pytest.raises(CompileError, match="kernel total: lineinfo is 'yes'; give True, False or None"):
        kernel(lineinfo=wrong)(total)
    with pytest.raises(CompileError, match="kernel plain_add: lineinfo is 'yes'"):
        tile.kernel(lineinfo=wrong)(plain_add.function)
    monkeypatch.setenv("OXIDE_LINEINFO", "yes")
    with pytest.raises(DeviceError, match="OXIDE_LINEINFO='yes': one of 0, 1 is needed"):
        kernel(total)


@pytest.fixture
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_VERIFY", "1")


def test_nvidias_disassembler_shows_the_lines(tmp_path: Path) -> None:
    disassembler = shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin") or _tritons()
    if PTXAS is None or disassembler is None:
        pytest.skip("ptxas or nvdisasm is not installed")
    source, cubin = tmp_path / "total.ptx", tmp_path / "total.cubin"
    source.write_text(kernel(lineinfo=True)(total).ptx(), encoding="utf-8")
    subprocess.run([PTXAS, "-arch=sm_90", "-lineinfo", str(source), "-o", str(cubin)], check=True)
    shown = subprocess.run([disassembler, "-gi", str(cubin)], capture_output=True, text=True, check=True).stdout
    product, inner = line_of(scaled.__wrapped__, "product"), line_of(squared.__wrapped__, "inner call")
    outer = line_of(total, "outer call")
    chain = [f'File "{__file__}", line {product} inlined at "{__file__}", line {inner}']
    chain += [
        f'File "{__file__}", line {inner} inlined at "{__file__}", line {outer}',
        f'File "{__file__}", line {outer}',
    ]
    assert re.search(r"\n".join(rf"\t//## {re.escape(each)}" for each in chain) + r"\n[^\n]*FMUL", shown)


def _tritons() -> str | None:
    try:
        import triton.backends.nvidia as nvidia
    except ImportError:
        return None
    return shutil.which("nvdisasm", path=str(Path(nvidia.__file__ or "").parent / "bin"))
