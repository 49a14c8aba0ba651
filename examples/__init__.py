"""Programs that use oxide as an application does: through its public names only."""
