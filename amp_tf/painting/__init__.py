"""Decides the precision of every node, by rules in their order.

Nothing here touches a proto or changes a graph.
"""
