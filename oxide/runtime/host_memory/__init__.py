"""Page-locked host memory, and copies within host memory on the device's host-function thread."""
