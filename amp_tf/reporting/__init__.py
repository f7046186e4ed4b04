"""What was rewritten and why: the report's schema, its words and files, and the report of the whole process."""
