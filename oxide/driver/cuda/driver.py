"""The CUDA devices behind the Driver protocol.

Calls go through these interfaces, chosen by measurements on an H100 (``benchmarks/driver_cuda.py`` and its results).
Times are in µs.

- Streams and events are cuda.core's. The short calls about them, and launches, are made by the core
  (``_core/launching.c``): a query of a finished kernel takes 1.35 in the driver itself, and 2.5 when Python makes the
  call; a launch takes 1.4 more through ``cuda.bindings``, and cuda.core takes Python values, not the packed structure
  that the compiler defines.
- Memory, copies and fills are ``cuda.bindings``: cuda.core's buffers own their memory, but the runtime itself decides
  when memory is freed. ctypes calls of the driver's functions, with integers instead of the bindings' objects, were
  slower (2.6 against 2.2 for a copy, 2.3 against 1.5 for a fill). A call from C made a copy a tenth faster (3.0 against
  3.3, on a busier machine) and a fill no faster. This did not justify a second implementation.
- Host functions are ctypes, for the reason in ``launches.py``.

Other libraries in the process (torch, CuPy, numba) share the devices' primary contexts, and may at any moment make any
context, or none, current on a thread. A call with a stream or an event finds its context through the stream or the
event, whatever context is current (the tests take the context away between any two calls). Other calls first make their
context current, which costs 0.3, and leave it current.

Importing this module takes about 0.3 s. Check with ``oxide.driver.cuda.probe`` first whether there is a device.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import final

import cuda.core as core
from cuda.bindings import driver

from oxide.driver.base import (
    Clock,
    Code,
    ConditionalKind,
    DeviceInfo,
    Dim3,
    KernelResources,
    Own,
    Ranges,
    StreamPriority,
)
from oxide.driver.cuda.clock import new_clock
from oxide.driver.cuda.contexts import (
    CudaContext,
    CudaEvent,
    CudaStream,
    driver_version,
    memory_info,
    open_context,
    open_peer_access,
    ptx_target,
    shown_version,
    stream_options,
)
from oxide.driver.cuda.errors import check, failure, raise_core_failure
from oxide.driver.cuda.graph import (
    CaptureParts,
    CudaGraphExec,
    OpenConditional,
    abandon_capture,
    add_node,
    begin_body,
    capture_state,
    continue_after,
    end_body,
    instantiate,
    load_setter,
    new_handle,
    setter_params,
    unsupported,
)
from oxide.driver.cuda.kernels import BLOCK, ONE, fill_grid, fill_params, report_params
from oxide.driver.cuda.launches import HostFunctions, launch_cooperative, launch_dependent, persistent_sizes
from oxide.driver.cuda.memory_blocks import LARGE_BYTES, LARGEST, RegisteredMemory, SpareBlocks
from oxide.driver.cuda.modules import (
    CudaFunction,
    ForeignFunctions,
    launch_detail,
    load_foreign,
    load_functions,
    resources_of,
    unload,
    whole_shared,
)
from oxide.driver.cuda.probe import libcuda, unavailable_reason
from oxide.errors import DeviceError, OutOfMemoryError
from oxide.host.core import Calls, launch
from oxide.host.locks import new_lock, unheld

_INVALID_VALUE = driver.CUresult.CUDA_ERROR_INVALID_VALUE
_UNJOINED = driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
_OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY

_TIMING = core.EventOptions(timing_enabled=True)
_NO_TIMING = core.EventOptions(timing_enabled=False)


@final
class CudaDriver(Calls):
    """The driver of all CUDA devices of the machine. Raises ``DeviceError`` if there is no CUDA device."""

    name = "cuda"
    graphs = peers = sharing = timing = Own()
    runs = None  # work in a CUDA stream cannot be withdrawn
    sanitizer = None

    def __init__(self) -> None:
        reason = unavailable_reason()
        if reason is not None:
            raise DeviceError(f"a CUDA device was asked for, but there is no CUDA device: {reason}")
        check(driver.cuInit(0)[0], "cuInit")
        error, count = driver.cuDeviceGetCount()
        check(error, "cuDeviceGetCount")
        self._contexts: list[CudaContext | None] = [None] * count
        # True once two contexts are open. Without peer access, a copy or fill of a pool's memory then needs the context
        # of its stream to be the thread's current one. Other libraries, such as NCCL, leave other contexts current.
        self._several = False
        self._contexts_lock = new_lock()
        self._default_streams: dict[tuple[int, int], CudaStream] = {}  # CUDA's own, by device and number
        self._peers: set[tuple[int, int]] = set()  # pairs whose peer access was granted or refused
        self._captures: dict[int, CaptureParts] = {}  # captures with several parts, by the address of their stream
        self._conditionals: dict[int, OpenConditional] = {}  # those not ended, by the address of their stream
        self._small_blocks: dict[int, int] = {}  # sizes of live small blocks, by address
        self._host_functions = HostFunctions()
        self._registered = RegisteredMemory()
        self._launch_kernel = _entry("cuLaunchKernel")
        self._launch_graph = _entry("cuGraphLaunch")
        self._stream_query = _entry("cuStreamQuery")
        self._event_query = _entry("cuEventQuery")
        self._event_record = _entry("cuEventRecord")
        self._event_synchronize = _entry("cuEventSynchronize")
        self._launch_host_function = libcuda().cuLaunchHostFunc
        self._launch_host_function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._has_clock = False
        self._closed = False
        # One of our host functions would crash the process if it ran after the interpreter has ended.
        atexit.register(self.close)

    # Devices

    def device_count(self) -> int:
        return len(self._contexts)

    def device_info(self, device: int) -> DeviceInfo:
        self._check_device(device)
        found = core.Device(device)
        properties = found.properties
        version = driver_version()
        error, memory = driver.cuDeviceTotalMem(device)
        check(error, "cuDeviceTotalMem")
        return DeviceInfo(
            name=found.name,
            target=ptx_target(properties.compute_capability_major, properties.compute_capability_minor, version),
            multiprocessors=properties.multiprocessor_count,
            memory=memory,
            max_threads_per_block=properties.max_threads_per_block,
            max_block=(properties.max_block_dim_x, properties.max_block_dim_y, properties.max_block_dim_z),
            max_grid=(properties.max_grid_dim_x, properties.max_grid_dim_y, properties.max_grid_dim_z),
            version=shown_version(version),
        )

    # Streams

    def create_stream(self, device: int, priority: StreamPriority = "normal") -> CudaStream:
        context = self._context(device)
        _enter(context)
        options = stream_options(priority)
        try:
            found = core.Device(device)
            found.set_current()
            stream = CudaStream(device, context, found.create_stream(options=options))
        except Exception as error:
            raise_core_failure(error, "cuStreamCreate")
        stream.spare = SpareBlocks()
        context.streams[stream.address] = stream
        return stream

    def destroy_stream(self, stream: CudaStream) -> None:
        stream.context.streams.pop(stream.address, None)
        _give_back(stream)
        try:
            stream.core.close()
        except Exception as error:
            raise_core_failure(error, "cuStreamDestroy")

    def synchronize_stream(self, stream: CudaStream) -> None:
        _give_back(stream)  # a caller that waits for a whole stream may then measure the allocated memory
        try:
            stream.core.sync()
        except Exception as error:
            raise_core_failure(error, "cuStreamSynchronize")

    def stream_address(self, stream: CudaStream) -> int:
        return stream.address

    # Events

    def create_event(self, device: int, *, timing: bool) -> CudaEvent:
        self._context(device)
        try:
            found = core.Device(device)
            found.set_current()
            return CudaEvent(device, found.create_event(_TIMING if timing else _NO_TIMING))
        except Exception as error:
            raise_core_failure(error, "cuEventCreate")

    def destroy_event(self, event: CudaEvent) -> None:
        try:
            event.core.close()
        except Exception as error:
            raise_core_failure(error, "cuEventDestroy")

    def wait_event(self, stream: CudaStream, event: CudaEvent) -> None:
        try:
            stream.core.wait(event.core)
        except Exception as error:
            raise_core_failure(error, "cuStreamWaitEvent")

    def elapsed_ms(self, start: CudaEvent, end: CudaEvent) -> float:
        try:
            return float(end.core - start.core)
        except Exception:  # cuda.core does not tell the error code, so the driver is asked again
            error, milliseconds = driver.cuEventElapsedTime(start.core.handle, end.core.handle)
        check(error, "cuEventElapsedTime")
        return float(milliseconds)

    # Memory

    def allocate(self, nbytes: int, stream: CudaStream) -> int:
        found = None if stream.spare is None else stream.spare.take(nbytes)
        if found is None:
            error, address = driver.cuMemAllocAsync(nbytes, stream.handle)
            if error == _OUT_OF_MEMORY:
                for each in list(stream.context.streams.values()):
                    _give_back(each)
                error, address = driver.cuMemAllocAsync(nbytes, stream.handle)
            if error == _OUT_OF_MEMORY:
                raise OutOfMemoryError(self._out_of_device_memory(nbytes, stream.device))
            if error:
                raise failure(error, "cuMemAllocAsync")
            found = int(address)
        if nbytes <= LARGEST:
            self._small_blocks[found] = nbytes
        return found

    def free(self, address: int, stream: CudaStream) -> None:
        # A second free finds no entry in the table, so it goes to the driver, which refuses it.
        nbytes = self._small_blocks.pop(address, None)
        if nbytes is not None and stream.spare is not None and stream.spare.keep(address, nbytes):
            return
        (error,) = driver.cuMemFreeAsync(address, stream.handle)
        if error:
            raise failure(error, "cuMemFreeAsync")

    def allocate_host(self, nbytes: int) -> int:
        _enter(self._any_context())
        if nbytes >= LARGE_BYTES:
            registered = self._registered.allocate(nbytes)
            if registered is not None:
                return registered
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        error, address = driver.cuMemHostAlloc(nbytes, flags)
        if error == _OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"{nbytes} bytes of page-locked host memory were asked for, and the system gives no more; "
                f"release results and uploads that are no longer needed, or raise the limit on locked memory"
            )
        check(error, "cuMemHostAlloc")
        return int(address)

    def free_host(self, address: int) -> None:
        # The driver waits for all work on the device (0.3 s during a kernel of 0.3 s). So only the runtime's pools of
        # memory call this method, and not each result.
        _enter(self._any_context())
        if not self._registered.free(address):
            check(driver.cuMemFreeHost(address)[0], "cuMemFreeHost")

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: CudaStream) -> None:
        if self._several:
            _enter(stream.context)
        (error,) = driver.cuMemcpyHtoDAsync(destination, source, nbytes, stream.handle)
        if error:
            raise failure(error, "cuMemcpyHtoDAsync")

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: CudaStream) -> None:
        if self._several:
            _enter(stream.context)
        (error,) = driver.cuMemcpyDtoHAsync(destination, source, nbytes, stream.handle)
        if error:
            raise failure(error, "cuMemcpyDtoHAsync")

    def copy_on_device(self, destination: int, source: int, nbytes: int, stream: CudaStream) -> None:
        if self._several:
            _enter(stream.context)
        # The driver finds the device of each side by the unified address space.
        (error,) = driver.cuMemcpyAsync(destination, source, nbytes, stream.handle)
        if error:
            raise failure(error, "cuMemcpyAsync")

    def copy_peer(
        self,
        destination: int,
        destination_device: int,
        source: int,
        source_device: int,
        nbytes: int,
        stream: CudaStream,
    ) -> None:
        if (destination_device, source_device) not in self._peers:
            self._connect(destination_device, source_device)
        # Not cuMemcpyAsync, which is wrong for memory of a stream-ordered pool without peer access.
        (error,) = driver.cuMemcpyPeerAsync(
            destination,
            self._context(destination_device).handle,
            source,
            self._context(source_device).handle,
            nbytes,
            stream.handle,
        )
        if error:
            raise failure(error, "cuMemcpyPeerAsync")

    def fill(self, address: int, pattern: bytes, count: int, stream: CudaStream) -> None:
        if self._several:
            _enter(stream.context)
        value = int.from_bytes(pattern, "little")
        match len(pattern):
            case 1:
                check(driver.cuMemsetD8Async(address, value, count, stream.handle)[0], "cuMemsetD8Async")
            case 2:
                check(driver.cuMemsetD16Async(address, value, count, stream.handle)[0], "cuMemsetD16Async")
            case 4:
                check(driver.cuMemsetD32Async(address, value, count, stream.handle)[0], "cuMemsetD32Async")
            case 8 | 16 if pattern == pattern[:4] * (len(pattern) // 4):
                half = value & 0xFFFFFFFF
                words = len(pattern) // 4 * count
                check(driver.cuMemsetD32Async(address, half, words, stream.handle)[0], "cuMemsetD32Async")
            case 8 | 16 as size:
                words = size // 8 * count
                params = fill_params(address, pattern * (16 // size), words)
                self.launch(stream.context.fill, fill_grid(words), BLOCK, 0, params, stream)
            case size:
                raise ValueError(f"a fill pattern of {size} bytes was asked for; it has 1, 2, 4, 8 or 16")

    def report(self, record: int, cursor: int, nbytes: int, stream: CudaStream) -> None:
        self.launch(stream.context.report, ONE, ONE, 0, report_params(record, cursor, nbytes), stream)

    # Code

    def load(self, device: int, code: Code) -> CudaFunction | ForeignFunctions:
        context = self._context(device)
        _enter(context)
        if code.foreign:
            return load_foreign(device, code, context.retired)
        return load_functions(device, code, (code.entry,), context.retired)[0]

    def resources(self, function: CudaFunction, code: Code, threads: int, shared_bytes: int) -> KernelResources:
        _enter(self._context(function.device))
        whole = shared_bytes
        if shared_bytes > function.shared_limit:
            whole = whole_shared(function, shared_bytes)
        return resources_of(function, code, code.persistent or threads, shared_bytes, whole)

    def launch(
        self,
        function: CudaFunction,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        params: bytes,
        stream: CudaStream,
    ) -> None:
        if shared_bytes > function.shared_limit:
            shared_bytes = whole_shared(function, shared_bytes)
        if function.persistent:
            grid, block = persistent_sizes(function, grid, shared_bytes)
        if function.maps is not None:
            params = function.maps.appended(params)
        if len(params) < function.parameter_bytes:
            # The driver would read beyond the buffer.
            raise failure(_INVALID_VALUE, "cuLaunchKernel", _short_of_parameters(function, params))
        if function.cooperative:
            code = launch_cooperative(function, grid, block, shared_bytes, params, stream.handle)
        elif function.dependent:
            code = launch_dependent(function, grid, block, shared_bytes, params, stream.handle)
        else:
            code = launch(self._launch_kernel, function.address, grid, block, shared_bytes, params, stream.address)
        if code:
            raise self.launch_failure(code, function, grid, block, shared_bytes)

    def launch_failure(
        self, code: int, function: CudaFunction, grid: Dim3, block: Dim3, shared_bytes: int
    ) -> DeviceError:
        """Returns the error for a launch that the driver has refused with ``code``."""
        call = f"cuLaunchKernel({function.entry}, grid={grid}, block={block}, shared={shared_bytes})"
        return failure(code, call, launch_detail(function, code))

    # Graphs

    def begin_capture(self, stream: CudaStream) -> None:
        # Relaxed, not thread-local: only the caller submits work here, and the garbage collector may run another
        # library's finaliser (for example a cudaFree) on this thread at any moment.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _enter(stream.context)  # the context of captured copies and fills
        check(driver.cuStreamBeginCapture(stream.handle, mode)[0], "cuStreamBeginCapture")

    def capture_after(self, stream: CudaStream, parts: Sequence[int]) -> None:
        capture = self._captures.get(stream.address)
        if capture is None:
            capture = self._captures[stream.address] = CaptureParts(stream)
        capture.begin(parts)

    def conditionals(self, device: int) -> str | None:
        context = self._context(device)
        if context.set_conditional is not None:
            return None
        reason = unsupported(driver_version())
        if reason is None:
            _enter(context)
            loaded = load_setter(device, context)
            if isinstance(loaded, str):
                return loaded
            context.set_conditional = loaded
        return reason

    def begin_conditional(
        self, stream: CudaStream, kind: ConditionalKind, flag: int, stop: int
    ) -> tuple[CudaStream, ...]:
        context = stream.context
        setter = context.set_conditional
        if setter is None:
            raise failure(_INVALID_VALUE, "cuGraphAddNode", "a conditional before a call of conditionals(device)")
        opened = self._conditionals[stream.address] = OpenConditional(repeats=kind == "while")
        graph, _ = capture_state(stream)
        handles = [new_handle(graph, context) for _ in range(2 if kind == "if-else" else 1)]
        params = setter_params(handles, flag, stop)
        self.launch(setter, ONE, ONE, 0, params, stream)
        _, after = capture_state(stream)
        added = [add_node(graph, after, handle, kind, context) for handle in handles]
        continue_after(stream, [node for node, _ in added])
        for _, body in added:
            opened.bodies.append(self.create_stream(stream.device))
            begin_body(opened.bodies[-1], body)
        opened.params = params
        return tuple(opened.bodies)

    def end_conditional(self, stream: CudaStream) -> None:
        opened = self._conditionals.pop(stream.address, None)
        if opened is None:
            raise failure(_INVALID_VALUE, "cuGraphAddNode", "the end of a conditional where none was begun")
        try:
            if opened.repeats:
                body, setter = opened.bodies[0], stream.context.set_conditional
                assert setter is not None
                if not capture_state(body)[1]:
                    raise failure(_INVALID_VALUE, "cuGraphAddNode", "a loop whose body is empty would never end")
                self.launch(setter, ONE, ONE, 0, opened.params, body)
        except BaseException:
            self._abandon_bodies(opened)
            raise
        self._end_bodies(opened)

    def _end_bodies(self, opened: OpenConditional) -> None:
        try:
            while opened.bodies:
                body = opened.bodies.pop()
                self._captures.pop(body.address, None)
                try:
                    end_body(body)
                finally:
                    self.destroy_stream(body)
        except BaseException:
            self._abandon_bodies(opened)
            raise

    def _abandon_bodies(self, opened: OpenConditional) -> None:
        """Ends the captures of the bodies of a failed conditional, and of the conditionals within them, and destroys
        the bodies' streams. Ignores the driver's errors."""
        while opened.bodies:
            body = opened.bodies.pop()
            self._captures.pop(body.address, None)
            inner = self._conditionals.pop(body.address, None)
            if inner is not None:
                self._abandon_bodies(inner)
            with contextlib.suppress(DeviceError):
                end_body(body)
            with contextlib.suppress(DeviceError):
                self.destroy_stream(body)

    def end_capture(self, stream: CudaStream) -> CudaGraphExec:
        self._captures.pop(stream.address, None)
        opened = self._conditionals.pop(stream.address, None)
        if opened is not None:
            self._abandon_bodies(opened)
        error, graph = driver.cuStreamEndCapture(stream.handle)
        if not error and opened is not None:
            error = _UNJOINED
        if error:
            abandon_capture(graph)
            raise failure(error, "cuStreamEndCapture")
        _enter(stream.context)
        return instantiate(graph, stream)

    def call_failure(self, code: int, call: str) -> DeviceError:
        """Returns the error for a call that the driver has refused with ``code``, or whose work has failed."""
        return failure(code, call)

    def destroy_graph(self, graph: CudaGraphExec) -> None:
        """Destroys a graph, or does nothing if it is destroyed already. Launches in flight still run."""
        _enter(self._context(graph.device))
        handle, graph.handle, graph.address = graph.handle, None, 0
        if handle is not None:
            check(driver.cuGraphExecDestroy(handle)[0], "cuGraphExecDestroy")

    # Host functions

    def launch_host_function(self, function: Callable[[], None], stream: CudaStream) -> None:
        key = self._host_functions.add(function)
        try:
            self.launch_native_host_function(self._host_functions.entry, key, stream)
        except BaseException:
            self._host_functions.discard(key)
            raise

    def call(self, what: str, function: Callable[[int], Ranges], stream: CudaStream) -> None:
        """Calls ``function`` at once, which submits another library's work to the stream."""
        function(stream.address)

    def launch_native_host_function(self, function: int, argument: int, stream: CudaStream) -> None:
        code = self._launch_host_function(stream.address, function, argument)
        if code:
            raise failure(code, "cuLaunchHostFunc")

    # Other libraries' streams and memory

    def foreign_stream(self, device: int, address: int) -> CudaStream:
        context = self._context(device)
        _enter(context)
        found = self._default_streams.get((device, address))
        if found is not None and found.context is context:
            return found
        try:
            made = CudaStream(device, context, core.Stream.from_handle(address))
        except Exception as error:
            raise_core_failure(error, "cuStreamGetCtx")
        if address in (1, 2):  # the numbers of the default streams never belong to other streams
            self._default_streams[device, address] = made
        return made

    def adopt(self, address: int, nbytes: int) -> int:
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        error, device = driver.cuPointerGetAttribute(attribute, address)
        check(error, "cuPointerGetAttribute")
        self._context(int(device))
        return int(device)

    def disown(self, address: int, nbytes: int) -> None:
        """Does nothing: CUDA handles other libraries' memory like its own."""

    def clock(self) -> Clock:
        if self._has_clock:
            raise DeviceError("the CUDA driver has a clock already; close it first")
        self._has_clock = True
        try:
            opened = [device for device, context in enumerate(self._contexts) if context is not None]
            return new_clock(self, self._end_clock, opened)
        except BaseException:
            self._has_clock = False
            raise

    def _end_clock(self) -> None:
        self._has_clock = False

    def close(self) -> None:
        with unheld(self._contexts_lock):
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        for context in self._contexts:
            if context is not None:
                # A lost or destroyed context has nothing left to wait for or to free.
                with contextlib.suppress(DeviceError):
                    _enter(context)
                    check(driver.cuCtxSynchronize()[0], "cuCtxSynchronize")
                    unload(context.retired)
                    check(driver.cuMemPoolTrimTo(context.pool, 0)[0], "cuMemPoolTrimTo")

    # Contexts

    def _check_device(self, device: int) -> None:
        count = len(self._contexts)
        if not 0 <= device < count:
            raise DeviceError(
                f"CUDA device {device} was asked for; there {'is' if count == 1 else 'are'} {count}, numbered from 0"
            )

    def _context(self, device: int) -> CudaContext:
        if 0 <= device < len(self._contexts):
            context = self._contexts[device]
            if context is not None:
                return context
        self._check_device(device)
        with unheld(self._contexts_lock):
            if self._closed:
                raise DeviceError(f"CUDA device {device} was asked for, but the CUDA driver has been closed")
            context = self._contexts[device]
            if context is None:
                self._several = any(each is not None for each in self._contexts)
                context = self._contexts[device] = open_context(device)
            return context

    def _connect(self, one: int, other: int) -> None:
        """Lets two devices access each other's memory if the hardware can. Called once for each pair."""
        contexts = {device: self._context(device) for device in (one, other)}
        with unheld(self._contexts_lock):
            if (one, other) not in self._peers:
                for reader, owner in ((one, other), (other, one)):
                    _enter(contexts[reader])
                    open_peer_access(reader, owner, contexts[owner])
                self._peers.update({(one, other), (other, one)})

    def _any_context(self) -> CudaContext:
        """Returns any open context; opens device 0's if none is open. Page-locked memory can be allocated in any
        context, and a further context would cost 0.5 GB of device memory."""
        return next((context for context in self._contexts if context is not None), None) or self._context(0)

    def _out_of_device_memory(self, nbytes: int, device: int) -> str:
        pool = self._context(device).pool
        free, total = memory_info(device)
        attributes = driver.CUmemPool_attribute
        error, reserved = driver.cuMemPoolGetAttribute(pool, attributes.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        check(error, "cuMemPoolGetAttribute")
        error, used = driver.cuMemPoolGetAttribute(pool, attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        check(error, "cuMemPoolGetAttribute")
        return (
            f"{nbytes} bytes were asked for on CUDA device {device}, which has {free} of {total} bytes free outside "
            f"the memory pool and {int(reserved) - int(used)} of {int(reserved)} inside it; drop boxes that are no "
            f"longer needed, or use smaller batches"
        )


def _give_back(stream: CudaStream) -> None:
    """Frees the stream's spare blocks. Ignores errors, because the stream's next use raises them again."""
    if stream.spare is not None:
        for address in stream.spare.drain():
            driver.cuMemFreeAsync(address, stream.handle)


def _enter(context: CudaContext) -> None:
    (error,) = driver.cuCtxSetCurrent(context.handle)
    if error:
        raise failure(error, "cuCtxSetCurrent")


def _entry(name: str) -> int:
    """Returns the address of a driver function."""
    return ctypes.cast(getattr(libcuda(), name), ctypes.c_void_p).value or 0


def _short_of_parameters(function: CudaFunction, params: bytes) -> str:
    return (
        f"kernel {function.entry} was launched with {len(params)} bytes of parameters, and takes "
        f"{function.parameter_bytes}; pack them as its C structure"
    )
