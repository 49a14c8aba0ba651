"""Devices as programs use them: the runtime in force, timelines, memory and its reclamation, faults."""
