"""Reads, views, edits and verifies graphs.

The view holds a graph as arrays of integers, made by the templates of its ops. Only the reader and
the editor touch protos; all code between them works on indices.
"""
