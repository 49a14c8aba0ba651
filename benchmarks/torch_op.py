"""Measures the host's time for a call of an operator: ``oxide.torch.op`` beside ``torch.library.custom_op``.

``python -m benchmarks.torch_op [--json FILE]`` prints microseconds for each call, the best of several rounds in which
the operators take turns. A round submits many calls and then waits for the device, outside of what is timed. The work
is ``x * s`` on 1,024 floats, so that the device is never what a call waits for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oxide
from oxide import DeviceBox, DeviceOperation, DisjointSlice, Slice, empty, f32, kernel, thread

SIZE = 1024


@kernel(block=128)
def scale(x: Slice[f32], s: f32, y: DisjointSlice[f32]) -> None:
    """Computes ``y = x * s``."""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * s


def scaled(x: DeviceBox, s: float) -> DeviceOperation[DeviceBox]:
    """Returns the operation that yields ``x * s``."""
    return scale(x, s, empty(x.shape, f32)).last()


def operators() -> dict[str, Callable[[Any, float], Any]]:
    """Returns the operators by name."""
    torch = importlib.import_module("torch")

    def body(x: Any, s: float) -> Any:
        return x * s

    body.__annotations__ = {"x": torch.Tensor, "s": float, "return": torch.Tensor}
    own = torch.library.custom_op("oxide_benchmark::torch_scale", body, mutates_args=())
    own.register_fake(lambda x, s: torch.empty_like(x))
    own.register_autograd(
        lambda ctx, grad: (grad * ctx.s, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "s", inputs[1])
    )
    return {
        "torch": body,
        "torch.library.custom_op": own,
        "kernel": oxide.torch.op("oxide_benchmark::scale", scale),
        "function": oxide.torch.op("oxide_benchmark::scaled", scaled, outputs=lambda x, s: torch.empty_like(x)),
    }


def measure(calls: int = 2000, rounds: int = 15) -> dict[str, float]:
    """Returns the microseconds of a call by operator: the median of the rounds. Raises ``RuntimeError`` for a wrong
    result."""
    torch = importlib.import_module("torch")
    on_gpu = oxide.devices()[0].kind == "cuda"
    x = torch.randn(SIZE, device="cuda" if on_gpu else "cpu")
    contenders = operators()
    for name, operator in contenders.items():
        if not torch.equal(operator(x, 2.0), x * 2.0):
            raise RuntimeError(f"{name} computed something wrong")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, operator in contenders.items():
            if on_gpu:
                torch.cuda.synchronize()
            # Fewer calls than the device's queue holds, so that no call waits for room in it.
            spent = 0.0
            for _ in range(calls // 200):
                begun = time.perf_counter()
                for _ in range(200):
                    operator(x, 2.0)
                spent += time.perf_counter() - begun
                if on_gpu:
                    torch.cuda.synchronize()
            if number:  # the first round warms up
                times[name].append(spent / (calls // 200 * 200) * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Prints the figures and writes them to a file if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="the file to write the figures to")
    options = parser.parse_args()
    figures = measure()
    own = figures["torch.library.custom_op"]
    for name, microseconds in figures.items():
        print(f"{name:24} {microseconds:7.2f} µs   {microseconds - own:+7.2f}")
    if options.json:
        device = oxide.devices()[0]
        about = {
            "device": device.name,
            "torch": importlib.import_module("torch").__version__,
            "python": platform.python_version(),
            "unit": "µs for each call, on the host",
        }
        options.json.write_text(json.dumps({**about, "figures": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
