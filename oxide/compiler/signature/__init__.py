"""Turns annotations and arguments into the types of a kernel's parameters."""
