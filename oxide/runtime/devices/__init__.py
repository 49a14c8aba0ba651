"""The runtime in force, its devices, policies, faults and statistics."""
