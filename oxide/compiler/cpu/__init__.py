"""The CPU back end: portable IR to a host object file."""
