"""Programs that use oxide the way an application would: through its public names only."""
