"""A kernel as it is declared: its options, and the description that later parts read."""
