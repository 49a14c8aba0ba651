"""The CUDA devices behind the Driver protocol."""
