"""Splits one large batch over 1, 2 or more devices, with the same program for any number: see ``splitter``."""
