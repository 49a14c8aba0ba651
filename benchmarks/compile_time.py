"""What a cold compilation takes of the processor, by depth of nested loops and by number of statements: the front end
with the checks' placement, machine code for the CPU, PTX, and ``Kernel.checks()``.

Each kernel is compiled in a process of its own, without a cache, after a small kernel that brings the compiler. Writes
``benchmarks/results/compile-time.json``.

    python -m benchmarks.compile_time
    python -m benchmarks.compile_time --limit 20 --only nested:8 sums:800
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from time import process_time

RESULTS = Path(__file__).parent / "results"
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
STATEMENTS = (50, 100, 200, 400, 800)
STEPS = ("to IR", "CPU", "PTX", "checks()")

_HEAD = """from oxide import AtomicSlice, DisjointSlice, Slice, f32, i64, kernel, thread, u32

@kernel
def small(x: Slice[f32], out: DisjointSlice[f32]):
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[thread.index_1d().get()]

@kernel
def measured(n: u32, x: Slice[f32], where: Slice[i64], counts: AtomicSlice[u32], out: DisjointSlice[f32]):
    index = thread.index_1d()
    j = index.get()
    element = out.get_mut(index)
    if element is not None:
"""


def nested(depth: int) -> list[str]:
    """The sum of ``x[i0 + i1 + …]`` in nested loops."""
    names = [f"i{level}" for level in range(depth)]
    loops = [f"{'    ' * level}for {name} in range(n):" for level, name in enumerate(names)]
    body = f"{'    ' * depth}total += x[{' + '.join(names)}]"
    return ["total = f32(0)", *loops, body, "element.value = total"]


def branches(count: int) -> list[str]:
    """So many times ``if x[j] > 0: out[i] += x[j]``, each with an element of its own."""
    lines = []
    for number in range(count):
        lines += [f"if x[j + {number}] > f32(0):", f"    element.value += x[j + {number}]"]
    return lines


def sums(count: int) -> list[str]:
    """So many terms of a sum, each checked."""
    return [
        "total = f32(0)",
        *(f"total += x[where[{number}]]" for number in range(count)),
        "element.value = total",
    ]


def atomics(count: int) -> list[str]:
    """So many atomic additions, each checked."""
    return [f"counts.fetch_add(j + {number}, u32({number}))" for number in range(count)]


def conditionals(count: int) -> list[str]:
    """So many conditional expressions that read one of two elements, each checked."""
    terms = (f"total += x[j] if total > {number} else x[j + 1]" for number in range(count))
    return ["total = f32(0)", *terms, "element.value = total"]


def offsets(count: int) -> list[str]:
    """So many terms of a sum at different distances from one index, each checked."""
    return ["total = f32(0)", *(f"total += x[j + {number}]" for number in range(count)), "element.value = total"]


KINDS = {
    "nested": nested,
    "branches": branches,
    "sums": sums,
    "atomics": atomics,
    "conditionals": conditionals,
    "offsets": offsets,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one kernel (%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="KIND:SIZE", help="some kernels, as nested:8")
    parser.add_argument("--one", metavar="KIND:SIZE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(_measure(options.one)))
        return
    sizes = {kind: DEPTHS if kind == "nested" else STATEMENTS for kind in KINDS}
    names = options.only or [f"{kind}:{size}" for kind, each in sizes.items() for size in each]
    print(f"{'seconds':>16}" + "".join(f"{step:>10}" for step in STEPS))
    seconds: dict[str, dict[str, float] | str] = {}
    for name in names:
        found = seconds[name] = _in_a_process(name, options.limit)
        shown = f"    {found}" if isinstance(found, str) else "".join(f"{found[step]:10.2f}" for step in STEPS)
        print(f"{name:>16}{shown}", flush=True)
    if not options.only:
        record = {"python": platform.python_version(), "llvmlite": version("llvmlite"), "seconds": seconds}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "compile-time.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _in_a_process(name: str, limit: float) -> dict[str, float] | str:
    """What each step took, or why that is not known."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", name]
    environment = {**os.environ, "OXIDE_CACHE": "0"}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"over {limit:g}"
    if ended.returncode:
        return (ended.stderr.strip().split("\n") or [""])[-1][:100] or f"ended with {ended.returncode}"
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def _measure(name: str) -> dict[str, float]:
    from oxide.compiler.ir.llvm import host_target

    kind, _, size = name.partition(":")
    body = "\n".join(f"        {line}" for line in KINDS[kind](int(size)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "compile_time_kernels.py"
        path.write_text(_HEAD + body + "\n", encoding="utf-8")
        spec = importlib.util.spec_from_file_location("compile_time_kernels", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        small = module.small.specialize()
        small.code(host_target())
        small.ptx()
        times = [process_time()]
        special = module.measured.specialize()
        times.append(process_time())
        special.code(host_target())
        times.append(process_time())
        special.ptx()
        times.append(process_time())
        special.checks()
        times.append(process_time())
    return {step: round(times[number + 1] - times[number], 3) for number, step in enumerate(STEPS)}


if __name__ == "__main__":
    main()
