"""The devices: what drives each."""
