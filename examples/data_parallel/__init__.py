"""Trains the network for handwritten digits on several devices. Each device computes the gradients of its share of a
batch."""
