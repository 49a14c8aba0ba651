"""DeviceOperation and the operations composed of it."""
