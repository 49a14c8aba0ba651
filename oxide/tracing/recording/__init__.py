"""The parts of tracing that run while the program does: the notes, the trace points' side of them, and the driver's."""
