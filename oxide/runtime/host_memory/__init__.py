"""Page-locked host memory, and copies of host memory on the device's host-function thread."""
