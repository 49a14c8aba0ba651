"""Trains the network for handwritten digits on several devices: each computes the gradients of its share of a batch."""
