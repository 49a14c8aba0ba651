"""What oxide costs and what it gains, beside what one would use instead: ``python -m benchmarks``."""
