"""Recognizes how a loop scales its loss itself, from its calls and from its graph. Not a part of the algorithm."""
