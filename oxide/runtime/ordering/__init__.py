"""Streams, events, and the order of what is submitted to them."""
