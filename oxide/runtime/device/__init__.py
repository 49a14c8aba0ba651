"""Devices as programs use them: the current runtime, streams, memory and its reclamation, policies, faults."""
