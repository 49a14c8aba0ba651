"""The event loops that operations are awaited in, and how the device wakes them."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/loop")
