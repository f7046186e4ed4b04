"""What amp_tf decides for every benchmark model and block, on any host: no step runs, and nothing
is timed.

``python -m benchmarks.decisions`` makes, checks and compares the table.
"""
