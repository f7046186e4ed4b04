"""Graphs: op templates, the view as arrays of integers, the reader and the editor,
verification.

Only the reader and the editor touch protos; all code between them works on indices.
"""
