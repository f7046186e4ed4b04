"""Programs in 16 bit, judged against themselves in float32.

The yardstick (``yardstick.py``) divides the error of a program under amp_tf by the error of the
*ideal mixed program*, in which products alone are 16 bit. ``programs/`` holds the programs, most of
them generated from what TensorFlow and Keras export. ``python -m tests.truth`` runs them all;
pytest runs a few.
"""
