"""The portable IR: its parts, and the form that both back ends take."""
