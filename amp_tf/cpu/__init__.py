"""Leaves in float32 what is not faster in 16 bit on a CPU: the cost model.

``auto`` alone imports it.
"""
