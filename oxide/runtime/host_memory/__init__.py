"""Page-locked host memory, and copies of host memory that the device has threads make."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/host_memory")
