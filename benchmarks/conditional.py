"""Conjugate gradients, where the device decides when to stop: a loop on the device beside loops on the host.

The system is the five-point Laplacian on a square of 256 by 256 points, in f64, with a random right-hand side. All
contenders do the same iterations, until the residual is 10⁻⁸ of the right-hand side. On the host, the flag is read back
after each iteration: of an iteration that is submitted anew, and of one that is a graph. torch does both, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

import oxide
from benchmarks.harness import Contender, Session, expect, peer
from oxide import DeviceOperation, DisjointSlice, Slice, d2h, f64, h2d, i32, i64, kernel, memcpy, thread, zeros
from oxide_kernels import dot

WIDTH = 256
TOLERANCE = 1e-8

DEVICE = "oxide, while_loop in a graph"
ALONE = "oxide, while_loop by itself"
ITERATION = "oxide, graph of an iteration"
EAGER = "oxide, iteration by iteration"
TORCH = "torch, iteration by iteration"
TORCH_GRAPH = "torch, graph of an iteration"


@kernel
def laplacian(p: Slice[f64], q: DisjointSlice[f64], width: i64) -> None:
    index = thread.index_1d()
    element = q.get_mut(index)
    if element is not None:
        i = index.get()
        total = 4.0 * p[i]
        if i % width > 0:
            total -= p[i - 1]
        if i % width < width - 1:
            total -= p[i + 1]
        if i >= width:
            total -= p[i - width]
        if i + width < len(p):
            total -= p[i + width]
        element.value = total


@kernel
def advance(
    p: Slice[f64], q: Slice[f64], rr: Slice[f64], pq: Slice[f64], x: DisjointSlice[f64], r: DisjointSlice[f64]
) -> None:
    index = thread.index_1d()
    solution, residual = x.get_mut(index), r.get_mut(index)
    if solution is not None and residual is not None:
        alpha = rr[0] / pq[0]
        solution.value += alpha * p[index.get()]
        residual.value -= alpha * q[index.get()]


@kernel
def turn(r: Slice[f64], rr: Slice[f64], new: Slice[f64], p: DisjointSlice[f64]) -> None:
    index = thread.index_1d()
    direction = p.get_mut(index)
    if direction is not None:
        direction.value = r[index.get()] + new[0] / rr[0] * direction.value


@kernel
def decide(new: Slice[f64], limit: f64, rr: DisjointSlice[f64], going: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    squares, flag = rr.get_mut(index), going.get_mut(index)
    if squares is not None and flag is not None:
        squares.value = new[0]
        flag.value = 1 if new[0] > limit else 0


@final
class System:
    """The boxes of one system, and the operations of its solution. ``going`` is the flag."""

    def __init__(self, b: NDArray[np.float64], width: int, tolerance: float) -> None:
        self.limit = tolerance**2 * float(b @ b)
        self.width = width
        self.b = h2d(b).sync()
        self.x, self.r, self.p, self.q = (zeros(b.size, f64).sync() for _ in range(4))
        self.rr, self.pq, self.new = (zeros(1, f64).sync() for _ in range(3))
        self.going = zeros(1, i32).sync()
        self.nothing = zeros(b.size, f64).sync()

    def beginning(self) -> DeviceOperation[Any]:
        """Returns the operation that begins at x = 0."""
        return oxide.zip(
            memcpy(self.x, self.nothing),
            memcpy(self.r, self.b),
            memcpy(self.p, self.b),
            dot(self.b, self.b, self.new),
            decide[1, 1](self.new, self.limit, self.rr, self.going),
        )

    def iteration(self) -> DeviceOperation[Any]:
        """Returns the operation of one iteration. It ends with the flag."""
        n = oxide.LaunchConfig.for_num_elems(self.x.size)
        return oxide.zip(
            laplacian[n](self.p, self.q, self.width),
            dot(self.p, self.q, self.pq),
            advance[n](self.p, self.q, self.rr, self.pq, self.x, self.r),
            dot(self.r, self.r, self.new),
            turn[n](self.r, self.rr, self.new, self.p),
            decide[1, 1](self.new, self.limit, self.rr, self.going),
        )

    def solution(self) -> DeviceOperation[Any]:
        """Returns the operation that solves the system, its loop on the device."""
        return self.beginning().and_then(lambda _: oxide.while_loop(self.going, self.iteration()))


def solved(b: NDArray[np.float64], width: int, tolerance: float) -> tuple[NDArray[np.float64], int]:
    """Returns NumPy's solution and the number of its iterations."""

    def applied(p: NDArray[np.float64]) -> NDArray[np.float64]:
        grid = np.pad(p.reshape(-1, width), 1)
        around = grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]
        return np.asarray(4.0 * p - around.reshape(-1), np.float64)

    x, r, p = np.zeros_like(b), b.copy(), b.copy()
    rr, count = float(r @ r), 0
    limit = tolerance**2 * rr
    while rr > limit:
        q = applied(p)
        alpha = rr / float(p @ q)
        x += alpha * p
        r -= alpha * q
        new = float(r @ r)
        p = r + new / rr * p
        rr, count = new, count + 1
    return x, count


def run(session: Session) -> None:
    """Measures the group."""
    width = session.choose(WIDTH, 16)
    bench = _Solvers(width)
    contenders: dict[str, Callable[[], Contender]] = {
        DEVICE: bench.device,
        ALONE: bench.alone,
        ITERATION: bench.graph_of_an_iteration,
        EAGER: bench.eager,
        TORCH: lambda: bench.torch(session, captured=False),
        TORCH_GRAPH: lambda: bench.torch(session, captured=True),
    }
    title = f"conjugate gradients, {width}² points, {bench.iterations} iterations"
    compared = session.compare(title, contenders, unit="iterations/s", better="more", turns=session.choose(20, 2))
    session.claim("loop on the device / flag read back, same graph", compared.ratio(DEVICE, ITERATION), "at least", 1.0)
    session.claim("loop on the device / iteration submitted anew", compared.ratio(DEVICE, EAGER), "at least", 2.0)
    session.claim("loop on the device / torch's loop", compared.ratio(DEVICE, TORCH), "at least", 2.0)


@final
class _Solvers:
    """A right-hand side, its solution, and one method for each contender."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.b = np.random.default_rng().standard_normal(width * width)
        self.expected, self.iterations = solved(self.b, width, TOLERANCE)

    def contender(self, solve: Callable[[], object], x: Callable[[], Any]) -> Contender:
        """A contender whose ``solve()`` returns when the system is solved."""

        def sample() -> list[float]:
            begun = time.perf_counter()
            solve()
            return [self.iterations / (time.perf_counter() - begun)]

        def check() -> None:
            solve()
            expect(x(), self.expected, relative=1e-6)

        return Contender(sample, check)

    def system(self) -> System:
        return System(self.b, self.width, TOLERANCE)

    def device(self) -> Contender:
        system = self.system()
        graph = system.solution().graph()
        return self.contender(lambda: graph.launch().sync(), lambda: d2h(system.x).sync())

    def alone(self) -> Contender:
        system = self.system()
        solution = system.solution()
        return self.contender(solution.sync, lambda: d2h(system.x).sync())

    def graph_of_an_iteration(self) -> Contender:
        system = self.system()
        beginning, iteration = system.beginning(), system.iteration().and_then(lambda _: d2h(system.going)).graph()
        iteration.launch().sync()
        going = iteration.take_output()

        def solve() -> None:
            beginning.sync()
            while True:
                iteration.launch().sync()
                if not going[0]:
                    return

        return self.contender(solve, lambda: d2h(system.x).sync())

    def eager(self) -> Contender:
        system = self.system()
        beginning, iteration = system.beginning(), system.iteration().and_then(lambda _: d2h(system.going))

        def solve() -> None:
            beginning.sync()
            while iteration.sync()[0]:
                pass

        return self.contender(solve, lambda: d2h(system.x).sync())

    def torch(self, session: Session, *, captured: bool) -> Contender:
        session.require_gpu()
        torch = peer("torch")
        width, limit = self.width, TOLERANCE**2 * float(self.b @ self.b)
        b = torch.from_numpy(self.b).cuda()
        x, r, p, rr = torch.zeros_like(b), b.clone(), b.clone(), b @ b
        going = torch.ones((), dtype=torch.int32, device="cuda")
        # The operator as a convolution of the device's own library would be slower than these five sums.
        padded = torch.zeros((width + 2, width + 2), dtype=b.dtype, device="cuda")

        def begin() -> None:
            x.zero_()
            r.copy_(b)
            p.copy_(b)
            rr.copy_(b @ b)

        def iterate() -> None:
            padded[1:-1, 1:-1] = p.view(width, width)
            around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
            q = 4.0 * p - around.reshape(-1)
            alpha = rr / (p @ q)
            x.add_(alpha * p)
            r.sub_(alpha * q)
            new = r @ r
            p.mul_(new / rr).add_(r)
            rr.copy_(new)
            going.copy_(new > limit)

        advance_once: Callable[[], object] = iterate
        if captured:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                iterate()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                iterate()
            advance_once = graph.replay

        def solve() -> None:
            begin()
            while True:
                advance_once()
                if not going.item():
                    return

        return self.contender(solve, lambda: x.cpu().numpy())
