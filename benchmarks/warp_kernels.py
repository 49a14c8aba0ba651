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


@wp.kernel
def softmax(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):  # type: ignore
    row = wp.tid()
    greatest = x[row, 0]
    for j in range(x.shape[1]):
        greatest = wp.max(greatest, x[row, j])
    total = float(0.0)  # noqa: UP018
    for j in range(x.shape[1]):
        power = wp.exp(x[row, j] - greatest)
        out[row, j] = power
        total += power
    for j in range(x.shape[1]):
        out[row, j] = out[row, j] / total
