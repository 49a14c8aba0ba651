"""CUDA graphs: stream captures that become executable graphs, and conditional nodes.

A graph is instantiated and uploaded when its capture ends, so that its first launch costs no more than later ones.

A conditional node runs its body graph if, or while, the value of its *handle* is not 0. Only a kernel can set a handle.
So a small kernel reads the flag and sets the handle: before the node, and for a loop also at the end of the body. The
kernel's PTX declares ``cudaGraphSetConditional`` as an external function, which the driver resolves. The kernel is
loaded when it is first needed, because a driver before CUDA 12.4 cannot load it.

``"if-else"`` is two nodes with handles of opposite values, because a node with an else body needs a driver of CUDA
12.8. One launch of the kernel sets both handles in advance. So a first body that changes the flag does not make the
second body run as well.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any, Final, final

from cuda.bindings import driver

from oxide.driver.base import Code, ConditionalKind, Target
from oxide.driver.cuda.contexts import CudaContext, CudaStream, shown_version
from oxide.driver.cuda.errors import check
from oxide.driver.cuda.modules import CudaFunction, load_functions
from oxide.errors import DeviceError, DriverError
from oxide.host.core import Handle


@final
class CudaGraphExec(Handle):
    """An executable graph of one device. ``address`` is its ``CUgraphExec``, 0 once it is destroyed."""

    __slots__ = ("device", "handle")

    def __init__(self, device: int, handle: Any) -> None:
        self.device = device
        self.handle = handle
        self.address = int(handle)


@final
class CaptureParts:
    """The parts of a capture with branches. For each part that has ended, keeps the part's last nodes."""

    __slots__ = ("_ends", "_stream", "_unfinished")

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self._ends: list[list[Any]] = []
        self._unfinished = False

    def begin(self, parts: Sequence[int]) -> None:
        """Ends the part in progress. Makes work that is captured from now on depend only on the given parts."""
        if self._unfinished:
            self._ends.append(capture_state(self._stream)[1])
        self._unfinished = True
        continue_after(self._stream, [node for number in parts for node in self._ends[number]])


def capture_state(stream: CudaStream) -> tuple[Any, list[Any]]:
    """Returns the graph of the capture on a stream, and the nodes that the next captured node would depend on."""
    error, _, _, graph, nodes, _, count = driver.cuStreamGetCaptureInfo(stream.handle)
    check(error, "cuStreamGetCaptureInfo")
    return graph, list(nodes[:count])


def continue_after(stream: CudaStream, nodes: list[Any]) -> None:
    """Makes work that is captured from now on depend only on the given nodes."""
    flags = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    (error,) = driver.cuStreamUpdateCaptureDependencies(stream.handle, nodes, None, len(nodes), flags)
    check(error, "cuStreamUpdateCaptureDependencies")


def instantiate(graph: Any, stream: CudaStream) -> CudaGraphExec:
    """Instantiates a captured graph and uploads it in ``stream``. Destroys the captured graph."""
    try:
        error, handle = driver.cuGraphInstantiate(graph, 0)
        check(error, "cuGraphInstantiate")
    finally:
        check(driver.cuGraphDestroy(graph)[0], "cuGraphDestroy")
    try:
        check(driver.cuGraphUpload(handle, stream.handle)[0], "cuGraphUpload")
    except BaseException:
        with contextlib.suppress(DeviceError):
            check(driver.cuGraphExecDestroy(handle)[0], "cuGraphExecDestroy")
        raise
    return CudaGraphExec(stream.device, handle)


def abandon_capture(graph: Any) -> None:
    """Destroys the graph of a failed capture, if there is one."""
    if graph is not None and int(graph):
        with contextlib.suppress(DeviceError):
            check(driver.cuGraphDestroy(graph)[0], "cuGraphDestroy")


# Conditional nodes

_LEAST_VERSION: Final = 12040

_SET = "oxide_set_conditional"

_CODE = Code(
    Target("ptx", "sm_70", "+ptx84"),
    _SET,
    b"""
.version 8.4
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional(
    .param .b64 cudaGraphSetConditional_0, .param .b32 cudaGraphSetConditional_1);

.visible .entry oxide_set_conditional(
    .param .u64 handle, .param .u64 opposite, .param .u64 flag, .param .u64 stop)
{
    .reg .pred %on, %unstoppable, %claimed, %single;
    .reg .b32 %value, %record;
    .reg .b64 %handle, %opposite, %flag, %stop;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %opposite, [opposite];
    ld.param.u64 %flag, [flag];
    ld.param.u64 %stop, [stop];
    cvta.to.global.u64 %flag, %flag;
    ld.global.u32 %value, [%flag];
    setp.ne.u32 %on, %value, 0;
    selp.u32 %value, 1, 0, %on;
    setp.eq.u64 %unstoppable, %stop, 0;
    @%unstoppable bra SET;
    cvta.to.global.u64 %stop, %stop;
    ld.global.u32 %record, [%stop];
    setp.ne.u32 %claimed, %record, 0;
    selp.u32 %value, 0, %value, %claimed;
SET:
    {
        .param .b64 p0;
        .param .b32 p1;
        st.param.b64 [p0], %handle;
        st.param.b32 [p1], %value;
        call.uni cudaGraphSetConditional, (p0, p1);
    }
    setp.eq.u64 %single, %opposite, 0;
    @%single bra END;
    xor.b32 %value, %value, 1;
    {
        .param .b64 p0;
        .param .b32 p1;
        st.param.b64 [p0], %opposite;
        st.param.b32 [p1], %value;
        call.uni cudaGraphSetConditional, (p0, p1);
    }
END:
    ret;
}
""",
)


@final
class OpenConditional:
    """A conditional whose bodies are being captured, each on a stream of its own. ``params`` are the parameters with
    which the small kernel sets the conditional's handles; they are empty until the nodes exist."""

    __slots__ = ("bodies", "params", "repeats")

    def __init__(self, *, repeats: bool) -> None:
        self.repeats = repeats
        self.params = b""
        self.bodies: list[CudaStream] = []


def unsupported(version: int) -> str | None:
    """Returns the reason why a driver of this version has no conditional nodes; None if it has them."""
    if version >= _LEAST_VERSION:
        return None
    return f"the NVIDIA driver supports CUDA {shown_version(version)}, and conditional nodes need 12.4"


def load_setter(device: int, context: CudaContext) -> CudaFunction | str:
    """Returns the kernel that sets handles, loaded into the current context, or the reason why it cannot be loaded."""
    try:
        return load_functions(device, _CODE, (_SET,), context.retired)[0]
    except DriverError as error:
        return f"the NVIDIA driver does not load the kernel that sets conditions: {error}"


def new_handle(graph: Any, context: CudaContext) -> Any:
    """Returns a handle for a node of the graph. Its value is 0 at the beginning of each launch."""
    flags = driver.CU_GRAPH_COND_ASSIGN_DEFAULT
    error, handle = driver.cuGraphConditionalHandleCreate(graph, context.handle, 0, flags)
    check(error, "cuGraphConditionalHandleCreate")
    return handle


def setter_params(handles: list[Any], flag: int, stop: int) -> bytes:
    """Returns the parameters of the kernel that sets one handle, or two to opposite values."""
    opposite = int(handles[1]) if len(handles) > 1 else 0
    return struct.pack("@QQQQ", int(handles[0]), opposite, flag, stop)


def add_node(graph: Any, after: list[Any], handle: Any, kind: ConditionalKind, context: CudaContext) -> tuple[Any, Any]:
    """Adds a conditional node to a graph. Returns the node and its body graph, which the node owns."""
    kinds = driver.CUgraphConditionalNodeType
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = kinds.CU_GRAPH_COND_TYPE_WHILE if kind == "while" else kinds.CU_GRAPH_COND_TYPE_IF
    params.conditional.size = 1
    params.conditional.ctx = context.handle
    error, node = driver.cuGraphAddNode(graph, after, None, len(after), params)
    check(error, "cuGraphAddNode")
    return node, params.conditional.phGraph_out[0]


def begin_body(stream: CudaStream, graph: Any) -> None:
    """Begins a capture into a body graph."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (error,) = driver.cuStreamBeginCaptureToGraph(stream.handle, graph, None, None, 0, mode)
    check(error, "cuStreamBeginCaptureToGraph")


def end_body(stream: CudaStream) -> None:
    """Ends a capture into a body graph. The node keeps the graph."""
    error, _ = driver.cuStreamEndCapture(stream.handle)
    check(error, "cuStreamEndCapture")
