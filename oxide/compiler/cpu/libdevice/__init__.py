"""libdevice's functions on the CPU."""
