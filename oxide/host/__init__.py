"""What all layers need of the process: the core, locks, interrupts, files, the environment."""
