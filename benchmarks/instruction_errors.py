"""The errors of tensor cores: each instruction's largest error for random inputs, as a multiple of k times the unit
roundoff of the accumulator times the sizes of the products, beside the bound that the book states.

    python -m benchmarks.instruction_errors                 a table, and benchmarks/results/instruction-errors-….json
    python -m benchmarks.instruction_errors --quick         small sizes
    python -m benchmarks.instruction_errors --only wgmma    the products of warpgroups, or of warps: mma
    OXIDE_DEVICE=cpu python -m benchmarks.instruction_errors --quick

An element c of k products has the error ``|c - exact| / (k * u * sum(|a| * |b|))``, where the exact sum is in float64,
or in the longer type of the processor for f64, of the operands as the instruction reads them, and u is 2**-24 for an
accumulator of f32, 2**-11 for f16 and 2**-53 for f64. Integers are exact modulo 2**32. Exits with 1 if an error is
beyond its bound. The file is written after each instruction, so a run that is cut off leaves what it has measured;
instructions that a run does not measure stay in the file. Kernels are compiled in threads, ahead of their turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import oxide
from oxide import (
    DisjointSlice3,
    Kernel,
    LaunchConfig,
    Slice3,
    bf16,
    d2h,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i32,
    kernel,
    tensor,
    thread,
    u8,
    unroll,
    zeros,
)

RESULTS = Path(__file__).parent / "results"
DEPTHS = {f16: 16, bf16: 16, f32: 8, f64: 4, i8: 32, u8: 32, f8e4m3: 32, f8e5m2: 32}
"""The extent of one instruction along k, by the type of the operands."""
UNITS = {f32: 2.0**-24, f16: 2.0**-11, f64: 2.0**-53, i32: 1.0}
"""The unit roundoff of each accumulator."""


@dataclass(frozen=True)
class Instruction:
    """``mma`` of one warp, or ``wgmma`` of four, for types of operands and of the accumulator."""

    name: str
    a: Any
    b: Any
    c: Any

    def __str__(self) -> str:
        return f"{self.name} {self.a} {self.b} {self.c}"

    @property
    def bound(self) -> float:
        """The bound that the book states, as a multiple of k times the unit roundoff times the sizes."""
        if self.c is i32:
            return 0.0
        if self.a in (f8e4m3, f8e5m2):
            return 2.0**-13 / UNITS[f32]
        # An f16 accumulator is rounded once more for each tile of k.
        return 2.0 if self.c is not f16 else 2.0 * 2.0**-24 / UNITS[f16] + 1 / DEPTHS[f16]


def _instructions() -> Iterator[Instruction]:
    kinds = [(f16, f16, f32), (f16, f16, f16), (bf16, bf16, f32), (f32, f32, f32), (f64, f64, f64)]
    kinds += [(i8, i8, i32), (u8, u8, i32), (i8, u8, i32), (u8, i8, i32)]
    kinds += [(a, b, f32) for a in (f8e4m3, f8e5m2) for b in (f8e4m3, f8e5m2)]
    for a, b, c in kinds:
        yield Instruction("mma", a, b, c)
        if a is not f64 and c is not f16:
            yield Instruction("wgmma", a, b, c)


INSTRUCTIONS = {str(each): each for each in _instructions()}


def of_a_warp(a_type: Any, b_type: Any, c_type: Any) -> Kernel:
    """Returns a kernel in which each block's warp multiplies one pair of matrices of a stack."""
    rows, depth = 8 if a_type is f64 else 16, DEPTHS[a_type]

    @kernel
    def multiply(a: Slice3[a_type], b: Slice3[b_type], c: DisjointSlice3[c_type]) -> None:  # type: ignore[valid-type]
        left = tensor.FragmentA((rows, depth), a_type)
        right = tensor.FragmentB((depth, 8), b_type)
        total = tensor.Accumulator((rows, 8), c_type)
        number = thread.block_idx.x
        for k in range(0, a.shape[2], depth):
            tensor.load(left, a, (number, 0, k))
            tensor.load(right, b, (number, 0, k), True)
            tensor.mma(total, left, right)
        tensor.store(c.scatter, (number, 0, 0), total)

    return multiply


def of_a_warpgroup(a_type: Any, b_type: Any, c_type: Any) -> Kernel:
    """Returns a kernel in which each block's warpgroup multiplies one pair of matrices of a stack."""
    width = 4 * DEPTHS[a_type]

    @kernel(block=128)
    def multiply(a: Slice3[a_type], b: Slice3[b_type], c: DisjointSlice3[c_type]) -> None:  # type: ignore[valid-type]
        left = tensor.SharedTiles(1, (64, width), a_type)
        right = tensor.SharedTiles(1, (8, width), b_type)
        total = tensor.Accumulator((16, 8), c_type)
        full = tensor.Barrier(1, 1)
        number, t = thread.block_idx.x, thread.thread_idx.x
        for step in range(a.shape[2] // width):
            if t == 0:
                full.expect(0, (64 + 8) * 128)
                tensor.load_tile(left, 0, a, (number, 0, step * width), full, 0)
                tensor.load_tile(right, 0, b, (number, 0, step * width), full, 0)
            full.wait(0, step)
            tensor.wgmma(total, left, (0, 0), right, 0)
            tensor.wait_wgmma(total)
            thread.sync_threads()
        for i in unroll(range(4)):
            c.scatter[number, t // 32 * 16 + total.row(i), total.column(i)] = total[i]

    return multiply


@functools.cache
def kernel_of(instruction: Instruction) -> Kernel:
    """Returns the kernel of an instruction."""
    made = of_a_warpgroup if instruction.name == "wgmma" else of_a_warp
    return made(instruction.a, instruction.b, instruction.c)


def inputs(kind: str, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Any:
    """Returns random numbers of a type: normal ones, ones of very different sizes, or positive ones, whose sums grow
    with k."""
    if dtype in (i8, u8):
        low, high = (-128, 128) if dtype is i8 else (0, 256)
        return rng.integers(low, high, shape).astype(dtype.dtype)
    if kind == "positive":
        numbers = rng.random(shape)
    else:
        numbers = rng.standard_normal(shape)
    if kind == "wide":
        numbers *= 2.0 ** rng.integers(-8, 3, shape)  # sums that f16 holds
    return numbers.astype(dtype.dtype)


def as_read(operand: Any, dtype: Any) -> Any:
    """Returns an operand as the instruction reads it, of f32 the upper 19 bits, in a type that has more digits."""
    if dtype is f32:
        operand = (operand.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return operand.astype(np.longdouble if dtype is f64 else np.float64)


def error_of(instruction: Instruction, kind: str, count: int, k: int, seed: int = 0) -> float:
    """Returns the largest error of ``count`` products of k terms an element, as a multiple of k times the unit roundoff
    times the sizes; for integers the number of wrong elements."""
    rng = np.random.default_rng(seed)
    whole = instruction.name == "wgmma"
    rows = 64 if whole else 8 if instruction.a is f64 else 16
    a = inputs(kind, (count, rows, k), instruction.a, rng)
    b = inputs(kind, (count, 8, k), instruction.b, rng)
    launch = kernel_of(instruction)[LaunchConfig(count, 128 if whole else 32)]
    c = launch(h2d(a), h2d(b), zeros((count, rows, 8), instruction.c)).last().and_then(d2h).sync()
    left, right = as_read(a, instruction.a), as_read(b, instruction.b).transpose(0, 2, 1)
    exact = left @ right
    if instruction.c is i32:
        return float(np.count_nonzero(c != exact.astype(np.int64).astype(np.int32)))
    sizes = np.abs(left) @ np.abs(right)
    return float((np.abs(c.astype(exact.dtype) - exact) / (k * UNITS[instruction.c] * sizes)).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", choices=("mma", "wgmma"))
    parser.add_argument("names", nargs="*", help="instructions, such as 'mma bf16 bf16 f32'; all if none is given")
    options = parser.parse_args()
    # The numbers of products and their terms. NumPy's sums in float64, and longer, are most of the time.
    sizes = ((2, 128),) if options.quick else ((256, 128), (64, 512), (16, 4096))
    device = oxide.devices()[0]
    path = RESULTS / f"instruction-errors-{device.kind}.json"
    names = [name for name in options.names or INSTRUCTIONS if options.only in (None, INSTRUCTIONS[name].name)]
    products = {str(k): count for count, k in sizes}
    record: dict[str, Any] = {"device": device.name, "oxide": version("oxide-gpu"), "products": products}
    rows = {} if options.quick else _measured_before(path, record)
    beyond = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = {name: pool.submit(_compile, INSTRUCTIONS[name]) for name in names}
        for name in names:
            instruction = INSTRUCTIONS[name]
            kinds = ("normal",) if instruction.c is i32 else ("normal", "wide", "positive")
            try:
                compiled[name].result()
                errors = {f"{kind} {k}": error_of(instruction, kind, count, k) for kind in kinds for count, k in sizes}
            except oxide.CompileError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            worst = max(errors.values())
            beyond |= worst > instruction.bound
            rows[name] = {"instruction": name, "largest": worst, "bound": instruction.bound, "errors": errors}
            print(f"{name:24} {worst:10.4g} of {instruction.bound:10.4g}", file=sys.stderr, flush=True)
            if not options.quick:
                text = json.dumps({**record, "rows": list(rows.values())}, indent=1)
                path.write_text(text + "\n", encoding="utf-8")
    print(json.dumps({**record, "rows": list(rows.values())}, indent=1))
    return int(beyond)


def _compile(instruction: Instruction) -> None:
    """Compiles the kernel of an instruction by a launch of one product."""
    error_of(instruction, "normal", 1, 4 * DEPTHS[instruction.a])


def _measured_before(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of an earlier run of the same device, version and sizes, by instruction."""
    if not path.exists():
        return {}
    before = json.loads(path.read_text(encoding="utf-8"))
    rows = before.pop("rows")
    return {row["instruction"]: row for row in rows} if before == record else {}


if __name__ == "__main__":
    sys.exit(main())
