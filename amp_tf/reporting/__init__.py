"""What was rewritten and why: the report of a rewrite and of the whole process, its words and
files.
"""
