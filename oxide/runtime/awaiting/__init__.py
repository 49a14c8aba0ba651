"""Futures, completion, and preloading before anything is awaited."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/awaiting")
