"""Plans: the nodes of recorded work, and the order that their data requires."""
