"""The CPU benchmarks' kernels in warp-lang. Imported only where it is installed."""

import warp as wp

wp.config.quiet = True


@wp.kernel
def sgemm(a: wp.array2d(dtype=float), b: wp.array2d(dtype=float), c: wp.array2d(dtype=float)):  # type: ignore
    row, col = wp.tid()
    acc = float(0.0)  # noqa: UP018 (a plain constant cannot change in a loop of warp)
    for i in range(a.shape[1]):
        acc += a[row, i] * b[i, col]
    c[row, col] = acc


@wp.kernel
def saxpy(alpha: float, x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float)):  # type: ignore
    i = wp.tid()
    out[i] = alpha * x[i] + y[i]
