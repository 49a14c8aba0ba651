"""Device memory, page-locked memory, and when each is free again."""
