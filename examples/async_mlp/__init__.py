"""Batches of a two-layer network, each one pipeline of device operations, all in flight at once: see ``pipeline``."""
