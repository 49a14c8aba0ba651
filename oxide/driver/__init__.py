"""The drivers of devices: one protocol, with one implementation for CUDA and one for the CPU."""
