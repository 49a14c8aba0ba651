"""What runs while a program is traced: the notes, the trace points' side of them, and the driver's."""
