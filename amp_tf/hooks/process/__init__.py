"""What holds for the whole process, and what it says: its state, warnings, the line at exit, the report's files."""
