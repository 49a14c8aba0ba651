"""Devices as programs use them: the runtime in force, streams, memory and its reclamation, policies, faults."""
