"""The table of primitives: for each function of the kernel language, the types that it takes, the code that each back
end compiles, and the interpreter's implementation."""
