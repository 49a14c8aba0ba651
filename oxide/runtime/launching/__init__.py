"""Kernel launches: configuration, arguments and their binding."""
