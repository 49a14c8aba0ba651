"""A two-layer network. Each batch is one pipeline of device operations, and all batches are in flight at once: see
``pipeline``."""
