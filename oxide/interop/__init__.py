"""Interfaces of other libraries on top of the runtime."""
