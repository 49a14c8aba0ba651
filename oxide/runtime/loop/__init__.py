"""The event loops that operations are awaited in, and how the device wakes them."""
