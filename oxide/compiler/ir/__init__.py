"""The portable IR: what it is made of, and what both back ends take."""
