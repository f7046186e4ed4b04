"""The op lists as data, what the user changes in them, and which devices and kernels can run 16
bit.
"""
