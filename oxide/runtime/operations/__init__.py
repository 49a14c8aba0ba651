"""DeviceOperation and the operations made of it."""
