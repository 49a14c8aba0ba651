"""One execution of an operation on a stream, its capture into a graph, and its staged copies."""
