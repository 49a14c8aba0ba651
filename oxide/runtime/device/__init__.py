"""Devices as programs use them: the runtime in force, streams, memory and its reclamation, policies, faults."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/device")
