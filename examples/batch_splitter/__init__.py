"""One large batch split over 1, 2 or more devices, the same program on each: see ``splitter``."""
