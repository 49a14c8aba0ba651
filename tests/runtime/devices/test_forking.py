"""After fork: the child gets an error that says what to do, never a hang, and drops boxes without a driver call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"OXIDE_DEVICE": "cpu", "PATH": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_first_use_in_the_child_is_a_device_error_that_says_what_to_do() -> None:
    printed = run(
        """
        import gc, os, sys, threading, trio, numpy as np, oxide
        from oxide.runtime.devices.runtime import current_runtime
        box = oxide.h2d(np.ones(3)).sync()
        stream = oxide.devices()[0].new_stream()
        pending = oxide.h2d(np.ones(3)).async_on(stream)
        current_runtime().submission.__enter__()     # as another thread might hold it
        current_runtime().reclaimer._turn.acquire()
        async def awaited():
            await oxide.value(1)
        uses = {
            "sync": lambda: oxide.value(1).sync(),
            "sync_on": lambda: oxide.value(1).sync_on(stream),
            "async_on": lambda: oxide.d2h(box).async_on(stream),
            "await": lambda: trio.run(awaited),
            "devices": oxide.devices,
            "init": oxide.init_device_contexts,
            "new_stream": stream.device.new_stream,
            "synchronize": stream.synchronize,
            "array": lambda: pending.host_view(),
            "pinned": lambda: oxide.pinned_empty(3),
            "scope": oxide.CudaGraph.scope(stream).__enter__,
            "graph": oxide.zeros(3).graph,
        }
        child = os.fork()
        if child == 0:
            for name, use in uses.items():
                try:
                    use()
                except oxide.DeviceError as error:
                    assert "forked" in str(error) and "spawn" in str(error), (name, str(error))
                    print(name, flush=True)
            assert [piece.shape for piece in box.split(2)] == [(2,), (1,)]
            assert box.host_view().sum() == 3
            del box, pending
            gc.collect()
            oxide.reclaim.drain()
            assert "0x0" in repr(stream), repr(stream)
            print("done", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        current_runtime().submission.__exit__(None, None, None)
        current_runtime().reclaimer._turn.release()
        stream.synchronize()
        assert oxide.d2h(pending).sync().sum() == 3  # the parent's memory is as it was
        """
    )
    uses = "sync sync_on async_on await devices init new_stream synchronize array pinned scope graph done"
    assert printed.split() == uses.split()


def test_a_graph_with_launches_in_flight_is_dropped_in_the_child_without_a_driver_call() -> None:
    assert run(
        """
        import gc, os, numpy as np, oxide
        from oxide_kernels import relu
        x, y = oxide.h2d(np.ones(3, np.float32)).sync(), oxide.zeros(3).sync()
        graph = relu[1, 4](x, y).graph()
        stream = oxide.devices()[0].new_stream()
        graph.launch().async_on(stream)
        child = os.fork()
        if child == 0:
            try:
                graph.launch().sync()
            except oxide.DeviceError as error:
                assert "forked" in str(error)
                print("refused", flush=True)
            del graph
            gc.collect()
            oxide.reclaim.drain()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        graph.launch().sync()
        stream.synchronize()
        print(oxide.d2h(y).sync().sum())
        """
    ).split() == ["refused", "3.0"]


def test_a_child_that_ends_in_the_ordinary_way_does_not_hang() -> None:
    assert run(
        """
        import os, sys, numpy as np, oxide
        box = oxide.h2d(np.ones(3)).sync()
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("parent")
        """
    ).split() == ["parent"]


def test_a_process_forked_before_the_first_use_may_use_oxide() -> None:
    assert run(
        """
        import os, numpy as np, oxide
        child = os.fork()
        assert oxide.h2d(np.ones(3)).to_host().sync().sum() == 3
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("both")
        """
    ).split() == ["both"]
