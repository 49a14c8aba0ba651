"""Futures, completion, and preparation before anything is awaited."""
