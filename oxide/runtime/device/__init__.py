"""Devices as programs use them: the runtime in force, timelines, memory and its reclamation, faults."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/device")
