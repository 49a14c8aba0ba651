"""Futures, completion, and preloading before anything is awaited."""
