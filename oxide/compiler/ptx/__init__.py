"""The GPU back end: portable IR to PTX."""
