"""The event loops in which operations are awaited, and how the device wakes them."""
