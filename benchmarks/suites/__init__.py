"""Tests that the authors of other libraries wrote, run with amp_tf and without it."""
