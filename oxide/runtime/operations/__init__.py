"""DeviceOperation and the operations made of it."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/operations")
