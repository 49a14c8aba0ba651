"""The part of tracing that runs while the program runs: takes notes, at trace points and in a driver wrapper."""
