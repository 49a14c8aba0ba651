"""Page-locked host memory, and copies from and to it."""
