"""One execution of an operation on a stream, or its capture into a graph."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/submission")
