"""One execution of an operation on a stream, its capture into a graph, and its staged copies."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("runtime/submission")
