"""Finds the smallest part of a model that has to stay in float32, by training it, and writes it to a lock file."""
