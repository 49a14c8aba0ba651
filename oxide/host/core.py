"""What the runtime needs of machine code: the extension ``oxide._core``, and where there is none, its twin in Python.

``pip install`` builds the extension where it finds a C compiler. ``_core_twin.py`` says what its absence costs.
``OXIDE_CORE=0`` in the environment has the twin used where both are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oxide import _core  # by ``_core.pyi``


def _found() -> Any:
    if os.environ.get("OXIDE_CORE") != "0":
        try:
            from oxide import _core
        except ImportError:
            pass
        else:
            if _core.__file__ is not None:  # Python takes the folder of its sources for a package
                return _core
    from oxide import _core_twin

    return _core_twin


if not TYPE_CHECKING:
    _core = _found()

FORM: Final = "Python" if _core.__name__.endswith("_twin") else "C"
"""``"C"``, or ``"Python"`` for the twin."""

alarm: Final[Callable[[int], int]] = _core.alarm
NOTIFY: Final[int] = _core.NOTIFY
"""The address of ``void notify(void *alarm)``, which makes the descriptor of an ``alarm`` readable. A stream calls
it."""

ROW_BYTES: Final[int] = _core.ROW_BYTES
MOVE: Final[int] = _core.MOVE
"""The address of ``void move(void *row)``, which makes the copy of a row."""
copy: Final[Callable[[int], None]] = _core.copy
start_helpers: Final[Callable[[int, int, int], tuple[int, int]] | None] = getattr(_core, "start_helpers", None)
"""None in the twin, and where the system has no futex."""
SHARE_COPY: Final[int] = getattr(_core, "SHARE_COPY", 0)
"""The address of ``void share_copy(void *row)``, which makes the copy of a row together with helpers."""

watch_kernel: Final[Callable[[int, int, bytes], None] | None] = getattr(_core, "watch_kernel", None)
"""None in the twin, and where no signal handler can tell a kernel."""

HEADER_BYTES: Final[int] = _core.HEADER_BYTES
RELEASE: Final[int] = _core.RELEASE
"""The address of the deleter of a tensor, which is behind a header. It adds the tensor to the list of ``released``."""
DROP_CAPSULE: Final[int] = _core.DROP_CAPSULE
"""The address of the destructor of a tensor's capsule."""
released: Final[Callable[[], int]] = _core.released

setup = _core.setup
"""Gives the core what it needs of the runtime: classes, and functions of slow paths."""

points: Final = _core.points
"""Holds the tracer in force, or None. The process has one such object."""

RUNTIME_LOCK: Final = _core.RUNTIME_LOCK
"""See ``host/locks.py``."""

# The types that classes of the runtime derive from. Each is described there.
Allocation = _core.Allocation
Captured = _core.Captured
Calls = _core.Calls
ConfiguredKernel = _core.ConfiguredKernel
DeviceBox = _core.DeviceBox
DeviceFuture = _core.DeviceFuture
Dropping = _core.Dropping
Element = _core.Element
ExecutionContext = _core.ExecutionContext
FaultReport = _core.FaultReport
Frame = _core.Frame
Function = _core.Function
GraphFaultReport = _core.GraphFaultReport
GraphLaunch = _core.GraphLaunch
Handle = _core.Handle
HostCopies = _core.HostCopies
LooseResults = _core.LooseResults
Launch = _core.Launch
LaunchConfig = _core.LaunchConfig
Mark = _core.Mark
Operation = _core.Operation
ParameterSlot = _core.ParameterSlot
PinnedBlock = _core.PinnedBlock
PinnedBuffer = _core.PinnedBuffer
PinnedPool = _core.PinnedPool
Plan = _core.Plan
Stage = _core.Stage
Submission = _core.Submission
Timeline = _core.Timeline
Turn = _core.Turn
Value = _core.Value
Walk = _core.Walk
Zip = _core.Zip

# The kinds of parameters and of numbers (``launching/binding.py``), and those of stages (``operations/combinators.py``)
SLICE, DISJOINT, TILES, SCALAR = _core.SLICE, _core.DISJOINT, _core.TILES, _core.SCALAR
LIFTED, ARGUMENT, OTHER = _core.LIFTED, _core.ARGUMENT, _core.OTHER
SIGNED, UNSIGNED, FLOAT = _core.SIGNED, _core.UNSIGNED, _core.FLOAT
MAP, INSPECT, AND_THEN, WITH_CONTEXT = _core.MAP, _core.INSPECT, _core.AND_THEN, _core.WITH_CONTEXT

REPORT_RECORDS: Final[int] = _core.REPORT_RECORDS
"""The number of launches that one ``FaultReport`` serves."""

PAGE_RECORDS: Final[int] = _core.PAGE_RECORDS
"""The number of launches of a graph that one page serves."""

call_soon = _core.call_soon
context_for = _core.context_for
current_turn = _core.current_turn
launch = _core.launch
copy_host = _core.copy_host
new_box = _core.new_box
new_report = _core.new_report
note_dropped = _core.note_dropped
refuse_inside = _core.refuse_inside
run_blocking = _core.run_blocking
run_through = _core.run_through
submit = _core.submit
submit_at_once = _core.submit_at_once
upload_small = _core.upload_small
download_pinned = _core.download_pinned
