"""Tests that the authors of Keras and of other libraries wrote, run with amp_tf and without it."""
