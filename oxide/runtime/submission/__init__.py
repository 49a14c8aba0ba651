"""One execution of an operation on a stream, or its capture into a graph."""
