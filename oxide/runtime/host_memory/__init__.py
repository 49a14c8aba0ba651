"""Page-locked host memory, and copies from and to it."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/host_memory")
