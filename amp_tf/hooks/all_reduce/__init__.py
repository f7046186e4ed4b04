"""Sums of gradients over replicas in 16 bit."""
