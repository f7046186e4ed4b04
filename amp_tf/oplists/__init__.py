"""Holds the op lists as data, and what the user changes in them.

The package also knows which devices and kernels can run 16 bit.
"""
