"""Random tile programs against NumPy: elementwise operations, broadcasts, reductions, movement, order, products, loops
and masks, of mixed types and odd tensor sizes. Two of three run the code of a GPU, thread by thread. Each tensor has
canaries around it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import oxide
from oxide import DeviceBox, bool_, f16, f32, f64, h2d, i8, i16, i32, i64, u8, u16, u32
from oxide.compiler.tile import tile_source as tile_source
from oxide.compiler.tile.lowering import registers

from . import reference

COUNT = int(os.environ.get("OXIDE_TILE_PROGRAMS", "96"))
"""The number of programs; 5,000 are run before a release."""
AROUND = 32
"""The canaries on each side of a tensor."""
TYPES = (f32, f64, f16, i32, i64, i8, i16, u8, u16, u32, bool_)
EXACT = {"add": "+", "sub": "-", "mul": "*"}


class Writer:
    """Writes a kernel statement by statement, and knows the type and the shape of each variable."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.known: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self.names = (f"v{number}" for number in itertools.count())
        self.depth = 1
        self.exact = True

    def say(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def define(self, text: str, dtype: Any, shape: tuple[int, ...]) -> str:
        name = next(self.names)
        self.say(f"{name} = {text}")
        self.known.append((name, np.dtype(dtype), shape))
        return name

    def pick(self, kinds: str = "biuf") -> tuple[str, np.dtype[Any], tuple[int, ...]]:
        found = [each for each in self.known if each[1].kind in kinds]
        return self.random.choice(found or self.known)

    def number(self, dtype: np.dtype[Any]) -> str:
        if dtype.kind == "f":
            return self.random.choice(["0.5", "2", "3.0", "-1.25", "0"])
        return self.random.choice(["1", "2", "3", "7"])

    def statement(self) -> None:
        kind = self.random.choice(
            [
                "binary",
                "binary",
                "scalar",
                "unary",
                "where",
                "reduce",
                "move",
                "cast",
                "compare",
                "divide",
                "shift",
                "cat",
                "loop",
                "cumsum",
                "sort",
                "product",
                "gather",
                "while",
            ]
        )
        getattr(self, f"write_{kind}")()

    def both(self, kinds: str = "iuf") -> tuple[Any, Any, Any, tuple[int, ...]] | None:
        for _ in range(20):
            one, two = self.pick(kinds), self.pick(kinds)
            try:
                shape = np.broadcast_shapes(one[2], two[2])
            except ValueError:
                continue
            result, mixture = np.result_type(one[1], two[1]), {one[1].kind, two[1].kind}
            if "f" not in mixture and result.kind == "f":
                continue  # u64 and a signed integer, which kernels refuse
            if np.float16 in (one[1], two[1]) and result != np.float16 and mixture & {"i", "u"}:
                continue  # a narrow float keeps its type, other than in NumPy
            if one[1].kind in kinds and two[1].kind in kinds and np.prod(shape) <= 4096:
                return one, two, result, shape
        return None

    def write_binary(self) -> None:
        found = self.both()
        if found is not None:
            one, two, dtype, shape = found
            op = self.random.choice(["+", "-", "*"])
            if {one[1].kind, two[1].kind} <= {"i", "u", "f"}:
                self.define(f"{one[0]} {op} {two[0]}", dtype, shape)

    def write_scalar(self) -> None:
        name, dtype, shape = self.pick("iuf")
        if dtype.kind in "iuf":
            op = self.random.choice(["+", "-", "*"])
            self.define(f"{name} {op} {self.number(dtype)}", dtype, shape)

    def write_unary(self) -> None:
        name, dtype, shape = self.pick()
        if dtype.kind == "b":
            self.define(f"~{name}", dtype, shape)
        elif dtype.kind == "f":
            self.define(f"tile.{self.random.choice(['abs', 'floor', 'ceil'])}({name})", dtype, shape)
        else:
            self.define(f"{self.random.choice(['-', '~', ''])}{name}", dtype, shape)

    def write_where(self) -> None:
        found = self.both()
        masks = [each for each in self.known if each[1].kind == "b"]
        if found is not None and masks:
            mask = self.random.choice(masks)
            one, two, dtype, shape = found
            try:
                shape = np.broadcast_shapes(mask[2], shape)
            except ValueError:
                return
            self.define(f"tile.where({mask[0]}, {one[0]}, {two[0]})", dtype, shape)

    def write_compare(self) -> None:
        found = self.both("if")
        if found is not None:
            one, two, _, shape = found
            self.define(f"{one[0]} {self.random.choice(['<', '<=', '>', '>=', '==', '!='])} {two[0]}", bool, shape)

    def write_divide(self) -> None:
        name, dtype, shape = self.pick("iuf")
        if dtype.kind in "iuf":
            op = self.random.choice(["/", "//", "%"])
            kind = np.dtype(np.float64) if op == "/" and dtype.kind in "iu" else dtype
            self.define(f"{name} {op} {self.random.choice(['2', '3', '7'])}", kind, shape)

    def write_shift(self) -> None:
        name, dtype, shape = self.pick("iu")
        if dtype.kind in "iu":
            self.define(
                f"({name} {self.random.choice(['<<', '>>', '&', '|', '^'])} {self.random.choice('123')})", dtype, shape
            )

    def write_reduce(self) -> None:
        name, dtype, shape = self.pick("iuf")
        if not shape or dtype.kind not in "iuf":
            return
        axis = self.random.randrange(len(shape))
        keep = self.random.random() < 0.5
        how = self.random.choice(["max", "min", "sum", "argmax", "argmin"])
        rest = shape[:axis] + shape[axis + 1 :]
        if how in ("argmax", "argmin"):
            self.define(f"{name}.{how}({axis})", np.int64, rest)
            return
        kind = dtype
        if how == "sum":
            if dtype.kind == "f":
                self.exact = False
            else:
                kind = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
        result = (*shape[:axis], 1, *shape[axis + 1 :]) if keep else rest
        self.define(f"tile.{how}({name}, axis={axis}{', keepdims=True' if keep else ''})", kind, result)

    def write_cumsum(self) -> None:
        name, dtype, shape = self.pick("iu")
        if shape and dtype.kind in "iu":
            axis = self.random.randrange(len(shape))
            self.define(f"tile.cumsum({name}, {axis})", np.uint64 if dtype.kind == "u" else np.int64, shape)

    def write_sort(self) -> None:
        name, dtype, shape = self.pick("iuf")
        if shape and dtype.kind in "iuf" and np.prod(shape) <= 512:
            axis = self.random.randrange(len(shape))
            if self.random.random() < 0.5:
                down = self.random.choice(["", ", descending=True"])
                self.define(f"tile.sort({name}, axis={axis}{down})", dtype, shape)
            else:
                k = self.random.randrange(1, shape[axis] + 1)
                result = (*shape[:axis], k, *shape[axis + 1 :])
                kind = self.random.choice([0, 1])
                self.define(f"tile.topk({name}, {k}, axis={axis})[{kind}]", np.int64 if kind else dtype, result)

    def write_product(self) -> None:
        name, dtype, shape = self.pick("iu")
        if len(shape) == 2 and dtype.kind in "iu" and max(shape) <= 32:
            sums = np.dtype(np.int64)
            acc = f"tile.zeros(({shape[0]}, {shape[0]}), i64)"
            self.define(f"tile.mma({name}.astype(i64), {name}.T.astype(i64), {acc})", sums, (shape[0], shape[0]))

    def write_gather(self) -> None:
        name, dtype, shape = self.pick("iu")
        if dtype.kind in "iu":
            self.define(f"tile.gather(table, {name} % 7)", np.float32, shape)

    def write_while(self) -> None:
        if self.depth > 1:
            return
        name, dtype, shape = self.pick("iu")
        if dtype.kind not in "iu":
            return
        pair = next(self.names)
        self.say(f"{pair} = ({name} * 1, n * 1)")
        self.say(f"while {pair}[1] > 0:")
        self.say(f"    {pair} = ({pair}[0] + 2, {pair}[1] - 1)")
        self.define(f"{pair}[0]", dtype, shape)

    def write_move(self) -> None:
        name, dtype, shape = self.pick()
        if not shape:
            return
        how = self.random.choice(["T", "reshape", "flat", "none"])
        if how == "T":
            self.define(f"{name}.T", dtype, shape[::-1])
        elif how == "reshape" and shape[0] % 2 == 0:
            self.define(f"{name}.reshape({shape[0] // 2}, {int(np.prod(shape)) // (shape[0] // 2)})", dtype,
                        (shape[0] // 2, int(np.prod(shape)) // (shape[0] // 2)))  # fmt: skip
        elif how == "flat":
            self.define(f"{name}.reshape(-1)", dtype, (int(np.prod(shape)),))
        elif len(shape) < 3:
            self.define(f"{name}[:, None]", dtype, (shape[0], 1, *shape[1:]))

    def write_cat(self) -> None:
        name, dtype, shape = self.pick()
        if shape and np.prod(shape) <= 512:
            axis = self.random.randrange(len(shape))
            result = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
            self.define(f"tile.cat(({name}, {name}), axis={axis})", dtype, result)

    def write_cast(self) -> None:
        name, dtype, shape = self.pick()
        target = self.random.choice([each for each in TYPES if each is not bool_])
        if dtype.kind == "f" and np.dtype(target).kind in "iu":
            return  # out of range, NumPy's result is undefined
        if dtype.kind == "f" and np.dtype(target).itemsize < dtype.itemsize:
            return  # an overflow is the same, but not its comparison
        self.define(f"{name}.astype({target.name})", target, shape)

    def write_loop(self) -> None:
        if self.depth > 1:
            return
        name, dtype, shape = self.pick("iuf")
        if dtype.kind not in "iuf":
            return
        last = self.define(f"{name} * 2", dtype, shape) if self.random.random() < 0.4 else None
        total = self.define(f"{name} * 1", dtype, shape)
        self.say(f"for k in range({self.random.choice(['3', 'n', '1, n + 2', '4, 0, -1'])}):")
        self.depth += 1
        before = len(self.known)
        if self.random.random() < 0.4:
            self.say(f"if k {self.random.choice(['==', '>', '<'])} {self.random.randrange(4)}:")
            if self.random.random() < 0.5:
                self.say(f"    {total} = {total} + 2")
            self.say(f"    {self.random.choice(['break', 'continue'])}")
        for _ in range(self.random.randrange(3)):
            self.statement()
        usable = [each for each in self.known if each[1] == dtype and each[2] == shape and each[0] != total]
        other = self.random.choice(usable)[0] if usable else total
        new = self.random.choice([f"{other} - {total}", f"{total} + {other}", other])
        way = self.random.choice(["before", "after", "swapped", "in a branch"])
        if last is None:
            self.say(f"{total} = {new}")
        elif way == "before":
            self.say(f"{last} = {total}")
            self.say(f"{total} = {new}")
        elif way == "after":
            self.say(f"old = {total}")
            self.say(f"{total} = {new}")
            self.say(f"{last} = old")
        elif way == "swapped":
            self.say(f"{total}, {last} = {last}, {new}")
        else:
            self.say("if k < 2:")
            self.say(f"    {total}, {last} = {new}, {total}")
            self.say("else:")
            self.say(f"    {last} = {other}")
        if self.random.random() < 0.3:
            self.say("if k > 1:")
            self.say(f"    {total} = {total} + 1")
        self.depth -= 1
        del self.known[before:]


def program(seed: int) -> tuple[str, dict[str, Any]]:
    """Returns the source of a kernel, and its arguments: shapes, types and tile shape."""
    writer = Writer(seed)
    choose = writer.random
    ndim = choose.choice([1, 2, 2, 3])
    sizes = (
        [8, 32, 100, 256] if ndim == 1 else choose.choice([[1, 2, 4, 8], [8, 16, 32]]) if ndim == 2 else [1, 2, 4, 8]
    )
    tiles = tuple(choose.choice(sizes) for _ in range(ndim))
    shape = tuple(choose.choice([1, 3, size, size + 1, 2 * size - 1, 2 * size]) for size in tiles)
    kinds = [choose.choice(TYPES) for _ in range(3)]
    for number, kind in enumerate(kinds):
        padding = choose.choice([0, 1]) if kind is not bool_ else 0
        writer.define(f"tile.load_like(x{number}, z, padding={padding})", kind, tiles)
    writer.define(f"tile.arange({tiles[-1]}, {choose.choice(['i32', 'f32', 'i64'])})", np.int64, (tiles[-1],))
    kind = writer.lines[-1].split()[-1].rstrip(")")
    writer.known[-1] = (writer.known[-1][0], np.dtype(getattr(oxide, kind)), (tiles[-1],))
    for _ in range(choose.randrange(3, 14)):
        writer.statement()
    fitting = []
    for name, dtype, found in writer.known:
        try:
            if np.broadcast_shapes(found, tiles) == tiles:
                fitting.append((name, dtype))
        except ValueError:
            continue
    name, dtype = fitting[-1]
    writer.say(f"z.store({name})")
    scalar = next(each for each in (*TYPES, oxide.u64) if np.dtype(each) == dtype)
    head = ", ".join(f"x{number}: tile.Tensor[{kind.name}, {ndim}]" for number, kind in enumerate(kinds))
    source = "\n".join(
        ["from oxide import *", "from oxide import tile", "", f"@tile.kernel(warps={choose.choice([1, 2, 4])})",
         f"def program(z: tile.Partition[{scalar.name}, {ndim}], {head}, table: tile.Tensor[f32, 1], n: i32):",
         *writer.lines, ""]
    )  # fmt: skip
    return source, {"shape": shape, "tiles": tiles, "kinds": kinds, "dtype": dtype, "exact": writer.exact}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COUNT, 8))
def test_random_programs(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, min(first + 8, COUNT)):
        if os.environ["OXIDE_DEVICE"] == "cpu":
            monkeypatch.setattr(tile_source, "simulated", (0, 80, 90)[seed % 3])
        # Every second program keeps no place of an element: each is a distance from the thread's first.
        monkeypatch.setattr(registers, "_KEPT_PLACES", (32, 0)[seed % 2])
        run_program(seed, tmp_path)


def surrounded(array: NDArray[Any], canary: Any) -> tuple[DeviceBox, DeviceBox]:
    """Returns a box of an array, and the box of the memory that it is in, with canaries on both sides."""
    whole = np.full(array.size + 2 * AROUND, canary).astype(array.dtype)
    whole[AROUND : AROUND + array.size] = array.reshape(-1)
    memory = h2d(whole).sync()
    return memory[AROUND : AROUND + array.size].reshape(array.shape), memory


def run_program(seed: int, tmp_path: Path) -> None:
    source, about = program(seed)
    path = tmp_path / f"program_{seed}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(seed)
    inputs = []
    for kind in about["kinds"]:
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            inputs.append((rng.integers(-40, 40, about["shape"]) / 4).astype(dtype))
        else:
            inputs.append(rng.integers(0, 2 if dtype.kind == "b" else 20, about["shape"]).astype(dtype))
    inputs.append(rng.integers(-40, 40, 7).astype(np.float32) / 4)
    start = np.zeros(about["shape"], about["dtype"])
    boxes = [surrounded(each, 1) for each in (start, *inputs)]
    (box, _), *others = boxes
    module.program(box.partition(about["tiles"]), *[each for each, _ in others], 3).sync()
    for (_, memory), before in zip(boxes, (None, *inputs), strict=True):
        everything = oxide.d2h(memory).sync()
        assert (everything[:AROUND] == everything.dtype.type(1)).all(), source
        assert (everything[-AROUND:] == everything.dtype.type(1)).all(), source
        if before is not None:
            np.testing.assert_array_equal(everything[AROUND:-AROUND], before.reshape(-1), err_msg=source)
    found = oxide.d2h(box).sync()
    expected = start.copy()
    reference.run(
        module.program, reference.Partition(expected, about["tiles"]), *map(reference.Tensor, inputs), np.int32(3)
    )
    if about["exact"] or expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=source)
    else:
        tolerance = 1e-2 if expected.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance * 100, err_msg=source
        )
