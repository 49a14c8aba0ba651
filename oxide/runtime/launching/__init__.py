"""Kernel launches: configuration, arguments and their binding."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/launching")
