"""The programs, by group.

Each module has ``programs()``, which makes its programs and imports what it needs.
"""
