"""What ops cost on CPUs, and what is not faster there in 16 bit: for ``auto``, which alone imports
it.
"""
