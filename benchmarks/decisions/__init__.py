"""The decisions of amp_tf for every benchmark model and block, on any host.

No step runs, and nothing is timed.
``python -m benchmarks.decisions`` makes, checks and compares the table.
"""
