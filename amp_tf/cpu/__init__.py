"""The cost model of CPUs: it leaves in float32 what is not faster in 16 bit. ``auto`` alone imports
it.
"""
