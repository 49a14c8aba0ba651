"""The CPU back end: portable IR to an object file of the host."""
