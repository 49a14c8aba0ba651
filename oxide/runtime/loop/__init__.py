"""The event loops in which operations are awaited, and how the device wakes them."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/loop")
