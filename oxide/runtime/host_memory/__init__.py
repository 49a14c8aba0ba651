"""Page-locked host memory, and copies of host memory that the device has threads make."""
