"""Graphs: op templates, the view as arrays of integers, the reader and the editor,
verification.

The reader and the editor are the only code that touches a proto; everything between them works on
indices.
"""
