"""Programs of several devices and of several processes."""
