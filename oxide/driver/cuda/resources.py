"""Reads the GPU resources of a loaded kernel from the driver, and its spills from the assembler's log."""

from __future__ import annotations

import re
import time
from functools import partial

from cuda.bindings import driver

from oxide.driver.base import Code, KernelResources
from oxide.driver.cuda.attributes import device_attribute
from oxide.driver.cuda.errors import check
from oxide.driver.cuda.ptx_modules import CudaFunction

_WARP = 32
_LOG_BYTES = 16384
_MUCH_LOCAL = 16384  # bytes of local memory; a launch with less failed for another reason
_SPILLS = re.compile(r"(\d+) bytes spill stores")


def resources_of(
    function: CudaFunction, code: Code, threads: int, shared_bytes: int, whole_shared: int
) -> KernelResources:
    """Returns the resources of a kernel loaded from ``code``, for launches that ask for ``shared_bytes`` and take
    ``whole_shared`` bytes of dynamic shared memory. The kernel's context must be current."""

    def attribute(name: str) -> int:
        return _attribute(function, name)

    most = attribute("MAX_THREADS_PER_BLOCK")
    blocks = 0
    if threads <= most:
        error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.handle, threads, whole_shared)
        check(error, f"cuOccupancyMaxActiveBlocksPerMultiprocessor({function.entry}, {threads}, {whole_shared})")
    resident = device_attribute(function.device, "MAX_THREADS_PER_MULTIPROCESSOR")
    local = attribute("LOCAL_SIZE_BYTES")
    return KernelResources(
        registers=attribute("NUM_REGS"),
        local_bytes=local,
        spill_bytes=_spilled(code) if local else 0,
        shared_bytes=attribute("SHARED_SIZE_BYTES") + function.array_bytes,
        constant_bytes=attribute("CONST_SIZE_BYTES"),
        max_threads_per_block=most,
        block=threads,
        dynamic_shared_bytes=shared_bytes,
        blocks_per_multiprocessor=int(blocks),
        occupancy=blocks * -(-threads // _WARP) / (int(resident) // _WARP),
    )


def _spilled(code: Code) -> int | None:
    """Returns the spilled bytes per thread, None if unknown. Assembles the PTX once more to get the assembler's log."""
    log = bytearray(_LOG_BYTES)
    options = driver.CUjit_option
    error, state = driver.cuLinkCreate(
        3,
        [options.CU_JIT_INFO_LOG_BUFFER, options.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, options.CU_JIT_LOG_VERBOSE],
        [log, _LOG_BYTES, 1],
    )
    check(error, "cuLinkCreate")
    try:
        # The driver caches code by its text, without the log. A new text each time makes the driver assemble again.
        text = code.image.rstrip(b"\0") + f"\n// {time.time_ns()}\n\0".encode()
        kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
        (error,) = driver.cuLinkAddData(state, kind, text, len(text), code.entry.encode(), 0, [], [])
        check(error, f"cuLinkAddData({code.entry})")
        error, _, _ = driver.cuLinkComplete(state)
        check(error, f"cuLinkComplete({code.entry})")
    finally:
        check(driver.cuLinkDestroy(state)[0], "cuLinkDestroy")
    return spill_bytes(log.split(b"\0", 1)[0].decode(errors="replace"))


def spill_bytes(log: str) -> int | None:
    """Returns the spilled bytes per thread in an assembler's log; None if the log does not have them."""
    found = _SPILLS.findall(log)
    return sum(map(int, found)) if found else None


def launch_detail(function: CudaFunction, code: int) -> str:
    """Returns an explanation of the driver's refusal of a launch with ``code``, if the likely reason is the kernel's
    local memory: 16 KiB or more for each thread. Otherwise returns an empty string."""
    if int(code) not in (int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY), int(driver.CUresult.CUDA_ERROR_INVALID_VALUE)):
        return ""
    local = _attribute(function, "LOCAL_SIZE_BYTES")
    if local < _MUCH_LOCAL:
        return ""
    of_device = partial(device_attribute, function.device)
    threads = of_device("MAX_THREADS_PER_MULTIPROCESSOR") * of_device("MULTIPROCESSOR_COUNT")
    return (
        f"a thread takes {local} bytes of local memory, and the driver sets that aside for all {threads} threads that "
        f"the GPU has room for, {threads * local} bytes; make the kernel's LocalArrays smaller"
    )


def _attribute(function: CudaFunction, name: str) -> int:
    kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    error, value = driver.cuFuncGetAttribute(kind, function.handle)
    check(error, f"cuFuncGetAttribute({function.entry}, {name})")
    return int(value)
