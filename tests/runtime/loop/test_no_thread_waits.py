"""While an operation is in flight for two seconds, the loop ticks on and the process sleeps. On both devices."""

from __future__ import annotations

import threading
import time

import trio

import oxide
from oxide import DeviceOperation, DisjointSlice, ExecutionContext, f32, i64, kernel, thread, value, with_context, zeros

SECONDS = 2.0


@kernel(block=1)
def spin(turns: i64, out: DisjointSlice[f32]) -> None:
    x = f32(2.0)  # not 1.0, which the recurrence maps to itself: LLVM would leave the loop out
    for _ in range(turns):
        x = x * f32(0.999999) + f32(0.000001)
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = x


def busy_for_two_seconds(device: str) -> DeviceOperation[object]:
    """On a GPU a kernel; on the CPU device, where a kernel is processor time, a host function that sleeps."""
    if device == "cpu":

        def sleep(context: ExecutionContext) -> DeviceOperation[object]:
            context.stream.launch_host_function(lambda: time.sleep(SECONDS))
            return value(None)

        return with_context(sleep)
    stream = oxide.devices()[0].new_stream()
    spin(1000, zeros(1)).sync_on(stream)
    start = stream.record_event()
    spin(20_000_000, zeros(1)).async_on(stream)
    end = stream.record_event()
    stream.synchronize()
    return spin(int(20_000_000 * SECONDS * 1000 / start.elapsed_ms(end)), zeros(1)).last()


def test_a_two_second_operation_stalls_no_other_task_and_takes_no_processor_time(device: str) -> None:
    operation = busy_for_two_seconds(device)
    stalls: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(0.001)
            now = time.perf_counter()
            stalls.append(now - last)
            last = now

    async def ticked() -> tuple[float, float]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            start, used = time.perf_counter(), time.process_time()
            await operation
            took, used = time.perf_counter() - start, time.process_time() - used
            nursery.cancel_scope.cancel()
        return took, used

    async def alone() -> tuple[float, float]:
        start, used = time.perf_counter(), time.process_time()
        await operation
        return time.perf_counter() - start, time.process_time() - used

    before = threading.active_count()
    took, used = trio.run(ticked)
    assert took > 0.9 * SECONDS
    # A loop that is blocked stands still for two seconds; one whose machine has other things to do, for much less.
    assert len(stalls) > 50
    assert max(stalls) < SECONDS / 4
    took_alone, used_alone = trio.run(alone)
    assert took_alone > 0.9 * SECONDS
    assert used_alone < 0.05 * took_alone
    assert threading.active_count() <= before + 2  # the CPU device's own workers, none that waits
    print(
        f"longest stall {max(stalls) * 1e3:.2f} ms; processor {100 * used_alone / took_alone:.2f}% alone, "
        f"{100 * used / took:.2f}% with the ticker"
    )
