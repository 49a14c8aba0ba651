"""The drivers of devices: one protocol, for CUDA and the CPU."""
