"""Checks a kernel's syntax tree before it is typed, and words the errors of the typing."""
